"""A task of five floats, whose training is a pseudo-random vector: no shard, no gradient."""

import torch
from torch import nn

from fedfa.spec import FederationSpec

EXAMPLES = 10


class Tiny:
    def __init__(self, spec: FederationSpec) -> None:
        assert spec.clients is not None
        self._num_clients = spec.clients

    def model(self) -> nn.Module:
        return Weights()

    def clients(self) -> dict[str, int]:
        return {f"client-{at:04d}": EXAMPLES + at for at in range(self._num_clients)}

    def shard(self, client: str) -> None: ...

    def loss(self) -> None: ...

    def evaluate(self) -> None: ...


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(5, dtype=torch.float32) / 10)
