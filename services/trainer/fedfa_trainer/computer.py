"""What runs a task's own code. A simulation of the protocol brings another computer."""

from collections.abc import Callable
from typing import Protocol

from torch import nn

from fedfa import training
from fedfa.gpu import PLAIN, Gpu
from fedfa.messages import TrainJob
from fedfa.randomness import prf
from fedfa.tasks.base import Task
from fedfa.tensors import FlatModel
from fedfa.training import LocalResult
from fedfa_trainer.warm import Warm


class Computer(Protocol):
    """For one piece of work at a time. Every method may raise whatever the task's code raises."""

    def build(self, task: Task) -> nn.Module:
        """A new module with its initial weights."""
        ...

    def train(
        self, warm: Warm, base: FlatModel, job: TrainJob, should_stop: Callable[[], bool]
    ) -> LocalResult:
        """Raises Cancelled soon after should_stop() says so."""
        ...

    def evaluate(self, warm: Warm, model: FlatModel) -> dict[str, float]: ...


class TorchComputer:
    """This machine's GPU, or its CPU."""

    def __init__(self, gpu: Gpu = PLAIN) -> None:
        self._device, self._gpu = training.best_device(), gpu

    def build(self, task: Task) -> nn.Module:
        return self._gpu.prepare(task.model(), self._device)

    def train(
        self, warm: Warm, base: FlatModel, job: TrainJob, should_stop: Callable[[], bool]
    ) -> LocalResult:
        spec = warm.submission.spec
        return training.local_update(
            warm.task,
            warm.module,
            base,
            client=job.client,
            spec=spec,
            seed=prf(spec.seed, "training", job.slot, job.generation),
            device=self._device,
            should_stop=should_stop,
            gpu=self._gpu,
        )

    def evaluate(self, warm: Warm, model: FlatModel) -> dict[str, float]:
        return training.evaluate(warm.task, warm.module, model, self._device)
