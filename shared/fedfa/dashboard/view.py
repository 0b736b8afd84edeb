"""A federation as the page draws it: one JSON value, a few tens of kilobytes at most.

Made from a Follower, and from what the scheduler knows. Times are seconds since submission, except
created_at (unix).
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import yaml

from fedfa.dashboard import people
from fedfa.dashboard.follower import Follower, Mark
from fedfa.log import Evaluation
from fedfa.merge import window_of
from fedfa.spec import FederationSpec
from fedfa.summary import (
    RATE_SECONDS,
    Measured,
    best_of,
    held_up,
    leading_metric,
    measurements,
    towards,
    waiting_for,
)

MOST_METRICS = 8
BUCKETS = 80  # of the rate

Json = dict[str, Any]


def view_of(follower: Follower, *, live: Json | None = None, now: float = 0.0) -> Json:
    """live: what the scheduler knows of it (an entry of /federations), where there is one.

    now: unix seconds; they matter only before the first model.
    """
    submission, newest = follower.submission, follower.newest
    spec, created_at = submission.spec, submission.created_at
    state = newest.state if newest else None
    marks = follower.curve()
    until = newest.at if newest else created_at
    evaluations = follower.evaluations.values()
    metric = leading_metric(spec.stop, evaluations)
    measured = measurements(evaluations, metric, since=created_at) if metric else []
    rate = _rate_now(follower)
    version, merged = (state.version, state.num_merged) if state else (0, 0)
    progress = eta = None
    if state is None or state.status == "running":
        progress, eta = towards(spec.stop, merged, version, until - created_at, rate)
    return {
        "id": submission.federation,
        "uid": submission.uid,
        "created_at": created_at,
        "status": state.status if state else "waiting",
        "reason": state.reason if state else waiting_for(spec, now - created_at),
        "messages": _messages(live),
        "task": spec.task.name,
        "rule": spec.rule.name,
        "window": window_of(spec),
        "concurrency": spec.concurrency,
        "seconds": round(until - created_at, 3),
        "version": version,
        "final_version": state.final_version if state else None,
        "manifest": newest.n if newest else None,
        "decisions": state.num_decisions if state else 0,
        "merged": merged,
        "rejected": state.num_rejected if state else 0,
        "abandoned": state.num_abandoned if state else 0,
        "held_up": held_up(state) if state else "",
        "waiting_slots": sum(not slot.is_open for slot in state.slots) if state else 0,
        "updates_per_second": round(rate, 4),
        "progress": progress,
        "eta_seconds": eta,
        "metric": metric,
        "latest": _measured(measured[-1]) if measured else None,
        "best": _measured(best_of(measured, metric)),
        "target": spec.stop.target.model_dump() if spec.stop.target else None,
        "evaluation_error": _failure(follower),
        "metrics": _metrics(evaluations, metric, created_at),
        "versions": {
            "seconds": [round(mark.at - created_at, 3) for mark in marks],
            "version": [mark.version for mark in marks],
            "per_minute": _rates(marks, created_at),
        },
        "staleness": _staleness(follower),
        "slots": people.slots(follower, live),
        "trainers": people.trainers(follower, live),
        "pools": people.pools(follower),
        "clients": people.clients(follower),
        "bytes": _bytes(follower),
        "notable": [
            {
                "n": row.n,
                "at": round(row.at - created_at, 3),
                "outcome": row.outcome,
                "client": row.client,
                "slot": row.slot,
                "generation": row.generation,
                "trainer": row.trainer,
                "version": row.version,
                "reason": row.reason,
            }
            for _, _, row in reversed(follower.totals.notable)
        ],
        "coverage": round(follower.coverage, 4),
        "is_drawable": follower.is_drawable,
    }


def spec_text(spec: FederationSpec) -> str:
    """The spec as YAML that can be submitted again."""
    return yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True), sort_keys=False)


def brief_metrics(evaluations: list[Evaluation], spec: FederationSpec) -> Json:
    """A federation's headline metric, small, for the list."""
    metric = leading_metric(spec.stop, evaluations)
    points = [each.metrics[metric] for each in evaluations if metric and metric in each.metrics]
    return {
        "metric": metric,
        "latest": points[-1] if points else None,
        "target": spec.stop.target.value if spec.stop.target else None,
        "spark": [_short(value) for value in points],
    }


