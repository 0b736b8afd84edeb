"""From a spec's rule to the function that applies it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedfa.merge.combine import Merge
from fedfa.merge.fedfa import fedfa_delta, fedfa_param
from fedfa.spec import FedfaDelta, RuleChoice


@dataclass(frozen=True, slots=True)
class Rule:
    """sends: what a trainer's update holds for each parameter: a difference, or its value."""

    sends: Literal["deltas", "models"]
    merge: Callable[[int], Merge]


def rule_of(choice: RuleChoice) -> Rule:
    if isinstance(choice, FedfaDelta):
        merge = partial(fedfa_delta, window=choice.window, server_lr=choice.server_lr)
        return Rule("deltas", merge)
    return Rule("models", partial(fedfa_param, window=choice.window))
