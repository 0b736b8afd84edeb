"""A federation together with its vectors: what aggregator, simulator and verify hold in memory.

PURE like the core: each function takes a replica and returns the next one with its decisions.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedfa.events import Decision, Event, Merged, Rejected, Stopped, Update
from fedfa.federation import (
    Federation,
    apply_rule,
    excess_norm,
    excess_step,
    median,
    refusal,
    step,
    too_stale,
)
from fedfa.merge import combine, rule_of
from fedfa.stops import due_stop
from fedfa.tensors import FlatModel, cosine, distance, norm

JUDGED = ("norm:", "diverged:")  # how the reasons begin that are about what a training made


@dataclass(frozen=True, slots=True)
class Replica:
    """window: the vectors of `federation.state.window`, in the same order."""

    federation: Federation
    model: FlatModel
    window: tuple[FlatModel, ...]

    @property
    def version(self) -> int:
        return self.federation.state.version


def merge(
    replica: Replica, update: Update, vector: FlatModel, *, base: FlatModel | None = None
) -> tuple[Replica, tuple[Decision, ...]]:
    """Decide one well-formed update of an open job: merge it, or reject it.

    base: the model of the version that it trained from, where `needs_base` says so. Rejected is
    what the core refuses for its facts, and what is too large. A merge that would leave the path
    of the run (a step far above its history, or a non-finite model) is rejected and ends the
    federation as failed: readers never see such a model.
    """
    spec, state = replica.federation.spec, replica.federation.state
    if reason := refusal(replica.federation, update):
        return decide(replica, Rejected(update, reason))
    size = update_norm(replica, vector)
    limit = excess_norm(state.update_norms, size, spec.limits.update_norm_factor)
    if limit is not None:
        reason = f"norm: {size:.6g} is above {limit:.6g}, {spec.limits.update_norm_factor:g} times"
        return decide(replica, Rejected(update, f"{reason} the usual one"))
    event = Merged(update, size, None, update_cosine(replica, update, vector, base))
    candidate, window = next_model(replica, event, vector)
    if candidate is None:
        return _merged(replica, event, replica.model, window)
    step_norm = distance(candidate.floats, replica.model.floats)
    if excess_step(replica.federation, step_norm) is not None or not np.isfinite(step_norm):
        reason = _divergence(replica.federation, step_norm)
        replica, rejected = decide(replica, Rejected(update, reason))
        replica, stopped = decide(replica, Stopped("failed", reason, state.version))
        return replica, (*rejected, *stopped)
    return _merged(replica, replace(event, step_norm=step_norm), candidate, window)


def decide(replica: Replica, event: Event) -> tuple[Replica, tuple[Decision, ...]]:
    """Apply one event that changes no vector, and the stop that it may call for."""
    federation, decision = step(replica.federation, event)
    return _with_due_stop(replace(replica, federation=federation), decision)


def is_judgement(rejected: Rejected) -> bool:
    """Whether it was rejected for what its training made, and not for how it arrived."""
    return rejected.reason.startswith(JUDGED)


def needs_base(replica: Replica, base_version: int) -> bool:
    """Whether merging an update needs the vector of the version that it trained from.

    One from the newest version does not, nor does one that is too stale to be merged.
    """
    federation = replica.federation
    is_stale = base_version < replica.version
    return (
        rule_of(federation.spec).needs_cosine
        and is_stale
        and too_stale(federation, base_version) is None
    )


def update_norm(replica: Replica, vector: FlatModel) -> float:
    """The norm of an update's difference, or of the distance of its model from the current one."""
    split = vector.template.num_parameters
    if rule_of(replica.federation.spec).sends == "deltas":
        return norm(vector.floats[:split])
    return distance(vector.floats[:split], replica.model.floats[:split])


def update_cosine(
    replica: Replica, update: Update, vector: FlatModel, base: FlatModel | None
) -> float | None:
    """The cosine of an update's difference with the way that the model went since its base.

    1 where the update is not stale; None where the rule does not ask for it. Over parameters.
    """
    if not rule_of(replica.federation.spec).needs_cosine:
        return None
    if not needs_base(replica, update.base_version):
        return 1.0
    assert base is not None, "the caller asked needs_base"
    split = vector.template.num_parameters
    return cosine(base.floats[:split], replica.model.floats[:split], vector.floats[:split])


def next_model(
    replica: Replica, event: Merged, vector: FlatModel
) -> tuple[FlatModel | None, tuple[FlatModel, ...]]:
    """The model that one more update makes (None while the window fills), and the next window.

    The event's step_norm may still be missing.
    """
    waiting = (*replica.window, vector)
    verdict, _ = apply_rule(replica.federation, event)
    kept = waiting[len(waiting) - verdict.kept :]
    if verdict.combination is None:
        return None, kept
    merged = waiting[len(waiting) - len(verdict.combination.weights) :]
    return combine(replica.model, merged, verdict.combination), kept


def _merged(
    replica: Replica, event: Merged, model: FlatModel, window: tuple[FlatModel, ...]
) -> tuple[Replica, tuple[Decision, ...]]:
    federation, decision = step(replica.federation, event)
    return _with_due_stop(Replica(federation, model, window), decision)


def _with_due_stop(replica: Replica, decision: Decision) -> tuple[Replica, tuple[Decision, ...]]:
    stop = due_stop(replica.federation, decision.event)
    if stop is None:
        return replica, (decision,)
    federation, stopped = step(replica.federation, stop)
    return replace(replica, federation=federation), (decision, stopped)


def _divergence(federation: Federation, step_norm: float) -> str:
    history, first = federation.state.step_norms, federation.state.first_step_norm
    usual = f" after usual ones of {median(history):.6g}" if history else ""
    at_first = f", {first:.6g} at first" if first is not None else ""
    advice = rule_of(federation.spec).advice
    return f"diverged: a step of norm {step_norm:.6g}{usual}{at_first}; {advice}"
