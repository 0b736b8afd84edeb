"""A federation together with its vectors: what aggregator, simulator and verify hold in memory.

Pure like the core: each function takes a replica and returns the next one with its decisions.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedfa.federation import (
    Decision,
    Event,
    Federation,
    Merged,
    Rejected,
    Stopped,
    Update,
    due_stop,
    excess_norm,
    step,
)
from fedfa.merge import Combination, combine, rule_of
from fedfa.tensors import FlatModel, norm


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
    replica: Replica, update: Update, vector: FlatModel
) -> tuple[Replica, tuple[Decision, ...]]:
    """Decide one well-formed update of an open job: merge it, or reject it for its norm.

    A merge that would leave the path of the run (a step far above its history, or a non-finite
    model) is rejected and ends the federation as failed: readers never see such a model.
    """
    spec, state = replica.federation.spec, replica.federation.state
    size = update_norm(replica, vector)
    limit = excess_norm(state.update_norms, size, spec.limits.update_norm_factor)
    if limit is not None:
        reason = f"norm: {size:.6g} is above {limit:.6g}, {spec.limits.update_norm_factor:g} times"
        return decide(replica, Rejected(update, f"{reason} the usual one"))
    candidate, window = next_model(replica, vector)
    if candidate is None:
        return _merged(replica, Merged(update, size, None), replica.model, window)
    step_norm = norm(candidate.floats - replica.model.floats)
    limit = excess_norm(state.step_norms, step_norm, spec.limits.step_norm_factor)
    if limit is not None or not np.isfinite(step_norm):
        reason = (
            f"diverged: a step of norm {step_norm:.6g} after usual ones of "
            f"{_usual(state.step_norms):.6g}; lower server_lr or the local learning rate, "
            f"or raise the window"
        )
        replica, rejected = decide(replica, Rejected(update, reason))
        replica, stopped = decide(replica, Stopped("failed", reason, state.version))
        return replica, (*rejected, *stopped)
    return _merged(replica, Merged(update, size, step_norm), candidate, window)


def decide(replica: Replica, event: Event) -> tuple[Replica, tuple[Decision, ...]]:
    """Apply one event that changes no vector, and the stop that it may call for."""
    federation, decision = step(replica.federation, event)
    return _with_due_stop(replace(replica, federation=federation), decision)


def update_norm(replica: Replica, vector: FlatModel) -> float:
    """The norm of an update's difference, or of the distance of its model from the current one."""
    split = vector.template.num_parameters
    if rule_of(replica.federation.spec.rule).sends == "deltas":
        return norm(vector.floats[:split])
    return norm(vector.floats[:split] - replica.model.floats[:split])


def next_model(
    replica: Replica, vector: FlatModel
) -> tuple[FlatModel | None, tuple[FlatModel, ...]]:
    """The model that one more update makes (None while the window fills), and the next window."""
    waiting = (*replica.window, vector)
    verdict = rule_of(replica.federation.spec.rule).merge(len(waiting))
    kept = waiting[len(waiting) - verdict.kept :]
    combination: Combination | None = verdict.combination
    if combination is None:
        return None, kept
    merged = waiting[len(waiting) - len(combination.weights) :]
    return combine(replica.model, merged, combination), kept


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


def _usual(history: tuple[float, ...]) -> float:
    return sorted(history)[len(history) // 2] if history else 0.0
