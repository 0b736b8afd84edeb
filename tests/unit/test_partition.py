import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfa.errors import InvalidSpec
from fedfa.partition import dirichlet, iid, split
from fedfa.randomness import prf, uniform
from fedfa.sections import Dirichlet, Iid, Natural

LABELS = np.arange(2000) % 10


def skew(shards):
    """How far the clients' label shares are from even, averaged: 0 is IID, 1.8 is one label each"""
    shares = [np.bincount(LABELS[shard], minlength=10) / len(shard) for shard in shards]
    return float(np.mean([np.abs(share - 0.1).sum() for share in shares]))


@settings(deadline=None, max_examples=50)
@given(
    num_clients=st.integers(1, 30),
    alpha=st.sampled_from([None, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_example_is_dealt_exactly_once(num_clients, alpha, seed):
    partition = Iid() if alpha is None else Dirichlet(alpha=alpha)

    shards = split(LABELS, partition, num_clients, seed)

    assert len(shards) == num_clients
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(LABELS)))


def test_iid_shares_differ_by_at_most_one_example():
    sizes = [len(shard) for shard in iid(1003, 10, seed=1)]

    assert sorted(sizes) == [100] * 7 + [101] * 3


def test_smaller_alpha_gives_more_skewed_clients():
    skews = [skew(dirichlet(LABELS, 20, alpha, 0, 5)) for alpha in (0.1, 1.0, 100.0)]

    assert skews[0] > 1.0 > skews[1] > 0.3 > skews[2]


def test_dirichlet_shares_follow_the_distribution():
    # given the share of label 0 that client 0 gets, over many seeds
    shares = [np.sum(LABELS[dirichlet(LABELS, 5, 0.5, s, 1)[0]] == 0) / 200 for s in range(400)]

    # then it is Beta(0.5, 2.0): mean 1/5, variance a b / ((a+b)^2 (a+b+1)) = 0.0457
    assert np.mean(shares) == pytest.approx(0.2, abs=0.04)
    assert np.var(shares) == pytest.approx(0.0457, abs=0.015)


def test_every_client_gets_min_examples_by_dealing_again():
    first_deal = dirichlet(LABELS, 20, 0.1, seed=3, min_examples=1)
    assert min(len(shard) for shard in first_deal) < 20  # this seed's first deal will not do

    shards = dirichlet(LABELS, 20, 0.1, seed=3, min_examples=20)

    assert min(len(shard) for shard in shards) >= 20


@pytest.mark.parametrize(("num_clients", "min_examples"), [(20, 101), (20, 95), (2001, 1)])
def test_an_impossible_deal_names_the_values_and_the_remedy(num_clients, min_examples):
    with pytest.raises(InvalidSpec) as raised:
        dirichlet(LABELS, num_clients, 0.1, 0, min_examples)

    for part in ("alpha 0.1", f"{num_clients} clients", f"least {min_examples}", "raise alpha"):
        assert part in str(raised.value)


def test_more_iid_clients_than_examples_is_refused():
    with pytest.raises(InvalidSpec, match="give at most 5"):
        iid(5, 6, seed=0)


def test_a_natural_split_is_refused_where_examples_have_no_owner():
    with pytest.raises(InvalidSpec, match="no owners"):
        split(LABELS, Natural(), 4, seed=0)


def test_shards_are_the_same_in_every_process_and_release():
    # Trainers deal the data each on their own. When this fails after an upgrade of numpy,
    # federations must not run across that upgrade: say so in the changelog.
    digest = hashlib.sha256()
    for shard in [*dirichlet(LABELS, 10, 0.3, 7, 1), *iid(2000, 3, 7)]:
        digest.update(shard.astype("<i8").tobytes())

    assert digest.hexdigest()[:16] == "f2054a0e0316d030"


def test_seeds_give_different_deals():
    first, second = iid(1000, 10, seed=0)[0], iid(1000, 10, seed=1)[0]

    assert not np.array_equal(first, second)


def test_prf_is_fixed_for_ever():
    assert prf(0, "client", 3, 1) == int.from_bytes(
        hashlib.sha256(b"0|6:client|3,1").digest()[:8], "big"
    )


def test_no_two_argument_lists_of_prf_share_a_text():
    calls = [(1, "a", 1), (1, "a", 11), (11, "a", 1), (1, "a", 1, 1), (1, "a|1"), (1, "a")]

    assert len({prf(*call) for call in calls}) == len(calls)


@pytest.mark.parametrize("value", [0, 2**64 - 1])
def test_uniform_stays_strictly_inside_its_interval(value):
    assert 0 < uniform(value) < 1
