"""What the scheduler shows over HTTP: plain JSON values made from the fleet."""

from typing import Any

from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.known import Known
from fedfa_scheduler.leases import Lease

NUM_EVALUATIONS = 5


def open_jobs(fleet: Fleet) -> dict[str, Any]:
    pools = fleet.open_jobs()
    return {"open_jobs": sum(pools.values()), "pools": pools}


def federations(fleet: Fleet, now: float, *, troubles: dict[str, str]) -> list[dict[str, Any]]:
    """troubles: federation -> why its objects cannot be read."""
    shown = [_federation(fleet, known, now, troubles) for known in fleet.federations.values()]
    unread = troubles.keys() - fleet.federations.keys()
    return shown + [
        {"id": each, "status": "unreadable", "messages": [troubles[each]]}
        for each in sorted(unread)
    ]


def _federation(fleet: Fleet, known: Known, now: float, troubles: dict[str, str]) -> dict[str, Any]:
    state = known.value.state if known.value is not None else None
    latest = sorted(known.evaluations)[-NUM_EVALUATIONS:]
    messages = [troubles[known.id]] if known.id in troubles else []
    return {
        "id": known.id,
        "status": known.status,
        "reason": state.reason if state else "",
        "version": state.version if state else None,
        "final_version": state.final_version if state else None,
        "merged": state.num_merged if state else 0,
        "rejected": state.num_rejected if state else 0,
        "abandoned": state.num_abandoned if state else 0,
        "jobs": [_lease(lease, now) for lease in known.leases.values()],
        "evaluations": [
            {
                "version": version,
                "metrics": known.evaluations[version].metrics,
                "error": known.evaluations[version].error,
            }
            for version in latest
        ],
        "messages": messages + _complaints(fleet, known, now),
    }


def _lease(lease: Lease, now: float) -> dict[str, Any]:
    work = lease.work
    is_job = work.activity == "train"
    return {
        "task": work.activity,
        "client": lease.client or None,
        "slot": work.slot if is_job else None,
        "generation": work.generation if is_job else None,
        "version": work.version if work.activity == "evaluate" else None,
        "pool": lease.pool,
        "attempt": lease.attempt or None,
        "stage": lease.stage,
        "claimed": lease.stage == "claimed",
        "trainer": lease.trainer or None,
        "age_seconds": round(now - lease.since, 3),
        "failures": lease.failures,
        "error": lease.error or None,
    }


def _complaints(fleet: Fleet, known: Known, now: float) -> list[str]:
    complaints = [
        f"no trainer has task {task}" + ("" if known.pools <= {pool} else f" in pool {pool}")
        for pool, task in fleet.trainers.missing_tasks(known, now)
    ]
    if known.value is not None and known.is_alive:
        complaints += [
            f"pool {pool} is down, it has no trainer"
            for pool in sorted(known.pools)
            if known.value.is_down(pool)
        ]
    target = known.submission.spec.stop.target
    measured = [each for each in known.evaluations.values() if each.metrics]
    if target and measured and not any(target.metric in each.metrics for each in measured):
        names = ", ".join(sorted(measured[-1].metrics))
        complaints.append(f"stop.target: no evaluation has {target.metric!r}, they have {names}")
    return complaints
