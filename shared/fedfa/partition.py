"""Deal the examples of one data set to simulated clients. PURE: numpy arrays and a seed.

Every example is dealt exactly once, whatever the seed. The same arguments give the same shards
in every process with the same numpy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedfa.errors import InvalidSpec
from fedfa.randomness import prf
from fedfa.sections import Dirichlet, Natural, PartitionChoice

Indices = npt.NDArray[np.int64]

MAX_DEALS = 1000  # tries to give every client min_examples


def split(
    labels: npt.NDArray[Any], partition: PartitionChoice, num_clients: int, seed: int
) -> list[Indices]:
    """The example indices of each client, sorted, as the spec's partition demands."""
    if isinstance(partition, Natural):
        raise InvalidSpec(
            "partition.kind: natural, but this task's examples have no owners; give iid, dirichlet"
        )
    if isinstance(partition, Dirichlet):
        return dirichlet(labels, num_clients, partition.alpha, seed, partition.min_examples)
    return iid(len(labels), num_clients, seed)


def iid(num_examples: int, num_clients: int, seed: int) -> list[Indices]:
    """Equal shares (to within one example) of a shuffled data set."""
    if num_clients > num_examples:
        raise InvalidSpec(
            f"clients: {num_clients} clients cannot share {num_examples} examples; "
            f"give at most {num_examples}"
        )
    order = _generator(seed, 0).permutation(num_examples)
    return [np.sort(share) for share in np.array_split(order, num_clients)]


def dirichlet(
    labels: npt.NDArray[Any], num_clients: int, alpha: float, seed: int, min_examples: int
) -> list[Indices]:
    """Label skew: each class is cut by shares drawn from a symmetric Dirichlet(alpha).

        p_c ~ Dirichlet(alpha, ..., alpha) over the clients, for each class c;
        client j gets the fraction p_c[j] of the examples of class c.

    This is the per-class form (Yurochkin et al. 2019, arXiv:1905.12022; Li et al. 2022,
    arXiv:2102.02079) that most experiments mean when they cite Hsu et al. 2019
    (arXiv:1909.06335), who draw a class mix for each client instead. Shard sizes vary too. A deal
    that leaves a client with fewer than min_examples is thrown away and the next seed is tried.
    """
    for deal in range(MAX_DEALS if num_clients * min_examples <= len(labels) else 0):
        shards = _deal(labels, num_clients, alpha, _generator(seed, deal))
        if min(len(shard) for shard in shards) >= min_examples:
            return shards
    raise InvalidSpec(
        f"partition: no deal of {len(labels)} examples with alpha {alpha:g} gives each of "
        f"{num_clients} clients at least {min_examples} (min_examples); "
        "raise alpha, or lower clients or min_examples"
    )


def _deal(
    labels: npt.NDArray[Any], num_clients: int, alpha: float, generator: np.random.Generator
) -> list[Indices]:
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        examples = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(num_clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(examples)).round().astype(np.int64)
        owner[examples] = np.searchsorted(cuts, np.arange(len(examples)), side="right")
    return [np.flatnonzero(owner == client) for client in range(num_clients)]


def _generator(seed: int, deal: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(prf(seed, "partition", deal)))
