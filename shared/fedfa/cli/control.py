"""`fedfa submit` and `fedfa stop`: what changes a federation from outside."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from fedfa import spec as specs
from fedfa import submission
from fedfa.cli import connections, console
from fedfa.errors import FedfaError
from fedfa.settings import BrokerSettings
from fedfa.spec import FedAsync, FedAvg, FederationSpec, Submitted

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
Id = Annotated[str, typer.Argument(metavar="ID", help="the federation", show_default=False)]


def submit(spec: SpecFile, id: NewId = None, set: Assignments = None) -> None:
    """Check a spec and start a federation of it. Prints its id."""
    checked = specs.load(spec, assignments=set or ())
    federation = submission.new_id(spec.stem) if id is None else submission.check_id(id)
    broker = connections.broker_settings()
    submitted = submission.submit(connections.store(), checked, federation)
    if not is_installed(checked.task.name):
        console.warn(
            f"task.name: {checked.task.name} is not installed here (there are: "
            f"{', '.join(installed_tasks())}); {federation} waits until a trainer has it"
        )
    tell_scheduler(submitted, broker, "submitted")
    print(federation)


def stop(
    id: Id,
    reason: Annotated[str, typer.Option(help="kept in the log")] = "stopped by a person",
) -> None:
    """Ask a federation to end with what it has."""
    broker = connections.broker_settings()
    tell_scheduler(
        submission.request_stop(connections.store(), id, reason), broker, "asked to stop"
    )
    console.say(f"{id}: asked to stop; `fedfa watch {id}` shows its end")


def tell_scheduler(submitted: Submitted, broker: BrokerSettings, what: str) -> None:
    """Send the hint. Without it the scheduler finds the object in the bucket by itself, later."""
    try:
        connections.publish(submission.start_message(submitted), broker)
    except FedfaError as error:
        console.warn(
            f"{submitted.federation}: {what}, but the scheduler was not told ({error}); "
            "it will find the request in the bucket by itself"
        )


def installed_tasks() -> list[str]:
    return sorted(entry_points(group="fedfa.tasks").names)


def is_installed(task: str) -> bool:
    """Whether this machine has the task; a module:Class is only known to the trainers."""
    return ":" in task or task in installed_tasks()


def describe(spec: FederationSpec) -> str:
    """A spec in a few words."""
    rule = spec.rule
    clients = f"{spec.clients} clients" if spec.clients else "its own clients"
    window = "" if isinstance(rule, FedAvg | FedAsync) else f"K = {rule.window}, "
    return f"{spec.task.name} on {clients} by {rule.name}, {window}Mc = {spec.concurrency}"
