"""What the scheduler can do, and the next thing to do about one lease. PURE."""

from dataclasses import dataclass

from fedfa.messages import (
    AbandonJob,
    MarkPool,
    Order,
    StopFederation,
    UpdateReady,
    Work,
)
from fedfa.topology import UPDATES, Route, jobs
from fedfa_scheduler.known import Known, abandon, order
from fedfa_scheduler.leases import Attempts, Lease


@dataclass(frozen=True, slots=True)
class Send:
    """Publish a message; work is None for one about the whole federation."""

    message: Order | UpdateReady | AbandonJob | StopFederation | MarkPool
    route: Route
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """See whether the bucket already holds what this work makes; answer with `looked`."""

    federation: str
    work: Work


@dataclass(frozen=True, slots=True)
class FindModel:
    """Find the model of a version that is to be evaluated; answer with `model_found`."""

    federation: str
    work: Work


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Write why a version has no metrics, create-once; answer with `evaluated`."""

    federation: str
    version: int
    error: str


Action = Send | Look | FindModel | RecordFailure


def next_action(
    known: Known, lease: Lease, now: float, *, attempts: Attempts, ttl: float
) -> Action | None:
    """What a lease that has not expired calls for now."""
    if lease.stage == "owed" and now < lease.not_before:
        return None
    if lease.stage in ("delivered", "given_up") and not is_due(lease.sent_at, now, ttl):
        return None
    if lease.must_look:
        return Look(known.id, lease.work)
    if lease.stage == "owed":
        return _hand_out(known, lease, attempts, ttl)
    if lease.stage == "delivered" and lease.update is not None:
        return Send(lease.update, UPDATES, lease.work)
    if lease.stage == "given_up":
        return _give_up(known, lease, attempts)
    return None


def _hand_out(known: Known, lease: Lease, attempts: Attempts, ttl: float) -> Send | FindModel:
    message = order(known, lease, attempt=attempts.next(), ttl=ttl)
    if message is None:
        return FindModel(known.id, lease.work)
    return Send(message, jobs(lease.pool), lease.work)


def _give_up(known: Known, lease: Lease, attempts: Attempts) -> Send | RecordFailure | None:
    if lease.task == "train":
        attempt = max(lease.attempt, lease.ended) or attempts.next()
        return Send(abandon(known, lease, attempt=attempt), UPDATES, lease.work)
    if lease.task == "evaluate":
        return RecordFailure(known.id, lease.work[2], lease.reason)
    return None  # stop_of says it


def is_due(last: float | None, now: float, interval: float) -> bool:
    return last is None or now - last >= interval
