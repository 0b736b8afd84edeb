"""The task my-task: which of two kinds a tumour is, where six hospitals keep their patients.

Replace the data and the network by your own; the five methods are all that FedFa asks for.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedfa.randomness import prf
from fedfa.spec import FederationSpec
from fedfa.tasks.base import Batch

NUM_HOSPITALS = 6


class MyTask:
    def __init__(self, spec: FederationSpec) -> None:
        self.seed = spec.seed
        table, kinds = load_breast_cancer(return_X_y=True)
        patients = torch.tensor(table, dtype=torch.float32)  # (569, 30)
        labels = torch.tensor(kinds, dtype=torch.int64)
        patients = (patients - patients.mean(0)) / patients.std(0)
        is_test = torch.arange(len(patients)) % 5 == 0
        self.test = patients[is_test], labels[is_test]
        patients, labels = patients[~is_test], labels[~is_test]
        self.shards = {
            f"hospital-{number}": TensorDataset(patients[rows], labels[rows])
            for number, rows in enumerate(torch.arange(len(patients)).chunk(NUM_HOSPITALS))
        }

    def model(self) -> nn.Module:
        """New, with weights that follow from the spec's seed alone: all trainers must agree."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(prf(self.seed, "model"))
            return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def clients(self) -> dict[str, int]:
        """Every client's name, and how many examples it has."""
        return {hospital: len(shard) for hospital, shard in self.shards.items()}

    def shard(self, client: str) -> TensorDataset:
        """The client's examples, as tuples of tensors."""
        return self.shards[client]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean over a batch of a shard; both lie on the same device."""
        patients, labels = batch
        return functional.cross_entropy(model(patients), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on data that nobody trained on; "loss" must be among them."""
        device = next(model.parameters()).device
        patients, labels = (column.to(device) for column in self.test)
        scores = model(patients)
        accuracy = (scores.argmax(1) == labels).float().mean()
        return {
            "loss": functional.cross_entropy(scores, labels).item(),
            "accuracy": accuracy.item(),
        }
