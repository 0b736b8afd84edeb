"""FedAsync: every arriving model is mixed into the global one."""

from collections.abc import Sequence

from fedfa.merge.combine import Combination, Verdict
from fedfa.merge.entry import Entry
from fedfa.merge.staleness import Staleness


def fedasync(entries: Sequence[Entry], *, alpha: float, staleness: Staleness) -> Verdict:
    """Mix one client's model into the global model.

        w_t = (1 - a_t) w_{t-1} + a_t w_i,   a_t = alpha * s(staleness_i)

    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", arXiv:1903.03934, Algorithm 1.
    a_t depends on this update's staleness alone: alpha is the same at every merge. Float buffers
    are mixed alike.
    """
    mixing = alpha * staleness(entries[-1].staleness)
    combination = Combination(
        keep=1.0 - mixing, step=mixing, weights=(1.0,), divisor=1.0, beta=mixing, shares=(1.0,)
    )
    return Verdict(combination, kept=0, reopens="own")
