"""`tabular`: a small network on tables of numbers, one class for each row."""

import json
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import nn

from fedfa.spec import FederationSpec
from fedfa.tasks import shards, tables
from fedfa.tasks.base import options
from fedfa.tasks.classification import TensorClassification
from fedfa.tasks.data import place
from fedfa.tasks.tables import Rows


class TabularOptions(shards.ShardOptions):
    features: str | None = Field(
        default=None,
        min_length=1,
        description="the columns to learn from, separated by commas; all others if left out",
    )
    hidden: int = Field(default=64, ge=1, description="units of each hidden layer")
    layers: int = Field(default=2, ge=0, description="hidden layers")


class Standardise(nn.Module):
    """(x - mean) / std of each feature, constants that travel with the model."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows - self.mean) / self.std


class Tabular(TensorClassification):
    def __init__(self, spec: FederationSpec) -> None:
        self.options = chosen = options(spec, TabularOptions)
        if chosen.features is None:
            names = tables.column_names(place(chosen.data))
            self._features = [each for each in names if each not in (chosen.label, chosen.client)]
        else:
            self._features = [each.strip() for each in chosen.features.split(",")]
        columns = dict.fromkeys(self._features, tables.number) | {chosen.label: tables.name}
        found = shards.load(
            spec, chosen, lambda where, more: tables.read(where, {**columns, **more})
        )
        self._classes = found.classes

        def tensors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
            numbers = np.stack([rows.columns[name] for name in self._features], axis=1)
            return torch.from_numpy(numbers), torch.from_numpy(found.labels(rows))

        ends = np.cumsum([len(rows) for rows in found.train.values()])
        whole = tables.concatenate(chosen.data, list(found.train.values()))
        super().__init__(
            spec,
            train=tensors(whole),
            test=tensors(found.test),
            shards=dict(zip(found.train, np.split(np.arange(len(whole)), ends[:-1]), strict=True)),
        )

    def network(self) -> nn.Module:
        rows = self._train[0].double()
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        std[std == 0] = 1.0
        layers: list[nn.Module] = [Standardise(mean.float(), std.float())]
        width = len(self._features)
        for _ in range(self.options.layers):
            layers += [nn.Linear(width, self.options.hidden), nn.ReLU()]
            width = self.options.hidden
        return nn.Sequential(*layers, nn.Linear(width, len(self._classes)))

    def save(self, model: nn.Module, folder: Path) -> None:
        """The state dict, and what its inputs and outputs are called."""
        save_file(model.state_dict(), folder / "model.safetensors")
        names = {"features": self._features, "classes": self._classes}
        (folder / "config.json").write_text(json.dumps(names, indent=2) + "\n")
