"""Tasks that a spec in a test may name, as tests.services.tasks:Class."""

import os
import time
from pathlib import Path
from typing import Any

from torch import nn

from fedfa.tasks.digits import Digits


class Hopeless(Digits):
    """Fails in its training and in its evaluation, the way mistakes in somebody's task do."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        raise ValueError("the labels are upside down")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        raise ValueError("nobody kept the test images")


class Worsening(Digits):
    """Every evaluation in a process measures less than the one before."""

    num_evaluations = 0

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        Worsening.num_evaluations += 1
        return {**super().evaluate(model), "accuracy": 1.0 / Worsening.num_evaluations}


class Slowed(Digits):
    """Trains slowly on each trainer that a file in the folder FEDFA_TEST_SLOW is named after."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if (Path(os.environ["FEDFA_TEST_SLOW"]) / os.environ["FEDFA_TRAINER_NAME"]).exists():
            time.sleep(1.0)
        return super().loss(model, batch)
