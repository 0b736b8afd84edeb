"""From a spec to the rule that its federation follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedfa.merge.combine import Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.fedasync import fedasync
from fedfa.merge.fedavg import fedavg
from fedfa.merge.fedbuff import fedbuff
from fedfa.merge.fedfa import fedfa_delta, fedfa_param
from fedfa.merge.fednova import Weigh, by_direction, by_shares
from fedfa.merge.port import port
from fedfa.merge.staleness import staleness_of
from fedfa.rule_choices import FedAsync, FedAvg, FedBuff, FedfaDelta, Port
from fedfa.sections import Sgd
from fedfa.spec import FederationSpec

CLIENTS_RATE = "local.optimizer.learning_rate"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as the federation runs it.

    sends: what a trainer's update holds for each parameter: a difference, or its value.
    merge: the answer to a window whose newest update is the last.
    advice: what to change in the spec if the model diverges.
    needs_cosine: entries carry the cosine with the model's way since their base, so that whoever
    merges needs the base; max_staleness bounds how old it may be.
    excludes_waiting: a client whose update waits in the window is not sampled.
    """

    sends: Literal["deltas", "models"]
    merge: Callable[[Sequence[Entry]], Verdict]
    advice: str
    needs_cosine: bool = False
    max_staleness: int | None = None
    excludes_waiting: bool = False


def rule_of(spec: FederationSpec) -> Rule:
    match spec.rule:
        case FedfaDelta() as choice:
            merge = partial(
                fedfa_delta,
                window=choice.window,
                server_lr=choice.server_lr,
                staleness=staleness_of(choice.staleness),
                weigh=_weigh(spec, fednova=choice.fednova),
            )
            advice = f"lower rule.server_lr or {CLIENTS_RATE}, or raise rule.window"
            return Rule("deltas", merge, advice)
        case FedBuff() as choice:
            merge = partial(
                fedbuff,
                window=choice.window,
                server_lr=choice.server_lr,
                staleness=staleness_of(choice.staleness),
                refill=choice.refill,
                weigh=_weigh(spec, fednova=choice.fednova),
            )
            return Rule("deltas", merge, f"lower rule.server_lr or {CLIENTS_RATE}")
        case FedAvg() as choice:
            weigh = _weigh(spec, fednova=choice.fednova)
            merge = partial(fedavg, concurrency=spec.concurrency, weigh=weigh)
            return Rule("deltas", merge, f"lower {CLIENTS_RATE}", excludes_waiting=True)
        case FedAsync() as choice:
            weight = staleness_of(choice.staleness)
            merge = partial(fedasync, alpha=choice.alpha, staleness=weight)
            return Rule("models", merge, f"lower rule.alpha or {CLIENTS_RATE}")
        case Port() as choice:
            merge = partial(
                port,
                window=choice.window,
                similarity_weight=choice.similarity_weight,
                staleness_weight=choice.staleness_weight,
                staleness_scale=choice.staleness_scale,
                refill=choice.refill,
            )
            return Rule(
                "deltas",
                merge,
                f"lower {CLIENTS_RATE}, or raise rule.window",
                needs_cosine=True,
                max_staleness=choice.max_staleness,
            )
        case choice:
            merge = partial(fedfa_param, window=choice.window)
            return Rule("models", merge, f"lower {CLIENTS_RATE}, or raise rule.window")


def _weigh(spec: FederationSpec, *, fednova: bool) -> Weigh:
    if not fednova:
        return by_shares
    optimizer = spec.local.optimizer
    if not isinstance(optimizer, Sgd):
        return partial(by_direction, momentum=0.0, pull=0.0)
    pull = optimizer.learning_rate * spec.local.proximal
    return partial(by_direction, momentum=optimizer.momentum, pull=pull)


def window_of(spec: FederationSpec) -> int | None:
    """The rule's K, or None where it has none."""
    return None if isinstance(spec.rule, FedAvg | FedAsync) else spec.rule.window


def window_size(spec: FederationSpec) -> int:
    """The most updates that meet in one merge."""
    return spec.concurrency if isinstance(spec.rule, FedAvg) else window_of(spec) or 1
