"""What ends a federation, and the reason that its log then gives. PURE."""

from collections.abc import Iterable

from fedfa.events import Abandoned, Event, Rejected, Stopped
from fedfa.federation import Federation
from fedfa.log import Evaluation
from fedfa.sections import Stop


def due_stop(federation: Federation, event: Event) -> Stopped | None:
    """The stop that this state itself calls for, if any; `event` is what led to it."""
    state, stop = federation.state, federation.spec.stop
    if state.status != "running":
        return None
    if stop.versions is not None and state.version >= stop.versions:
        return Stopped("finished", f"reached {stop.versions} versions", state.version)
    if stop.updates is not None and state.num_merged >= stop.updates:
        return Stopped("finished", f"merged {stop.updates} updates", state.version)
    limit = federation.spec.limits.max_consecutive_rejections
    if state.failures_in_a_row >= limit:
        last = f", at last: {event.reason}" if isinstance(event, Rejected | Abandoned) else ""
        reason = f"{limit} updates in a row were rejected or abandoned{last}"
        return Stopped("failed", reason, state.version)
    return None


def target_stop(stop: Stop, evaluations: Iterable[Evaluation]) -> Stopped | None:
    """The stop at the first of these versions that reached the target, if one did."""
    target = stop.target
    if target is None:
        return None
    reached = [
        (each.version, each.metrics[target.metric])
        for each in evaluations
        if each.metrics.get(target.metric, float("-inf")) >= target.value
    ]
    if not reached:
        return None
    version, value = min(reached)
    reason = f"{target.metric} {value:.4f} reached the target {target.value:g}"
    return Stopped("finished", reason, version)


def time_is_up(wall_seconds: float) -> str:
    """The reason of a stop by `stop.wall_seconds`."""
    return f"{wall_seconds:g} s since its submission have passed"
