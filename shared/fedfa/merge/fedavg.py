"""FedAvg: synchronous rounds; the slowest of the Mc clients ends each."""

from collections.abc import Sequence

from fedfa.merge.combine import Combination, Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.fednova import Weigh


def fedavg(entries: Sequence[Entry], *, concurrency: int, weigh: Weigh) -> Verdict:
    """Once all Mc clients of the round have reported, take the mean of their models by examples.

        w_t = sum_i (n_i / n) w_i = w_{t-1} + sum_i (n_i / n) d_i,   n = sum_i n_i

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, arXiv:1602.05629, Algorithm 1. Clients send d_i = w_i - w_{t-1}; all of a round
    start from the same version. Float buffers are the same mean. Every slot opens again when the
    round closes, none before; a client that has reported is not sampled again until then.
    """
    if len(entries) < concurrency:
        return Verdict(combination=None, kept=len(entries), reopens="none")
    examples = tuple(float(entry.num_examples) for entry in entries)
    combination = Combination(
        keep=1.0,
        step=1.0,
        weights=weigh(entries, examples),
        divisor=sum(examples),
        beta=1.0,
        shares=examples,
    )
    return Verdict(combination, kept=0, reopens="waiting")
