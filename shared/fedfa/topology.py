"""Exchanges and queues as values: who publishes where, who consumes what.

Every queue has one exchange of the same name (job queues share one, routed by pool), so that
broker permissions can be given per exchange and queue. Whatever can be a policy (time-outs,
dead-lettering, lower limits) is left to policies: arguments are fixed for ever by the first
declaration.
"""

from dataclasses import dataclass, field
from typing import Literal

from fedfa.messages import (
    AbandonJob,
    AnyMessage,
    EvalJob,
    EvalReady,
    InitModel,
    InitReady,
    JobFacts,
    MarkPool,
    ModelReady,
    RollCall,
    StartFederation,
    StopFederation,
    TrainJob,
    UpdateReady,
)


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
    arguments: dict[str, str | bool | int] = field(default_factory=dict)
    exclusive: bool = False


UPDATES = Route("fedfa.updates")
EVENTS = Route("fedfa.events")
DEAD = Route("fedfa.dead")
BROADCAST = Route("fedfa.broadcast", kind="fanout")
_JOBS_EXCHANGE = "fedfa.jobs"
REASON_HEADER = "fedfa-reason"  # of a message in DEAD
MAX_REASON_CHARACTERS = 1000


def buried_because(reason: str) -> dict[str, str]:
    """The headers of a dead letter: its reason, bounded, and such as any wire can carry."""
    text = reason[:MAX_REASON_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    return {REASON_HEADER: text}


# RabbitMQ 4 drops a message after 21 deliveries by default, and every lost connection and every
# look at a dead letter counts as one. (-1 means "never", but with it 3.10 drops after one.)
QUORUM: dict[str, str | bool | int] = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
UPDATES_QUEUE = Queue("fedfa.updates", UPDATES, QUORUM | {"x-single-active-consumer": True})
EVENTS_QUEUE = Queue("fedfa.events", EVENTS, {"x-queue-type": "classic"}, exclusive=True)
DEAD_QUEUE = Queue("fedfa.dead", DEAD, QUORUM)
BROADCAST_QUEUE = Queue("", BROADCAST)


def jobs(pool: str) -> Route:
    return Route(_JOBS_EXCHANGE, routing_key=pool)


def jobs_queue(pool: str) -> Queue:
    return Queue(f"fedfa.jobs.{pool}", jobs(pool), QUORUM)


def queue_of(route: Route) -> Queue | None:
    """The queue that keeps what is published on this route; None for a fanout."""
    if route.exchange == _JOBS_EXCHANGE:
        return jobs_queue(route.routing_key)
    return {q.route: q for q in (UPDATES_QUEUE, EVENTS_QUEUE, DEAD_QUEUE)}.get(route)


def home_of(message: AnyMessage) -> Route | None:
    """Where this kind of message is consumed; None for work, which the scheduler hands out."""
    match message:
        case UpdateReady() | InitReady() | AbandonJob() | StopFederation() | MarkPool():
            return UPDATES
        case StartFederation() | EvalReady() | JobFacts():
            return EVENTS
        case ModelReady() | RollCall():
            return BROADCAST
        case TrainJob() | EvalJob() | InitModel():
            return None
