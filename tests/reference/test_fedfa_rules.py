"""FedFa's two rules against literal transcriptions of the paper's sentences, on small numbers.

Xu et al., IJCAI 2024, section 3.1: "the buffer always maintains the size of K. The parameters of
each round on the server side are equal to the arithmetic mean of all parameters in the buffer."
The transcriptions are plain Python on exact fractions; only the last rounding is float32's.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.rule_choices import FedfaDelta, FedfaParam, RuleChoice
from tests.reference.scalar import Sent, run


def run_rule(choice: RuleChoice, start: float, sent: list[float]) -> list[float]:
    """The global model after each update, by the product's code."""
    return run(choice, start, [Sent(value) for value in sent])


def paper_param(start: float, sent: list[float], k: int) -> list[float]:
    queue: list[Fraction] = []
    w, history = np.float32(start), []
    for value in sent:
        queue.append(Fraction(value))
        if len(queue) > k:
            queue.pop(0)
        if len(queue) == k:
            w = np.float32(float(sum(queue) / k))
        history.append(float(w))
    return history


def paper_delta(start: float, sent: list[float], k: int, eta: float) -> list[float]:
    queue: list[Fraction] = []
    w, history = np.float32(start), []
    for value in sent:
        queue.append(Fraction(value))
        if len(queue) > k:
            queue.pop(0)
        if len(queue) == k:
            mean = sum(queue) / k
            w = np.float32(float(Fraction(float(w)) + Fraction(eta) / k * mean))
        history.append(float(w))
    return history


values = st.floats(-1000, 1000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)


def assert_within_an_ulp(ours: list[float], paper: list[float], scale: float) -> None:
    np.testing.assert_allclose(ours, paper, rtol=3e-7, atol=3e-7 * scale)


@given(start=values, sent=st.lists(values, max_size=20), k=st.integers(1, 6))
def test_fedfa_param_is_the_mean_of_the_last_k_models(
    start: float, sent: list[float], k: int
) -> None:
    ours = run_rule(FedfaParam(window=k), start, sent)
    assert_within_an_ulp(ours, paper_param(start, sent, k), 0.0)


@given(
    start=values,
    sent=st.lists(values, max_size=20),
    k=st.integers(1, 6),
    eta=st.sampled_from([0.5, 1.0, 2.0, 5.0]),
)
def test_fedfa_delta_steps_along_the_mean_of_the_last_k_deltas(
    start: float, sent: list[float], k: int, eta: float
) -> None:
    ours = run_rule(FedfaDelta(window=k, server_lr=eta), start, sent)
    scale = max(map(abs, [start, *sent])) * (1 + eta * len(sent))
    assert_within_an_ulp(ours, paper_delta(start, sent, k, eta), scale)


def test_hand_computed_param_window() -> None:
    assert run_rule(FedfaParam(window=2), 9.0, [1.0, 3.0, 5.0]) == [9.0, 2.0, 4.0]


def test_hand_computed_delta_window() -> None:
    # K = 2, eta = 1: the step is half the window's mean.
    assert run_rule(FedfaDelta(window=2), 10.0, [1.0, 3.0, 5.0]) == [10.0, 11.0, 13.0]


def test_server_lr_k_is_the_papers_literal_step() -> None:
    # w_t = w_{t-1} + mean of the window: 10 + 2 = 12, 12 + 4 = 16.
    assert run_rule(FedfaDelta(window=2, server_lr=2.0), 10.0, [1.0, 3.0, 5.0]) == [10, 12, 16]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_a_delta_weighs_eta_over_k_in_all_and_less_while_the_window_fills(k: int) -> None:
    for position in range(2 * k):
        sent = [0.0] * (4 * k)
        sent[position] = 1.0
        total = run_rule(FedfaDelta(window=k), 0.0, sent)[-1]
        number = position + 1
        expected = number / k**2 if number < k else 1 / k
        assert total == pytest.approx(expected, rel=1e-6)


@given(st.lists(values, min_size=1, max_size=8))
def test_fedfa_param_with_one_entry_replaces_the_model(sent: list[float]) -> None:
    assert run_rule(FedfaParam(window=1), 0.0, sent) == sent
