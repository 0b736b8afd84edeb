"""The broker and the bucket that the environment names, for whatever a person waits for."""

import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings

from fedfa.errors import FedfaError, Misconfigured, NotFound
from fedfa.settings import BrokerSettings, StoreSettings, wrong_settings
from fedfa.spec import Submission
from fedfa.store import DirectoryStore, ObjectStore, from_settings
from fedfa.submission import start_message
from fedfa.topology import EVENTS

PUBLISH_SECONDS = 5.0

S = TypeVar("S", bound=BaseSettings)


class CommandStoreSettings(StoreSettings):
    """A person would rather see an outage than wait for its end."""

    outage_seconds: float = Field(default=5.0, ge=0, description="then an outage is reported")


def store(folder: Path | None = None) -> ObjectStore:
    """The configured bucket, or a folder of simulated runs."""
    if folder is None:
        return from_settings(store_settings())
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder of runs")
    return DirectoryStore(folder)


def store_settings(**given: str) -> StoreSettings:
    """given: what the command line says in place of the environment."""
    return read(CommandStoreSettings, **given)


def broker_settings() -> BrokerSettings:
    return read(BrokerSettings)


def task_allow() -> list[str]:
    """Patterns of the modules that a spec's module:Class may name here."""
    return [*filter(None, os.environ.get("FEDFA_TRAINER_TASK_ALLOW", "").split(","))]


def find_run(run: str) -> tuple[ObjectStore, str]:
    """A federation by its id in the bucket, or by its folder where a simulation left it."""
    folder = Path(run).resolve()
    if (folder / "spec.json").is_file():
        return store(folder.parent), folder.name
    return store(), run


def announce(submitted: Submission, settings: BrokerSettings) -> str | None:
    """Hint the scheduler at a new spec, or stop. Returns why it was not told, which only delays.

    Without the hint the scheduler finds the object in the bucket by itself, later.
    """
    from fedfa.broker import Publisher  # pika is slow to import, and most commands need none of it

    publisher = Publisher(settings, name="fedfa-cli")
    try:
        publisher.publish(start_message(submitted), EVENTS, timeout_seconds=PUBLISH_SECONDS)
    except FedfaError as error:
        return (
            f"the scheduler was not told ({error}); it will find the request in the bucket by "
            "itself"
        )
    finally:
        publisher.close(flush_seconds=0)
    return None


def read(kind: type[S], **given: Any) -> S:
    """Settings of the environment. Raises Misconfigured with a line for each wrong one."""
    try:
        return kind(**given)
    except ValidationError as error:
        raise Misconfigured("; ".join(wrong_settings(kind, error))) from error
