"""What a task is, and how a trainer finds it.

A task brings the model, the clients' data, the loss and the evaluation. It is named in the spec:
an installed entry point of the group "fedfa.tasks", or "module:Class" where a trainer allows it.
"""

import importlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import ValidationError
from torch import nn

from fedfa.complaints import describe, did_you_mean
from fedfa.errors import InvalidSpec, UnknownTask
from fedfa.sections import Section
from fedfa.spec import FederationSpec

Batch = tuple[torch.Tensor, ...]
Options = TypeVar("Options", bound=Section)

GROUP = "fedfa.tasks"
METHODS = ("model", "clients", "shard", "loss", "evaluate")


class Shard(Protocol):
    """A client's examples, each a tuple of tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


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

    def shard(self, client: str) -> Shard:
        """The examples of one of clients()."""
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
        names = task_names()
        raise UnknownTask(
            f"task.name: {name} is not installed{did_you_mean(name, names)}; there are: "
            f"{', '.join(names)}; install the package whose entry point {GROUP} it is, or name it "
            "as module:Class"
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
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, and its own imports fail: its author must see where
        raise UnknownTask(
            f"task.name: {name} does not load: {error}; installed tasks: {', '.join(task_names())}"
        ) from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise UnknownTask(
            f"task.name: {name} does not load: {error}; installed tasks: {', '.join(task_names())}"
        ) from error