def _measured(point: Measured | None) -> Json | None:
    if point is None:
        return None
    return {"version": point.version, "value": point.value, "seconds": round(point.seconds, 3)}


def _metrics(evaluations: list[Evaluation], metric: str | None, created_at: float) -> Json:
    measured = [each for each in evaluations if each.metrics]
    names = {name for each in measured for name in each.metrics}
    ordered = sorted(names, key=lambda name: (name != metric, name))[:MOST_METRICS]
    return {
        "version": [each.version for each in measured],
        "seconds": [round(each.at - created_at, 3) for each in measured],
        "values": {
            name: [
                _short(each.metrics[name]) if name in each.metrics else None for each in measured
            ]
            for name in ordered
        },
    }


def _short(value: float) -> float | None:
    """JSON has no infinity, and six digits are more than a screen shows."""
    return float(f"{value:.6g}") if abs(value) < float("inf") else None


def _rate_now(follower: Follower) -> float:
    """Merged updates a second: over the whole run once it is over, else over its last minute."""
    newest, born_at = follower.newest, follower.born_at
    if newest is None or born_at is None:
        return 0.0
    marks = follower.marks.values()
    start = born_at if newest.state.status != "running" else max(born_at, newest.at - RATE_SECONDS)
    before = [mark for mark in marks if mark.at <= start]
    since = before[-1] if before else Mark(born_at, 0, 0, 0)
    return (newest.state.num_merged - since.merged) / max(newest.at - since.at, 1e-3)


def _rates(marks: list[Mark], created_at: float) -> Json:
    """Versions per minute in buckets of one width, from the versions at their edges."""
    if len(marks) < 5:
        return {"seconds": [], "rate": []}
    start, end = marks[0].at, marks[-1].at
    num = min(BUCKETS, max(2, len(marks) // 5))
    width = (end - start) / num
    if width <= 0:
        return {"seconds": [], "rate": []}
    edges = [start + width * at for at in range(num + 1)]
    levels = list(_levels(marks, edges))
    return {
        "seconds": [round(edge - created_at + width / 2, 3) for edge in edges[:-1]],
        "rate": [round((b - a) / width * 60, 3) for a, b in pairwise(levels)],
    }


def _levels(marks: list[Mark], times: list[float]) -> Iterable[float]:
    """The version at each time, in between marks on a line."""
    at = 0
    for time in times:
        while at + 2 < len(marks) and marks[at + 1].at < time:
            at += 1
        left, right = marks[at], marks[at + 1]
        share = (time - left.at) / max(right.at - left.at, 1e-9)
        yield left.version + min(1.0, max(0.0, share)) * (right.version - left.version)


def _staleness(follower: Follower) -> Json:
    histogram = follower.totals.staleness
    mean = histogram.sum / histogram.total if histogram.total else None
    return {
        "width": histogram.width,
        "counts": histogram.counts,
        "mean": None if mean is None else round(mean, 3),
        "max": histogram.max,
    }


def _failure(follower: Follower) -> Json | None:
    failed, latest = follower.evaluations.failed, follower.evaluations.latest
    if failed is None or (latest is not None and latest.version > failed.version):
        return None
    return {"version": failed.version, "error": failed.error}


def _messages(live: Json | None) -> list[str]:
    """Complaints, and what failed of the work that takes no slot."""
    if live is None:
        return []
    names = {"init": "the first model", "evaluate": "an evaluation"}
    failures = [
        f"{names[job['task']]} failed: {job['error']}"
        for job in live["jobs"]
        if job["task"] in names and job["error"]
    ]
    return [*live["messages"], *failures]


def _bytes(follower: Follower) -> Json | None:
    """Computed from the tensors' sizes; headers and repeated tries are not in it."""
    if follower.newest is None or follower.birth is None:
        return None
    size, state = follower.birth.template.size_bytes, follower.newest.state
    updates = state.num_merged + state.num_rejected
    share = (follower.newest.n + 1) / max(1, follower.totals.manifests)
    return {
        "model": size,
        "updates_stored": updates * size,
        "models_read": updates * size,
        "updates_read": updates * size,
        "models_stored": round(follower.totals.models * share) * size,
    }
