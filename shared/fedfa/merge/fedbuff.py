"""FedBuff: semi-asynchronous; every K updates make one step, and the buffer empties."""

from collections.abc import Sequence

from fedfa.merge.combine import Combination, Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.fednova import Weigh
from fedfa.merge.staleness import Staleness
from fedfa.rule_choices import Refill


def fedbuff(
    entries: Sequence[Entry],
    *,
    window: int,
    server_lr: float,
    staleness: Staleness,
    refill: Refill,
    weigh: Weigh,
) -> Verdict:
    """Once K updates are in, add a step along their discounted mean.

        w_t = w_{t-1} + eta_g * (1/K) sum of the K s(staleness_i) d_i,   d_i = w_i - w_{b_i}

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
    arXiv:2106.06639, Algorithm 1; s = 1/sqrt(1 + staleness) is its section 3's. The sum is
    divided by K, not by the sum of the s_i, and each d_i is against the version that its own
    client started from.

    refill: at_once opens a slot again as soon as its update is in (FedBuff's own); at_flush
    opens K slots together once their updates are merged, as Xu et al., IJCAI 2024, describe it.
    Float buffers become the mean of the K.
    """
    if len(entries) < window:
        return waits(entries, refill)
    combination = Combination(
        keep=1.0,
        step=server_lr,
        weights=weigh(entries, [staleness(entry.staleness) for entry in entries]),
        divisor=float(window),
        beta=1.0,
        shares=(1.0,) * window,
    )
    return flushed(combination, refill)


def waits(entries: Sequence[Entry], refill: Refill) -> Verdict:
    """The buffer is not full yet."""
    return Verdict(None, kept=len(entries), reopens="own" if refill == "at_once" else "none")


def flushed(combination: Combination, refill: Refill) -> Verdict:
    """The buffer is merged, and empty."""
    return Verdict(combination, kept=0, reopens="own" if refill == "at_once" else "waiting")
