"""FedFa: every arriving update makes a new global model from the window of the last K updates."""

from fedfa.merge.combine import Combination, Merge


def fedfa_delta(num_waiting: int, *, window: int, server_lr: float) -> Merge:
    """Add a step along the mean of the last K deltas, at every update.

        w_t = w_{t-1} + (eta_g / K) * (1/K) sum of the last K d_i,   d_i = w_i - w_{b_i}

    Xu et al., "FedFa: A Fully Asynchronous Training Paradigm for Federated Learning", IJCAI
    2024, Algorithm 1 and section 4.1 (FedFa-Delta). The step is divided by K so that eta_g means
    what it means in FedBuff: a delta stays in K windows and weighs eta_g / K in all. eta_g = K
    gives the paper's literal step. Until K updates have arrived the model stays w_0.

    num_waiting counts the updates in the window, the newest included. Float buffers move with
    the weights, by beta = min(1, eta_g / K).
    """
    if num_waiting < window:
        return Merge(combination=None, kept=num_waiting)
    return Merge(
        combination=Combination(
            keep=1.0,
            step=server_lr / window,
            weights=(1.0,) * window,
            divisor=float(window),
            beta=min(1.0, server_lr / window),
        ),
        kept=window,
    )


def fedfa_param(num_waiting: int, *, window: int) -> Merge:
    """The global model is the mean of the last K client models.

        w_t = (1/K) sum of the last K w_i

    Xu et al., IJCAI 2024, Algorithm 1 (FedFa-Param). Until K updates have arrived the model
    stays w_0, which itself never enters the window. Float buffers are the window's mean.
    """
    if num_waiting < window:
        return Merge(combination=None, kept=num_waiting)
    combination = Combination(
        keep=0.0, step=1.0, weights=(1.0,) * window, divisor=float(window), beta=1.0
    )
    return Merge(combination=combination, kept=window)
