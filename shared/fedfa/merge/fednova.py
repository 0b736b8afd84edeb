"""FedNova: a delta counts by its direction, not by how many local steps its client took.

    d_i / tau_i is client i's mean step;  w_t = w_{t-1} + step * tau_eff * sum_i p_i (d_i / tau_i)
    tau_eff = sum_i p_i tau_i / sum_i p_i

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, arXiv:2007.07481, equations 6 and 7. It is a variant of
every rule of deltas: p_i is whatever the rule weighs update i by, and i runs over the window.
"""

from collections.abc import Callable, Sequence

from fedfa.merge.entry import Entry

Weigh = Callable[[Sequence[Entry], Sequence[float]], tuple[float, ...]]


def by_shares(entries: Sequence[Entry], shares: Sequence[float]) -> tuple[float, ...]:
    """A delta's weight is its share p_i: no normalisation."""
    return tuple(shares)


def by_direction(
    entries: Sequence[Entry], shares: Sequence[float], *, momentum: float, pull: float
) -> tuple[float, ...]:
    """A delta's weight is p_i * tau_eff / tau_i, which is p_i where all took equal steps."""
    steps = [effective_steps(entry.num_steps, momentum=momentum, pull=pull) for entry in entries]
    effective = sum(share * tau for share, tau in zip(shares, steps, strict=True)) / sum(shares)
    return tuple(share * (effective / tau) for share, tau in zip(shares, steps, strict=True))


def effective_steps(num_steps: int, *, momentum: float, pull: float) -> float:
    """tau_i = ||a_i||_1: how many plain SGD steps along a constant gradient go as far.

    momentum: SGD's. pull: learning rate times FedProx's mu, below 1. With m the momentum buffer
    and y the way gone in units of the learning rate, a step is the linear map

        m <- momentum * m + 1 - pull * y;   y <- y + m

    whose power `num_steps` takes a few dozen multiplications by squaring, however large the
    number. Weight decay and AdamW's scaling count as nothing: their steps are taken as they are.
    """
    if momentum == pull == 0.0:
        return float(num_steps)
    square: Matrix = ((momentum, -pull, 1.0), (momentum, 1.0 - pull, 1.0), (0.0, 0.0, 1.0))
    total: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    while num_steps:
        if num_steps % 2:
            total = _times(total, square)
        square = _times(square, square)
        num_steps //= 2
    return total[1][2]  # y, from (m, y, 1) = (0, 0, 1)


Row = tuple[float, float, float]
Matrix = tuple[Row, Row, Row]


def _times(left: Matrix, right: Matrix) -> Matrix:
    def row(r: Row) -> Row:
        a, b, c = right
        return (
            r[0] * a[0] + r[1] * b[0] + r[2] * c[0],
            r[0] * a[1] + r[1] * b[1] + r[2] * c[1],
            r[0] * a[2] + r[1] * b[2] + r[2] * c[2],
        )

    return (row(left[0]), row(left[1]), row(left[2]))
