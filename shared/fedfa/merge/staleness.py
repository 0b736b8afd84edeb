"""How much an update counts that trained from an old version: functions of its staleness.

Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", arXiv:1903.03934, section 5.2 (FedAsync);
FedBuff takes the polynomial one with exponent 1/2. All are 1 for an update that is not stale.
"""

import math
from collections.abc import Callable
from functools import partial

from fedfa.rule_choices import Constant, Polynomial, StalenessChoice

Staleness = Callable[[int], float]


def constant(staleness: int) -> float:
    """s = 1."""
    return 1.0


def polynomial(staleness: int, *, exponent: float) -> float:
    """s = (1 + staleness)^-exponent."""
    if exponent == 0.5:  # correctly rounded everywhere, which pow need not be
        return 1.0 / math.sqrt(1.0 + staleness)
    return float((1.0 + staleness) ** -exponent)


def hinge(staleness: int, *, a: float, b: int) -> float:
    """s = 1 up to a staleness of b, then 1 / (a (staleness - b) + 1)."""
    return 1.0 if staleness <= b else 1.0 / (a * (staleness - b) + 1.0)


def staleness_of(choice: StalenessChoice) -> Staleness:
    if isinstance(choice, Constant):
        return constant
    if isinstance(choice, Polynomial):
        return partial(polynomial, exponent=choice.exponent)
    return partial(hinge, a=choice.a, b=choice.b)
