"""What a person wants to know about a federation, as one flat value: status, progress, quality.

`status --json`, `watch --json` and a run's summary.json are this value's fields. PURE.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fedfa.federation import State
from fedfa.log import Evaluation
from fedfa.rows import History, Row
from fedfa.sections import Stop
from fedfa.spec import FederationSpec

RATE_SECONDS = 60.0  # updates per second are counted over this long
PATIENCE_SECONDS = 30.0  # a first model that takes longer may need help
REFUSED = ("rejected", "abandoned")
MOST_NAMED = 3  # of the clients that slots wait for
LOWER_IS_BETTER = frozenset({"loss"})


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of an evaluated version, and how long after submission it was known."""

    version: int
    value: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One federation now.

    status: "waiting" before the first model, then the federation's own. seconds: since
    submission, until now or the end. progress, eta_seconds: towards the nearest counted stop
    condition; None where there is none to extrapolate (a target metric is not counted).
    """

    federation: str
    status: str
    reason: str
    seconds: float
    version: int
    final_version: int | None
    merged: int
    rejected: int
    abandoned: int
    open_jobs: int
    concurrency: int
    held_up: str  # the open jobs that a round or a full buffer waits for; "" if none does
    updates_per_second: float
    staleness_mean: float | None
    staleness_max: int | None
    metric: str | None
    latest: Measured | None
    best: Measured | None
    target: float | None
    progress: float | None
    eta_seconds: float | None
    metrics: dict[str, float]  # all of the newest evaluation
    refusal: str | None  # why the newest rejected or abandoned job was refused
    refused: str | None  # which job that was, and whose
    evaluation_error: str | None  # why the newest evaluation has no metrics

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(history: History, *, now: float) -> Summary:
    """`now` in unix seconds; it matters only while the federation runs."""
    state, spec = history.state, history.submission.spec
    until = history.at if history.has_ended else now
    seconds = max(0.0, until - history.submission.created_at)
    staleness = [row.staleness for row in history.merged if row.staleness is not None]
    metric = headline(history)
    measured = series(history, metric) if metric else []
    rate = _rate(history, until)
    num_merged, version = (state.num_merged, state.version) if state else (0, 0)
    refusal = _newest_refusal(history)
    progress, eta = None, None
    if not history.has_ended:
        progress, eta = towards(spec.stop, num_merged, version, seconds, rate)
    return Summary(
        federation=history.submission.federation,
        status=state.status if state else "waiting",
        reason=state.reason if state else waiting_for(spec, seconds),
        seconds=seconds,
        version=version,
        final_version=state.final_version if state else None,
        merged=num_merged,
        rejected=state.num_rejected if state else 0,
        abandoned=state.num_abandoned if state else 0,
        open_jobs=sum(slot.is_open for slot in state.slots) if state else 0,
        concurrency=spec.concurrency,
        held_up=held_up(state) if state else "",
        updates_per_second=rate,
        staleness_mean=sum(staleness) / len(staleness) if staleness else None,
        staleness_max=max(staleness, default=None),
        metric=metric,
        latest=measured[-1] if measured else None,
        best=best_of(measured, metric),
        target=spec.stop.target.value if spec.stop.target else None,
        progress=progress,
        eta_seconds=eta,
        metrics=_newest_metrics(history.evaluations),
        refusal=refusal.reason if refusal else None,
        refused=_whose(refusal) if refusal else None,
        evaluation_error=history.evaluations[-1].error if history.evaluations else None,
    )


def waiting_for(spec: FederationSpec, seconds: float) -> str:
    hint = "; the trainers' logs say why they hand it back" if seconds > PATIENCE_SECONDS else ""
    return f"for its first model, from a trainer that has the task {spec.task.name}{hint}"


def held_up(state: State) -> str:
    """The open jobs that the other slots wait for; "" where slots open again one by one."""
    still = [
        f"{slot.client} (job {number}-{slot.generation})"
        for number, slot in enumerate(state.slots)
        if slot.is_open
    ]
    num_waiting = len(state.slots) - len(still)
    if not num_waiting or not still:
        return ""
    more = f" and {len(still) - MOST_NAMED} more" if len(still) > MOST_NAMED else ""
    refused = state.failures_in_a_row
    last = f"; jobs refused in a row: {refused}" if refused else ""
    named = ", ".join(still[:MOST_NAMED])
    return f"{num_waiting} of {len(state.slots)} slots wait for {named}{more}{last}"


def _newest_refusal(history: History) -> Row | None:
    return next((row for row in reversed(history.rows) if row.outcome in REFUSED), None)


def _whose(row: Row) -> str:
    where = f" on {row.trainer}" if row.trainer else ""
    return f"{row.client}, job {row.slot}-{row.generation}{where}"


def metric_names(history: History) -> list[str]:
    """Every metric that was evaluated, the headline first."""
    names = {name for evaluation in history.evaluations for name in evaluation.metrics}
    first = headline(history)
    return sorted(names, key=lambda name: (name != first, name))


def headline(history: History) -> str | None:
    """The metric to show when there is room for one: the target's, else accuracy, else any."""
    return leading_metric(history.submission.spec.stop, history.evaluations)


def leading_metric(stop: Stop, evaluations: Iterable[Evaluation]) -> str | None:
    if stop.target is not None:
        return stop.target.metric
    names = {name for evaluation in evaluations for name in evaluation.metrics}
    ranked = sorted(names, key=lambda name: (name != "accuracy", name in LOWER_IS_BETTER, name))
    return ranked[0] if ranked else None


def series(history: History, metric: str) -> list[Measured]:
    """A metric over the versions that have it."""
    return measurements(history.evaluations, metric, since=history.submission.created_at)


def measurements(evaluations: Iterable[Evaluation], metric: str, *, since: float) -> list[Measured]:
    return [
        Measured(each.version, each.metrics[metric], each.at - since)
        for each in evaluations
        if metric in each.metrics
    ]


def best_of(measured: list[Measured], metric: str | None) -> Measured | None:
    return max(measured, key=lambda one: goodness(metric, one.value), default=None)


def goodness(metric: str | None, value: float) -> float:
    """A value of a metric as a number that is greater where it is better."""
    return -value if metric in LOWER_IS_BETTER else value


def _newest_metrics(evaluations: tuple[Evaluation, ...]) -> dict[str, float]:
    for evaluation in reversed(evaluations):
        if evaluation.metrics:
            return evaluation.metrics
    return {}


def _rate(history: History, until: float) -> float:
    """Merged updates a second: over the whole run once it is over, else over its last minute."""
    if history.born_at is None:
        return 0.0
    start = history.born_at
    if not history.has_ended:
        start = max(start, until - RATE_SECONDS)
    num_recent = sum(row.at >= start for row in history.merged)
    return num_recent / max(until - start, 1e-3)


def towards(
    stop: Stop, num_merged: int, version: int, seconds: float, rate: float
) -> tuple[float | None, float | None]:
    """(fraction done, seconds left) of the counted stop condition that is nearest."""
    conditions: list[tuple[float, float, float]] = []  # done, limit, per second
    if stop.updates is not None:
        conditions.append((num_merged, stop.updates, rate))
    if stop.versions is not None:
        conditions.append((version, stop.versions, rate))
    if stop.wall_seconds is not None:
        conditions.append((seconds, stop.wall_seconds, 1.0))
    if not conditions:
        return None, None
    progress = max(min(1.0, done / limit) for done, limit, _ in conditions)
    left = [max(0.0, limit - done) / speed for done, limit, speed in conditions if speed > 0]
    return progress, min(left, default=None)
