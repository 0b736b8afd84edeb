"""Which version's evaluation runs: at most one of a federation at a time. PURE."""

from fedfa.messages import JobFacts, JobFailed, JobReleased
from fedfa_scheduler.known import Known
from fedfa_scheduler.leases import Lease


def plan(known: Known, now: float, *, is_new: bool) -> Lease | None:
    """A new lease on the newest version that is due, unless it was evaluated or another is running.

    One that must be handed out again gives way to a newer one; one in a queue cannot be
    withdrawn, so it counts as running.
    """
    version = known.wanted_version
    for lease in known.evaluation_leases:
        if lease.stage == "owed" and lease.work.version != version:
            del known.leases[lease.work]
    if version is None or known.evaluation_leases:
        return None
    lease = known.open(known.work("evaluate", version=version), now=now, is_new=is_new)
    if known.model is not None and known.model.version == version:
        lease.model = known.model
    return lease


def adopt(known: Known, fact: JobFacts, now: float) -> Lease | None:
    """An evaluation that runs since before this scheduler's start takes the place of ours."""
    version, leases = fact.version, known.evaluation_leases
    if fact.task != "evaluate" or version is None or version in known.evaluations:
        return None
    if isinstance(fact, JobFailed | JobReleased) or any(lease.attempt for lease in leases):
        return None  # it runs no more; or ours was handed out, and this one is a zombie
    if known.model is None or version > known.model.version:
        return None
    for lease in leases:
        del known.leases[lease.work]
    return known.open(fact.work, now=now, is_new=False)
