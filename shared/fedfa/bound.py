"""Does a run behave as the theorem says? The observed gradient beside the rate. PURE.

The corollary (Xu et al., IJCAI 2024, section 4.2) bounds the mean of ||grad f(w_t)||^2 over the
first T versions, for steps of the order 1/sqrt(TQ), by a sum whose leading term falls as
1/sqrt(TQ); staleness enters terms that fall faster, by its maximum. The constants (smoothness,
variances, first loss) are unknown, so only the fall is compared, not the level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

from fedfa.rows import History

METRIC = "squared_gradient_norm"
MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class Line:
    """observed: mean of ||grad f||^2 over the evaluated versions up to this one.

    rate: c / sqrt(T), equal to the observed mean at the first line; Q is constant within a run.
    """

    version: int
    observed: float
    rate: float


@dataclass(frozen=True, slots=True)
class Bound:
    """slope: of log(observed) against log(T) over all versions; the rate's is -0.5."""

    lines: tuple[Line, ...]
    slope: float
    staleness_mean: float
    staleness_max: int


def compare(history: History) -> Bound | None:
    """None without at least two evaluations that measured the gradient after version 0."""
    measured = [
        (evaluation.version, evaluation.metrics[METRIC])
        for evaluation in history.evaluations
        if METRIC in evaluation.metrics and evaluation.version > 0
    ]
    if len(measured) < 2 or min(value for _, value in measured) <= 0:
        return None
    total, means = 0.0, []
    for number, (version, value) in enumerate(measured, 1):
        total += value
        means.append((version, total / number))
    first_version, first = means[0]
    lines = [
        Line(version, mean, first * math.sqrt(first_version / version)) for version, mean in means
    ]
    staleness = [row.staleness for row in history.merged if row.staleness is not None]
    return Bound(
        lines=tuple(_thinned(lines)),
        slope=linear_regression(
            [math.log(version) for version, _ in means], [math.log(mean) for _, mean in means]
        ).slope,
        staleness_mean=sum(staleness) / len(staleness),
        staleness_max=max(staleness),
    )


def _thinned(lines: Sequence[Line]) -> list[Line]:
    """A few of them, about evenly apart on a logarithmic scale, the first and the last included."""
    chosen: list[Line] = []
    ratio = (lines[-1].version / lines[0].version) ** (1 / (MOST_LINES - 1))
    for line in lines[:-1]:
        if not chosen or line.version >= chosen[-1].version * ratio:
            chosen.append(line)
    return [*chosen[: MOST_LINES - 1], lines[-1]]
