"""FedFa: every arriving update makes a new global model from the window of the last K updates."""

from collections.abc import Sequence

from fedfa.merge.combine import Combination, Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.fednova import Weigh
from fedfa.merge.staleness import Staleness


def fedfa_delta(
    entries: Sequence[Entry], *, window: int, server_lr: float, staleness: Staleness, weigh: Weigh
) -> Verdict:
    """Add a step along the mean of the last K deltas, at every update.

        w_t = w_{t-1} + (eta_g / K) * (1/K) sum of the last K s_i d_i,   d_i = w_i - w_{b_i}

    Xu et al., "FedFa: A Fully Asynchronous Training Paradigm for Federated Learning", IJCAI
    2024, Algorithm 1 and section 4.1 (FedFa-Delta). The step is divided by K so that eta_g means
    what it means in FedBuff: a delta stays in K windows and weighs eta_g / K in all. eta_g = K
    gives the paper's literal step. Until K updates have arrived the model stays w_0.

    entries: the window, the newest update last. s_i is 1 in the paper; it takes an update's
    staleness on arrival. Float buffers move with the weights, by beta = min(1, eta_g / K).
    """
    if len(entries) < window:
        return Verdict(combination=None, kept=len(entries), reopens="own")
    newest = entries[-window:]
    combination = Combination(
        keep=1.0,
        step=server_lr / window,
        weights=weigh(newest, [staleness(entry.staleness) for entry in newest]),
        divisor=float(window),
        beta=min(1.0, server_lr / window),
        shares=(1.0,) * window,
    )
    return Verdict(combination, kept=window, reopens="own")


def fedfa_param(entries: Sequence[Entry], *, window: int) -> Verdict:
    """The global model is the mean of the last K client models.

        w_t = (1/K) sum of the last K w_i

    Xu et al., IJCAI 2024, Algorithm 1 (FedFa-Param). Until K updates have arrived the model
    stays w_0, which itself never enters the window. Float buffers are the window's mean.
    """
    if len(entries) < window:
        return Verdict(combination=None, kept=len(entries), reopens="own")
    combination = Combination(
        keep=0.0,
        step=1.0,
        weights=(1.0,) * window,
        divisor=float(window),
        beta=1.0,
        shares=(1.0,) * window,
    )
    return Verdict(combination, kept=window, reopens="own")
