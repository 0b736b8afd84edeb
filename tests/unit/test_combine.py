"""The merge kernel: exact rounding, buffers, integers, and bits that no block size changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.merge import rule_of
from fedfa.merge.combine import Combination, combine
from fedfa.spec import FedfaDelta, FedfaParam
from fedfa.tensors import FlatModel, Floats, Template, Tensor

TEMPLATE = Template(
    (
        Tensor("weight", "parameter", "F32", (3,)),
        Tensor("running_var", "buffer", "F32", (2,)),
        Tensor("num_batches_tracked", "integer", "I64", ()),
    )
)


def model(weights: list[float], variances: list[float], count: int) -> FlatModel:
    return FlatModel(
        TEMPLATE, np.array([*weights, *variances], np.float32), np.array([count], np.int64)
    )


def weights_only(values: Floats) -> FlatModel:
    template = Template((Tensor("w", "parameter", "F32", values.shape),))
    return FlatModel(template, values.copy(), np.empty(0, np.int64))


def test_param_takes_means_of_weights_and_buffers_and_the_greatest_integer() -> None:
    combination = rule_of(FedfaParam(window=2)).merge(2).combination
    assert combination is not None

    merged = combine(
        model([9, 9, 9], [9, 9], 7),
        [model([1, 2, 3], [1, 2], 5), model([3, 4, 5], [3, 4], 6)],
        combination,
    )

    assert merged.floats.tolist() == [2, 3, 4, 2, 3]
    assert merged.integers.tolist() == [7]


def test_delta_moves_buffers_by_beta_with_the_weights() -> None:
    combination = rule_of(FedfaDelta(window=2)).merge(2).combination
    assert combination is not None

    merged = combine(
        model([10, 10, 10], [2, 2], 0),
        [model([1, 2, 3], [4, 4], 1), model([3, 4, 5], [8, 8], 2)],
        combination,
    )

    assert merged.floats.tolist() == [11, 11.5, 12, 4, 4]  # b = 0.5 * 2 + 0.5 * 6
    assert merged.integers.tolist() == [2]


def test_buffers_never_overshoot_with_a_large_server_lr() -> None:
    combination = rule_of(FedfaDelta(window=2, server_lr=50)).merge(2).combination
    assert combination is not None
    assert combination.beta == 1.0


def test_variances_stay_positive_over_two_thousand_merges() -> None:
    generator = np.random.default_rng(0)
    rule = rule_of(FedfaDelta(window=5, server_lr=5.0))
    current, window = model([0, 0, 0], [1, 1], 0), []
    for count in range(2000):
        variances = generator.lognormal(sigma=5, size=2).tolist()
        window = [*window, model([0, 0, 0], variances, count)][-5:]
        merge = rule.merge(len(window))
        if merge.combination:
            current = combine(current, window, merge.combination)
        assert (current.floats[3:] > 0).all()


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 40_000), cut=st.floats(0.01, 0.99))
def test_merging_in_pieces_of_any_size_changes_no_bit(seed: int, size: int, cut: float) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.standard_cauchy((4, size)).astype(np.float32)
    combination = Combination(1.0, 0.3, (1.0, 0.5, 2.0), 3.0, 0.3)
    middle = max(1, int(size * cut))

    def merged(columns: slice) -> bytes:
        part = [weights_only(row[columns]) for row in rows]
        return combine(part[0], part[1:], combination).floats.tobytes()

    assert merged(slice(0, size)) == merged(slice(0, middle)) + merged(slice(middle, size))


def test_the_window_mean_equals_the_float64_reference_rounded_once() -> None:
    generator = np.random.default_rng(1)
    rows = generator.standard_cauchy((5, 50_000)).astype(np.float32)
    combination = rule_of(FedfaParam(window=5)).merge(5).combination
    assert combination is not None

    merged = combine(weights_only(rows[0]), [weights_only(row) for row in rows], combination)

    reference = np.add.reduce(rows.astype(np.float64), axis=0) / 5
    assert merged.floats.tobytes() == reference.astype(np.float32).tobytes()


def test_a_merge_changes_none_of_its_inputs() -> None:
    window = [model([1, 2, 3], [1, 2], 5), model([3, 4, 5], [3, 4], 6)]
    before = [entry.floats.copy() for entry in window]
    combination = rule_of(FedfaParam(window=2)).merge(2).combination
    assert combination is not None

    for _ in range(3):
        combine(model([0, 0, 0], [0, 0], 0), window, combination)

    for entry, copy in zip(window, before, strict=True):
        np.testing.assert_array_equal(entry.floats, copy)


def test_the_number_of_updates_must_match_the_weights() -> None:
    with pytest.raises(AssertionError):
        combine(model([0, 0, 0], [0, 0], 0), [], Combination(1, 1, (1.0,), 1, 1))
