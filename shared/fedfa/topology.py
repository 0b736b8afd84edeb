"""Exchanges and queues as values: who publishes where, who consumes what.

Every queue has one exchange of the same name (job queues share one, routed by pool), so that
broker permissions can be given per exchange and queue. Whatever can be a policy (limits,
time-outs, dead-lettering) is left to policies: arguments are fixed for ever by the first
declaration.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes. A fanout route may reach nobody; any other must reach a queue."""

    exchange: str
    kind: Literal["direct", "fanout"] = "direct"
    routing_key: str = ""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue to consume.

    name "" asks for a private queue that ends with the connection. `exclusive` lets one
    consumer hold the queue and refuses a second one.
    """

    name: str
    route: Route
    arguments: dict[str, str | bool] = field(default_factory=dict)
    exclusive: bool = False


UPDATES = Route("fedfa.updates")
EVENTS = Route("fedfa.events")
DEAD = Route("fedfa.dead")
BROADCAST = Route("fedfa.broadcast", kind="fanout")
_JOBS_EXCHANGE = "fedfa.jobs"

UPDATES_QUEUE = Queue(
    "fedfa.updates", UPDATES, {"x-queue-type": "quorum", "x-single-active-consumer": True}
)
EVENTS_QUEUE = Queue("fedfa.events", EVENTS, {"x-queue-type": "classic"}, exclusive=True)
DEAD_QUEUE = Queue("fedfa.dead", DEAD, {"x-queue-type": "quorum"})
BROADCAST_QUEUE = Queue("", BROADCAST)


def jobs(pool: str) -> Route:
    return Route(_JOBS_EXCHANGE, routing_key=pool)


def jobs_queue(pool: str) -> Queue:
    return Queue(f"fedfa.jobs.{pool}", jobs(pool), {"x-queue-type": "quorum"})


def queue_of(route: Route) -> Queue | None:
    """The queue that keeps what is published on this route; None for a fanout."""
    if route.exchange == _JOBS_EXCHANGE:
        return jobs_queue(route.routing_key)
    return {q.route: q for q in (UPDATES_QUEUE, EVENTS_QUEUE, DEAD_QUEUE)}.get(route)
