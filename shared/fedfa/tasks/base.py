"""What a task is, how a trainer finds it, and a base for classification of in-memory tensors.

A task brings the model, the clients' data, the loss and the evaluation. It is named in the spec:
an installed entry point of the group "fedfa.tasks", or "module:Class" where a trainer allows it.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from fedfa import spec as specs
from fedfa.complaints import describe
from fedfa.errors import InvalidData, InvalidSpec, UnknownTask
from fedfa.partition import split
from fedfa.randomness import prf
from fedfa.spec import FederationSpec

Batch = tuple[torch.Tensor, ...]
Options = TypeVar("Options", bound=specs.Section)

GROUP = "fedfa.tasks"
METHODS = ("model", "clients", "shard", "loss", "evaluate")
EVALUATION_BATCH = 500


class Task(Protocol):
    """The five methods of a task, whose constructor takes the FederationSpec.

    Two trainers with the same spec and data must agree on model() and clients().
    """

    def model(self) -> nn.Module:
        """A new module with its initial weights, a function of spec.seed alone.

        Parameters with requires_grad, and buffers, are exchanged; frozen parameters never are.
        """
        ...

    def clients(self) -> Mapping[str, int]:
        """Every client's name and its number of examples."""
        ...

    def shard(self, client: str) -> Dataset[Any]:
        """One client's examples: map-style with a length, each a tuple of tensors."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean loss over a batch, which lies on the model's device."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data, "loss" among them. The model is in eval mode, on its device."""
        ...


@runtime_checkable
class Saving(Protocol):
    """What a task may have besides: the form in which its own ecosystem loads a model."""

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model, whole or what was trained of it, as safetensors in a folder."""
        ...


class TensorClassification:
    """A task over tensors in memory: the spec's partition, cross-entropy, accuracy.

    A subclass calls __init__ with its data and says what `network()` is.
    """

    def __init__(
        self, spec: FederationSpec, *, train: tuple[torch.Tensor, torch.Tensor], test: Batch
    ) -> None:
        """train, test: (examples, labels), first dimension the same; labels int64."""
        assert spec.clients is not None or spec.partition.kind == "natural"
        self.spec = spec
        self._train, self._test = train, test
        shards = split(train[1].numpy(), spec.partition, spec.clients or 0, spec.seed)
        self._shards = {
            f"client-{number:04d}": torch.from_numpy(shard) for number, shard in enumerate(shards)
        }

    def network(self) -> nn.Module:
        """A new model; torch's generator is seeded by the caller."""
        raise NotImplementedError

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """What the model sees of a batch of examples: scale, normalise or augment here."""
        return examples

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(prf(self.spec.seed, "model"))
            return self.network()

    def clients(self) -> Mapping[str, int]:
        return {client: len(indices) for client, indices in self._shards.items()}

    def shard(self, client: str) -> TensorDataset:
        if client not in self._shards:
            raise InvalidData(f"{client}: no such client, there are {len(self._shards)}")
        indices = self._shards[client]
        return TensorDataset(*(column[indices] for column in self._train))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        examples, labels = batch
        return functional.cross_entropy(model(self.inputs(examples)), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        return metrics(
            (model(self.inputs(examples.to(device))), labels.to(device))
            for examples, labels in zip(
                *(torch.split(column, EVALUATION_BATCH) for column in self._test), strict=True
            )
        )


def metrics(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Mean cross-entropy and accuracy over batches of scores (n, classes) and labels (n,)."""
    loss, num_correct, num_examples = 0.0, 0, 0
    for scores, labels in batches:
        loss += functional.cross_entropy(scores, labels, reduction="sum").item()
        num_correct += int((scores.argmax(1) == labels).sum())
        num_examples += len(labels)
    return {"loss": loss / num_examples, "accuracy": num_correct / num_examples}


def options(spec: FederationSpec, schema: type[Options]) -> Options:
    """The spec's task.options as this task's own schema, or InvalidSpec."""
    try:
        return schema.model_validate(spec.task.options)
    except ValidationError as error:
        raise InvalidSpec(f"task.options of {spec.task.name}: {describe(error, schema)}") from error


def task_names() -> list[str]:
    """The installed tasks."""
    return sorted(entry_points(group=GROUP).names)


def load(spec: FederationSpec, allowed: Sequence[str]) -> Task:
    """The spec's task, built. `allowed` are patterns of modules that "module:Class" may name."""
    name = spec.task.name
    found = _from_module(name, allowed) if ":" in name else _installed(name)
    lacking = [method for method in METHODS if not callable(getattr(found, method, None))]
    if not callable(found) or lacking:
        raise InvalidSpec(f"task.name: {name} is not a task, it lacks {', '.join(lacking)}")
    task: Task = found(spec)
    return task


def clients_of(task: Task) -> dict[str, int]:
    """What clients() says, sorted by name, or InvalidSpec where it is not names and numbers."""
    clients: object = task.clients()
    if not isinstance(clients, Mapping):
        raise InvalidSpec(f"task: clients() gave {clients!r:.100}; give a dict of name to number")
    for name, number in clients.items():
        is_count = isinstance(number, int) and number >= 0
        if not isinstance(name, str) or not name or not is_count:
            raise InvalidSpec(
                f"task: clients() has {name!r:.100}: {number!r:.100}; give each client's name "
                "as a str and its number of examples as an int"
            )
    return dict(sorted(clients.items()))


def _installed(name: str) -> Any:
    found = entry_points(group=GROUP, name=name)
    if not found:
        raise UnknownTask(
            f"task.name: {name} is not installed, there are: {', '.join(task_names())}; "
            f"install the package whose entry point {GROUP} it is, or name it as module:Class"
        )
    try:
        return next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise UnknownTask(f"task.name: {name} is installed but does not load: {error}") from error


def _from_module(name: str, allowed: Sequence[str]) -> Any:
    module, _, attribute = name.partition(":")
    if not any(fnmatchcase(module, pattern) for pattern in allowed):
        raise UnknownTask(
            f"task.name: module {module} is not allowed on this trainer (allowed: "
            f"{', '.join(allowed) or 'none'}; installed tasks: {', '.join(task_names())}); "
            "add it to the trainer's allowed task modules, or install it as an entry point"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownTask(
            f"task.name: {name} does not load: {error}; installed tasks: {', '.join(task_names())}"
        ) from error
