"""A task of one's own: predict the course of diabetes, where five clinics keep their patients."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedfa.randomness import prf
from fedfa.spec import FederationSpec
from fedfa.tasks.base import Batch

NUM_CLINICS = 5


class Diabetes:
    def __init__(self, spec: FederationSpec) -> None:
        self.seed = spec.seed
        table, target = load_diabetes(return_X_y=True)
        patients = torch.tensor(table, dtype=torch.float32) * 20  # (442, 10), about unit variance
        progress = torch.tensor(target, dtype=torch.float32) / 100
        self.test = patients[::5], progress[::5]
        held_in = torch.arange(len(patients)) % 5 != 0
        patients, progress = patients[held_in], progress[held_in]
        by_age = patients[:, 0].argsort()  # each clinic treats one age group: a natural split
        self.shards = {
            f"clinic-{number}": TensorDataset(patients[rows], progress[rows])
            for number, rows in enumerate(by_age.chunk(NUM_CLINICS))
        }

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(prf(self.seed, "model"))
            return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))

    def clients(self) -> dict[str, int]:
        return {clinic: len(shard) for clinic, shard in self.shards.items()}

    def shard(self, client: str) -> TensorDataset:
        return self.shards[client]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        patients, progress = batch
        return functional.mse_loss(model(patients).squeeze(1), progress)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        patients, progress = (column.to(device) for column in self.test)
        loss = self.loss(model, (patients, progress)).item()
        return {"loss": loss, "r2": 1 - loss / progress.var(correction=0).item()}
