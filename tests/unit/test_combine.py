"""The merge kernel: exact rounding, buffers, integers, and bits that no block size changes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.kernel import Floats
from fedfa.merge import Combination, Entry, combine, rule_of
from fedfa.rule_choices import FedAsync, FedAvg, FedBuff, FedfaDelta, FedfaParam, Port, RuleChoice
from fedfa.tensor_files import decode
from fedfa.tensors import FlatModel, Template, Tensor
from tests.unit.builders import entry, spec

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


def full(choice: RuleChoice, number: int) -> Combination:
    """What a rule does with this many equal updates."""
    waiting = [entry() for _ in range(number)]
    combination = (
        rule_of(spec(rule=choice, clients=number, concurrency=number)).merge(waiting).combination
    )
    assert combination is not None
    return combination


def test_param_takes_means_of_weights_and_buffers_and_the_greatest_integer() -> None:
    combination = full(FedfaParam(window=2), 2)

    merged = combine(
        model([9, 9, 9], [9, 9], 7),
        [model([1, 2, 3], [1, 2], 5), model([3, 4, 5], [3, 4], 6)],
        combination,
    )

    assert merged.floats.tolist() == [2, 3, 4, 2, 3]
    assert merged.integers.tolist() == [7]


def test_delta_moves_buffers_by_beta_with_the_weights() -> None:
    combination = full(FedfaDelta(window=2), 2)

    merged = combine(
        model([10, 10, 10], [2, 2], 0),
        [model([1, 2, 3], [4, 4], 1), model([3, 4, 5], [8, 8], 2)],
        combination,
    )

    assert merged.floats.tolist() == [11, 11.5, 12, 4, 4]  # b = 0.5 * 2 + 0.5 * 6
    assert merged.integers.tolist() == [2]


def test_buffers_never_overshoot_with_a_large_server_lr() -> None:
    combination = full(FedfaDelta(window=2, server_lr=50), 2)
    assert combination.beta == 1.0


@pytest.mark.parametrize(
    "choice",
    [
        FedfaDelta(window=5, server_lr=5.0),
        FedfaDelta(window=5, server_lr=50.0, fednova=True),
        FedfaParam(window=5),
        FedBuff(window=5, server_lr=3.0),
        FedAvg(),
        FedAsync(alpha=0.9),
        Port(window=5),
    ],
    ids=lambda choice: choice.name,
)
def test_variances_stay_positive_over_two_thousand_merges(choice: RuleChoice) -> None:
    generator = np.random.default_rng(0)
    rule = rule_of(spec(rule=choice, concurrency=5))
    current = model([0, 0, 0], [1, 1], 0)
    window: list[FlatModel] = []
    entries: list[Entry] = []
    for count in range(2000):
        variances = generator.lognormal(sigma=5, size=2).tolist()
        window.append(model([0, 0, 0], variances, count))
        steps, examples, stale = generator.integers(1, 100, 3).tolist()
        entries.append(entry(num_steps=steps, num_examples=examples, staleness=stale))
        merge = rule.merge(entries)
        if merge.combination:
            merged = window[-len(merge.combination.weights) :]
            current = combine(current, merged, merge.combination)
        window = window[len(window) - merge.kept :]
        entries = entries[len(entries) - merge.kept :]
        assert (current.floats[3:] > 0).all()


def test_buffers_are_averaged_by_shares_whatever_the_weights_of_the_parameters() -> None:
    combination = Combination(1.0, 1.0, (5.0, 1.0), 2.0, 0.5, (1.0, 3.0))

    merged = combine(
        model([0, 0, 0], [2, 2], 0),
        [model([1, 2, 3], [4, 8], 1), model([3, 4, 5], [8, 0], 2)],
        combination,
    )

    assert merged.floats[3:].tolist() == [4.5, 2]  # 0.5 * 2 + 0.5 * (1 * 4 + 3 * 8) / 4


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 40_000), cut=st.floats(0.01, 0.99))
def test_merging_in_pieces_of_any_size_changes_no_bit(seed: int, size: int, cut: float) -> None:
    generator = np.random.default_rng(seed)
    rows = generator.standard_cauchy((4, size)).astype(np.float32)
    combination = Combination(1.0, 0.3, (1.0, 0.5, 2.0), 3.0, 0.3, (1.0, 2.0, 1.0))
    middle = max(1, int(size * cut))

    def merged(columns: slice) -> bytes:
        part = [weights_only(row[columns]) for row in rows]
        return combine(part[0], part[1:], combination).floats.tobytes()

    assert merged(slice(0, size)) == merged(slice(0, middle)) + merged(slice(middle, size))


def test_the_window_mean_equals_the_float64_reference_rounded_once() -> None:
    generator = np.random.default_rng(1)
    rows = generator.standard_cauchy((5, 50_000)).astype(np.float32)
    combination = full(FedfaParam(window=5), 5)

    merged = combine(weights_only(rows[0]), [weights_only(row) for row in rows], combination)

    reference = np.add.reduce(rows.astype(np.float64), axis=0) / 5
    assert merged.floats.tobytes() == reference.astype(np.float32).tobytes()


def test_bf16_updates_average_as_their_float32_mean_rounded_once() -> None:
    generator = np.random.default_rng(2)
    rows = generator.standard_cauchy((1000, 300)).astype(np.float32)
    halves = (rows.view(np.uint32) >> 16).astype("<u2")  # the upper half of a float32
    template = weights_only(rows[0]).template
    text = json.dumps({"w": {"dtype": "BF16", "shape": [300], "data_offsets": [0, 600]}}).encode()
    text += b" " * (-len(text) % 8)
    files = [len(text).to_bytes(8, "little") + text + half.tobytes() for half in halves]

    merged = combine(
        weights_only(rows[0]),
        [decode(body, template) for body in files],
        full(FedfaParam(window=1000), 1000),
    )

    exact = (halves.astype("<u4") << 16).view(np.float32).astype(np.float64)
    expected = (np.add.accumulate(exact, axis=0)[-1] / 1000).astype(np.float32)
    assert merged.floats.tobytes() == expected.tobytes()


def test_a_merge_changes_none_of_its_inputs() -> None:
    window = [model([1, 2, 3], [1, 2], 5), model([3, 4, 5], [3, 4], 6)]
    before = [entry.floats.copy() for entry in window]
    combination = full(FedfaParam(window=2), 2)

    for _ in range(3):
        combine(model([0, 0, 0], [0, 0], 0), window, combination)

    for update, copy in zip(window, before, strict=True):
        np.testing.assert_array_equal(update.floats, copy)


def test_the_number_of_updates_must_match_the_weights() -> None:
    with pytest.raises(AssertionError):
        combine(model([0, 0, 0], [0, 0], 0), [], Combination(1, 1, (1.0,), 1, 1, (1.0,)))
