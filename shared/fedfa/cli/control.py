"""`fedfa submit` and `fedfa stop`: what changes a federation from outside."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from fedfa import connections, spec_files, submission
from fedfa.cli import console
from fedfa.complaints import did_you_mean
from fedfa.errors import InvalidInput, InvalidSpec
from fedfa.merge import window_of
from fedfa.messages import MAX_TEXT_CHARACTERS
from fedfa.sections import Stop
from fedfa.settings import BrokerSettings
from fedfa.spec import FederationSpec, Submission

SpecFile = Annotated[
    Path, typer.Argument(metavar="SPEC", help="the federation's YAML file", show_default=False)
]
NewId = Annotated[
    str | None,
    typer.Option(
        "--id", help="name it; by default the file's name and a few digits", show_default=False
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="change a field of the spec, as in rule.server_lr=2.0; may be repeated",
        show_default=False,
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--in", help="a folder of simulated runs, instead of the bucket", show_default=False
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="the federation", show_default=False)]


def submit(spec: SpecFile, federation: NewId = None, assignments: Assignments = None) -> None:
    """Check a spec and start a federation of it. Prints its id."""
    checked = spec_files.load(spec, assignments=assignments or ())
    if federation is None:
        federation = submission.new_id(spec.stem)
    broker = connections.broker_settings()
    submitted = submission.submit(connections.store(), checked, federation)
    if not is_installed(checked.task.name):
        missing = _not_installed(checked.task.name)
        console.warn(f"{missing}; {federation} waits until a trainer has it")
    warn_of(checked)
    tell_scheduler(submitted, broker, "submitted")
    print(federation)


def stop(
    federation: Id,
    reason: Annotated[str, typer.Option(help="kept in the log")] = "stopped by a person",
) -> None:
    """Ask a federation to end with what it has."""
    if len(reason) > MAX_TEXT_CHARACTERS:
        raise InvalidInput(
            f"--reason: {len(reason)} characters; give at most {MAX_TEXT_CHARACTERS}"
        )
    broker = connections.broker_settings()
    tell_scheduler(
        submission.request_stop(connections.store(), federation, reason), broker, "asked to stop"
    )
    console.say(f"{federation}: asked to stop; `fedfa watch {federation}` shows its end")


def tell_scheduler(submitted: Submission, broker: BrokerSettings, what: str) -> None:
    if trouble := connections.announce(submitted, broker):
        console.warn(f"{submitted.federation}: {what}, but {trouble}")


def warn_of(spec: FederationSpec) -> None:
    if caution := submission.caution(spec):
        console.warn(caution)


def installed_tasks() -> list[str]:
    return sorted(entry_points(group="fedfa.tasks").names)


def is_installed(task: str) -> bool:
    """Whether this machine has the task; a module:Class is only known to the trainers."""
    return ":" in task or task in installed_tasks()


def check_task(spec: FederationSpec) -> None:
    """Raise InvalidSpec unless a run on this machine has the task."""
    if not is_installed(spec.task.name):
        raise InvalidSpec(f"{_not_installed(spec.task.name)}; or name it as module:Class")


def _not_installed(task: str) -> str:
    names = installed_tasks()
    return (
        f"task.name: {task} is not installed here{did_you_mean(task, names)}; there are: "
        f"{', '.join(names)}"
    )


def allowed_modules(spec: FederationSpec) -> list[str]:
    """The modules that tasks may be imported from here: what the user allowed or the spec names."""
    module, is_module, _ = spec.task.name.partition(":")
    return [*connections.task_allow(), *([module] if is_module else [])]


def describe(spec: FederationSpec) -> str:
    """A spec in a few words; that nothing in it ends the federation is worth one too."""
    rule, k = spec.rule, window_of(spec)
    clients = f"{spec.clients} clients" if spec.clients else "the clients of its data"
    window = "" if k is None else f"K = {k}, "
    endless = ", until it is stopped (the spec has no `stop`)" if spec.stop == Stop() else ""
    return f"{spec.task.name} on {clients} by {rule.name}, {window}Mc = {spec.concurrency}{endless}"
