"""Simulated client delays: how long a client of the paper's section 5.2 holds back its update.

PURE: one draw per client, by inverse CDF of a number derived from the seed. A slow client is slow
in every job and in every process.
"""

import math

from fedfa.randomness import prf, uniform
from fedfa.sections import Delay


def delay_seconds(delay: Delay, *, seed: int, client: str) -> float:
    """This client's delay, the same for all its jobs."""
    u = uniform(prf(seed, f"delay:{client}"))
    return _units(delay, u) * delay.unit_seconds


def _units(delay: Delay, u: float) -> float:
    """The delay at quantile u, 0 < u < 1.

    pareto: P(X > x) = x^-shape, x >= 1. zipf: P(X = k) = k^-shape / zeta(shape), k = 1, 2, ...
    exponential has mean 1; uniform lies in (0, 2), mean 1 too.
    """
    match delay.distribution:
        case "none":
            return 0.0
        case "pareto":
            return math.pow(1.0 - u, -1.0 / delay.shape)
        case "zipf":
            return float(_zipf(delay.shape, 1.0 - u))
        case "exponential":
            return -math.log1p(-u)
        case "uniform":
            return 2.0 * u


def _zipf(shape: float, tail: float) -> int:
    """The smallest k with P(X > k) <= tail."""
    bound = tail * _zeta(shape, 1)
    low, high = 0, 1
    while _zeta(shape, high + 1) > bound:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _zeta(shape, middle + 1) > bound else (low, middle)
    return high


def _zeta(shape: float, start: int) -> float:
    """Hurwitz zeta: the sum of k^-shape over all k >= start, by Euler-Maclaurin after 10 terms."""
    head = math.fsum(math.pow(k, -shape) for k in range(start, start + 10))
    n = float(start + 10)
    rest = math.pow(n, -shape) * (n / (shape - 1) + 0.5 + shape / (12 * n))
    return head + rest
