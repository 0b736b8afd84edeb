"""What lies in a queue, seen without taking anything out of it: dead letters, for people.

A letter is held, unacknowledged, while somebody looks at it. Whatever was not acknowledged by
then goes back to its place, also when the connection is lost.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from fedfa.broker.connection import NOT_FOUND, must_answer, visit
from fedfa.settings import BrokerSettings
from fedfa.topology import REASON_HEADER

MAX_LETTERS = 1000  # held at once; the oldest first


@dataclass(frozen=True, slots=True, eq=False)
class Letter:
    """died_at is in unix seconds, None if nobody noted it. ack() takes it out of the queue."""

    body: bytes
    reason: str
    died_at: float | None
    ack: Callable[[], None]


@contextmanager
def opened(settings: BrokerSettings, queue_name: str) -> Iterator[list[Letter]]:
    """The letters of a queue in order, held until the block ends; none if there is no queue."""
    with visit(settings, "letters") as (connection, channel):
        with must_answer(connection, settings, f"read {queue_name}"):
            letters = list(_held(channel, queue_name))
        yield letters


def _held(channel: BlockingChannel, queue_name: str) -> Iterator[Letter]:
    try:
        for _ in range(MAX_LETTERS):
            method, properties, body = channel.basic_get(queue_name)
            if method is None:
                return
            yield Letter(
                body=body,
                reason=_reason(properties.headers or {}),
                died_at=_died_at(properties),
                ack=partial(channel.basic_ack, method.delivery_tag),
            )
    except ChannelClosedByBroker as error:
        if error.reply_code != NOT_FOUND:
            raise


def _reason(headers: Mapping[str, Any]) -> str:
    """Ours, or the broker's own: a policy may move what was delivered too often."""
    if REASON_HEADER in headers:
        return str(headers[REASON_HEADER])
    if "x-first-death-reason" in headers:
        queue = headers.get("x-first-death-queue", "?")
        return f"moved by the broker from {queue}: {headers['x-first-death-reason']}"
    return "unknown"


def _died_at(properties: Any) -> float | None:
    """By the broker's note (a datetime) if it moved the letter, else when it was published."""
    deaths = (properties.headers or {}).get("x-death") or []
    if deaths and "time" in deaths[0]:
        return float(deaths[0]["time"].timestamp())
    return None if properties.timestamp is None else float(properties.timestamp)
