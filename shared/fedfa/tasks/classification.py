"""What every classification shares: the model's seed, cross-entropy, accuracy on held-out batches.

`Classification` leaves it to its subclass where the examples are; `TensorClassification` has them
in memory and deals them out as the spec's partition says.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fedfa.errors import InvalidData
from fedfa.partition import Indices, split
from fedfa.randomness import prf
from fedfa.spec import FederationSpec
from fedfa.tasks.base import Batch, Shard

EVALUATION_BATCH = 500


class Classification(ABC):
    """Says what a network is, its examples and its scores; the labels are a batch's last column."""

    def __init__(self, spec: FederationSpec, num_examples: Mapping[str, int]) -> None:
        """num_examples: of each client."""
        self.spec = spec
        self._num_examples = num_examples

    @abstractmethod
    def network(self) -> nn.Module:
        """A new model; torch's generator is seeded by the caller."""

    @abstractmethod
    def examples(self, client: str) -> Shard:
        """The shard of a client there is."""

    @abstractmethod
    def held_out(self) -> Iterable[Batch]:
        """Everything that `evaluate` measures, in batches."""

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """What the model sees of a batch of examples: scale, normalise or augment here."""
        return examples

    def scores(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """(n, classes)"""
        scores: torch.Tensor = model(self.inputs(batch[0]))
        return scores

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(prf(self.spec.seed, "model"))
            return self.network()

    def clients(self) -> Mapping[str, int]:
        return self._num_examples

    def shard(self, client: str) -> Shard:
        if client not in self._num_examples:
            raise InvalidData(f"{client}: no such client, there are {len(self._num_examples)}")
        return self.examples(client)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(self.scores(model, batch), batch[-1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean cross-entropy and accuracy."""
        device = next(model.parameters()).device
        loss, num_correct, num_examples = 0.0, 0, 0
        for batch in self.held_out():
            moved = tuple(column.to(device) for column in batch)
            scores, labels = self.scores(model, moved), moved[-1]
            loss += functional.cross_entropy(scores, labels, reduction="sum").item()
            num_correct += int((scores.argmax(1) == labels).sum())
            num_examples += len(labels)
        return {"loss": loss / num_examples, "accuracy": num_correct / num_examples}


class TensorClassification(Classification):
    """A task over tensors in memory. A subclass calls __init__ with its data; it has `network`."""

    def __init__(
        self,
        spec: FederationSpec,
        *,
        train: tuple[torch.Tensor, torch.Tensor],
        test: tuple[torch.Tensor, torch.Tensor],
        shards: Mapping[str, Indices] | None = None,
    ) -> None:
        """train, test: (examples, labels), first dimension the same; labels int64.

        shards: which of the training examples each client owns; dealt out by the spec if None.
        """
        if shards is None:
            dealt = split(train[1].numpy(), spec.partition, spec.clients or 0, spec.seed)
            shards = {client_name(number): shard for number, shard in enumerate(dealt)}
        super().__init__(spec, {client: len(indices) for client, indices in shards.items()})
        self._train, self._test = train, test
        self._shards = {client: torch.from_numpy(indices) for client, indices in shards.items()}

    def examples(self, client: str) -> TensorDataset:
        indices = self._shards[client]
        return TensorDataset(*(column[indices] for column in self._train))

    def held_out(self) -> Iterable[Batch]:
        return zip(*(torch.split(column, EVALUATION_BATCH) for column in self._test), strict=True)


def client_name(number: int) -> str:
    """The name of the client of this number in the spec's partition."""
    return f"client-{number:04d}"
