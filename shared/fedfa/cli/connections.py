"""The broker and the bucket that the environment names, for commands that a person waits for."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings

from fedfa.errors import Misconfigured, NotFound
from fedfa.messages import AnyMessage
from fedfa.settings import BrokerSettings, StoreSettings, wrong_settings
from fedfa.store import DirectoryStore, ObjectStore, from_settings
from fedfa.topology import EVENTS

PUBLISH_SECONDS = 5.0

Folder = Annotated[
    Path | None,
    typer.Option(
        "--in", help="a folder of simulated runs, instead of the bucket", show_default=False
    ),
]

S = TypeVar("S", bound=BaseSettings)


class CommandStoreSettings(StoreSettings):
    """A person would rather see an outage than wait for its end."""

    outage_seconds: float = Field(default=5.0, ge=0, description="then an outage is reported")


def store(folder: Path | None = None) -> ObjectStore:
    """The configured bucket, or a folder of simulated runs."""
    if folder is None:
        return from_settings(store_settings())
    if not folder.is_dir():
        raise NotFound(f"--in {folder}: no such folder")
    return DirectoryStore(folder)


def store_settings(**given: str) -> StoreSettings:
    """given: what the command line says in place of the environment."""
    return read(CommandStoreSettings, **given)


def broker_settings() -> BrokerSettings:
    return read(BrokerSettings)


def publish(message: AnyMessage, settings: BrokerSettings) -> None:
    """Hand one hint to the scheduler. Raises BrokerUnavailable after a few seconds."""
    from fedfa.broker import Publisher  # pika is slow to import, and most commands need none of it

    publisher = Publisher(settings, name="fedfa-cli")
    try:
        publisher.publish(message, EVENTS, timeout_seconds=PUBLISH_SECONDS)
    finally:
        publisher.close(flush_seconds=0)


def read(kind: type[S], **given: Any) -> S:
    """Settings of the environment. Raises Misconfigured with a line for each wrong one."""
    try:
        return kind(**given)
    except ValidationError as error:
        raise Misconfigured("; ".join(wrong_settings(kind, error))) from error
