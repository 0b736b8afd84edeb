"""What the scheduler can do, and the next thing to do about one lease. PURE."""

from dataclasses import dataclass

from fedfa.delays import delay_seconds
from fedfa.messages import (
    AbandonJob,
    EvalJob,
    InitModel,
    MarkPool,
    Order,
    StopFederation,
    TrainJob,
    UpdateReady,
    Work,
)
from fedfa.topology import UPDATES, Route, jobs
from fedfa_scheduler.hearing import Hearing
from fedfa_scheduler.known import Known
from fedfa_scheduler.leases import Attempts, Lease


@dataclass(frozen=True, slots=True)
class Send:
    """Publish a message; work is None for one about the whole federation."""

    message: Order | UpdateReady | AbandonJob | StopFederation | MarkPool
    route: Route
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """See whether the bucket already holds what this work makes; answer with `looked`.

    has_expired: its lease has, unless the work is finished.
    """

    federation: str
    work: Work
    has_expired: bool = False


@dataclass(frozen=True, slots=True)
class FindModel:
    """Find the model of a version that is to be evaluated; answer with `model_found`."""

    federation: str
    work: Work


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Write why a version has no metrics, create-once; answer with `evaluated`."""

    federation: str
    work: Work
    error: str


Action = Send | Look | FindModel | RecordFailure


def next_action(
    known: Known, lease: Lease, now: float, *, attempts: Attempts, hearing: Hearing
) -> Action | None:
    """What a lease calls for now."""
    ttl = hearing.lease_ttl_seconds
    if hearing.has_expired(lease, now):
        return Look(known.id, lease.work, has_expired=True)
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
    message = _order(known, lease, attempt=attempts.next(), ttl=ttl)
    if message is None:
        return FindModel(known.id, lease.work)
    return Send(message, jobs(lease.pool), lease.work)


def _give_up(known: Known, lease: Lease, attempts: Attempts) -> Send | RecordFailure | None:
    if lease.work.activity == "train":
        attempt = max(lease.attempt, lease.ended) or attempts.next()
        return Send(_abandon(known, lease, attempt=attempt), UPDATES, lease.work)
    if lease.work.activity == "evaluate":
        return RecordFailure(known.id, lease.work, lease.reason)
    return None  # stop_of says it


def is_due(last: float | None, now: float, interval: float) -> bool:
    return last is None or now - last >= interval


def _order(known: Known, lease: Lease, *, attempt: str, ttl: float) -> Order | None:
    """The message that hands this work out; None while the model to evaluate is not found."""
    federation, uid = known.id, known.submission.uid
    if lease.work.activity == "init":
        return InitModel(federation=federation, uid=uid, attempt=attempt, lease_ttl_seconds=ttl)
    if lease.work.activity == "evaluate":
        if lease.model is None:
            return None
        return EvalJob(
            federation=federation,
            uid=uid,
            attempt=attempt,
            version=lease.model.version,
            key=lease.model.key,
            digest=lease.model.digest,
            lease_ttl_seconds=ttl,
        )
    spec = known.submission.spec
    return TrainJob(
        federation=federation,
        uid=uid,
        slot=lease.work.slot,
        generation=lease.work.generation,
        attempt=attempt,
        client=lease.client,
        opened_at=lease.opened_at,
        delay_seconds=delay_seconds(spec.delay, seed=spec.seed, client=lease.client),
        lease_ttl_seconds=ttl,
    )


def _abandon(known: Known, lease: Lease, *, attempt: str) -> AbandonJob:
    return AbandonJob(
        federation=known.id,
        uid=known.submission.uid,
        slot=lease.work.slot,
        generation=lease.work.generation,
        attempt=attempt,
        reason=lease.reason,
    )
