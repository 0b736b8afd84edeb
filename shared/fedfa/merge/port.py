"""Port: semi-asynchronous; a buffer whose updates count by examples, direction and staleness."""

from collections.abc import Sequence

from fedfa.merge.combine import Combination, Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.fedbuff import flushed, waits
from fedfa.rule_choices import Refill


def port(
    entries: Sequence[Entry],
    *,
    window: int,
    similarity_weight: float,
    staleness_weight: float,
    staleness_scale: float,
    refill: Refill,
) -> Verdict:
    """Once K updates are in, add their weighted mean.

        r_i = n_i * (alpha * (cos_i + 1) / 2 + beta * b / (staleness_i + b))
        w_t = w_{t-1} + sum_i (r_i / sum_j r_j) d_i,   d_i = w_i - w_{b_i}

    Su and Li, "How Asynchronous can Federated Learning Be?", IWQoS 2022 (Port). cos_i is the
    cosine between w_{t-1} - w_{b_i}, the way that the global model went since client i started,
    and d_i; 1 for a client that is not stale. alpha is similarity_weight, beta staleness_weight,
    b staleness_scale. Float buffers become the mean of the K.
    """
    if len(entries) < window:
        return waits(entries, refill)
    weights = tuple(
        entry.num_examples
        * (
            similarity_weight * (entry.cosine + 1.0) / 2.0
            + staleness_weight * staleness_scale / (entry.staleness + staleness_scale)
        )
        for entry in entries
    )
    combination = Combination(
        keep=1.0,
        step=1.0,
        weights=weights,
        divisor=sum(weights),
        beta=1.0,
        shares=(1.0,) * window,
    )
    return flushed(combination, refill)
