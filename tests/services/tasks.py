"""Tasks that a spec in a test may name, as tests.services.tasks:Class."""

from typing import Any

from torch import nn

from fedfa.tasks.digits import Digits


class Hopeless(Digits):
    """Fails in its training and in its evaluation, the way mistakes in somebody's task do."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        raise ValueError("the labels are upside down")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        raise ValueError("nobody kept the test images")
