"""Every other rule against a literal transcription of its paper, by hand, and against the others.

Transcriptions are plain Python on exact fractions, rounded to float32 after each merge. Equal
means at most 4 ulp of the largest term; the same bits only where a test says so.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.merge import rule_of
from fedfa.merge.fednova import effective_steps
from fedfa.merge.staleness import hinge, polynomial
from fedfa.rule_choices import (
    Constant,
    FedAsync,
    FedAvg,
    FedBuff,
    FedfaDelta,
    FedfaParam,
    Hinge,
    Polynomial,
    Port,
    RuleChoice,
)
from tests.reference.scalar import Sent, run
from tests.unit.builders import entry, spec

ULP = float(np.finfo(np.float32).eps)

values = st.floats(-1000, 1000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-6)
sents = st.lists(
    st.builds(
        lambda value, staleness, examples, steps, cosine: Sent(
            value,
            {
                "staleness": staleness,
                "num_examples": examples,
                "num_steps": steps,
                "cosine": cosine,
            },
        ),
        values,
        st.integers(0, 40),
        st.integers(1, 500),
        st.integers(1, 300),
        st.floats(-1, 1),
    ),
    max_size=20,
)


def rounded(value: Fraction) -> float:
    return float(np.float32(float(value)))


def assert_equal(ours: list[float], theirs: list[float], *, largest: float) -> None:
    """At most 4 ulp of the largest term for each merge so far, whose errors add up."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert abs(one - other) <= 4 * ULP * largest * number, (number, one, other)


def largest_of(start: float, sent: list[Sent], times: float = 1.0) -> float:
    """No term is larger: the start, and every value as often as it can count."""
    return abs(start) + times * sum(abs(each.value) for each in sent)


def transcribed(
    start: float,
    sent: list[Sent],
    k: int,
    flush: Callable[[Fraction, list[Sent]], Fraction],
) -> list[float]:
    """A buffer of k updates that `flush` turns into the next model."""
    w, buffer, history = start, [], []
    for each in sent:
        buffer.append(each)
        if len(buffer) == k:
            w = rounded(flush(Fraction(w), buffer))
            buffer = []
        history.append(w)
    return history


# -- transcriptions -----------------------------------------------------------------------------


@given(start=values, sent=sents, k=st.integers(1, 5), eta=st.sampled_from([0.5, 1.0, 3.0]))
def test_fedbuff_adds_the_discounted_sum_of_its_buffer_over_k(
    start: float, sent: list[Sent], k: int, eta: float
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        total = Fraction(0)
        for each in buffer:
            discount = 1 / math.sqrt(1 + each.numbers["staleness"])
            total += Fraction(discount) * Fraction(each.value)
        return w + Fraction(eta) * total / k

    ours = run(FedBuff(window=k, server_lr=eta), start, sent)
    assert_equal(
        ours, transcribed(start, sent, k, flush), largest=largest_of(start, sent, times=eta)
    )


@given(start=values, sent=sents, mc=st.integers(1, 5))
def test_fedavg_is_the_mean_by_examples_of_a_rounds_models(
    start: float, sent: list[Sent], mc: int
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        n = sum(each.numbers["num_examples"] for each in buffer)
        models = [(w + Fraction(each.value), each.numbers["num_examples"]) for each in buffer]
        return sum((Fraction(examples, n) * model for model, examples in models), Fraction(0))

    ours = run(FedAvg(), start, sent, concurrency=mc)
    assert_equal(ours, transcribed(start, sent, mc, flush), largest=largest_of(start, sent))


@given(start=values, sent=sents, alpha=st.sampled_from([0.1, 0.6, 1.0]))
@pytest.mark.parametrize(
    ("choice", "s"),
    [
        (Constant(), lambda late: 1.0),
        (Polynomial(exponent=0.5), lambda late: (late + 1) ** -0.5),
        (Polynomial(exponent=2.0), lambda late: (late + 1) ** -2.0),
        (Hinge(a=10, b=4), lambda late: 1.0 if late <= 4 else 1 / (10 * (late - 4) + 1)),
    ],
    ids=["constant", "polynomial 0.5", "polynomial 2", "hinge"],
)
def test_fedasync_mixes_each_model_by_alpha_times_s(
    choice: Any, s: Callable[[int], float], start: float, sent: list[Sent], alpha: float
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        a = Fraction(alpha) * Fraction(s(buffer[0].numbers["staleness"]))
        return (1 - a) * w + a * Fraction(buffer[0].value)

    ours = run(FedAsync(alpha=alpha, staleness=choice), start, sent)
    assert_equal(ours, transcribed(start, sent, 1, flush), largest=largest_of(start, sent))


@given(start=values, sent=sents, k=st.integers(1, 5))
def test_port_weighs_by_examples_direction_and_staleness(
    start: float, sent: list[Sent], k: int
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        weights = []
        for each in buffer:
            similarity = 2 * (Fraction(each.numbers["cosine"]) + 1) / 2
            staleness = 3 * Fraction(7) / (each.numbers["staleness"] + 7)
            weights.append(each.numbers["num_examples"] * (similarity + staleness))
        pairs = zip(weights, buffer, strict=True)
        return w + sum((a * Fraction(b.value) for a, b in pairs), Fraction(0)) / sum(weights)

    rule = Port(
        window=k, similarity_weight=2, staleness_weight=3, staleness_scale=7, refill="at_once"
    )
    ours = run(rule, start, sent)
    assert_equal(ours, transcribed(start, sent, k, flush), largest=largest_of(start, sent))


@given(start=values, sent=sents, k=st.integers(1, 5))
def test_fednova_averages_mean_steps_and_goes_the_effective_number_of_them(
    start: float, sent: list[Sent], k: int
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        taus = [each.numbers["num_steps"] for each in buffer]
        p = Fraction(1, k)
        effective = sum((p * tau for tau in taus), Fraction(0))
        pairs = zip(taus, buffer, strict=True)
        return w + effective * sum((p * Fraction(b.value) / tau for tau, b in pairs), Fraction(0))

    rule = FedBuff(window=k, staleness=Constant(), fednova=True)
    ours = run(rule, start, sent)
    assert_equal(
        ours, transcribed(start, sent, k, flush), largest=largest_of(start, sent, times=300)
    )


@given(start=values, sent=sents, mc=st.integers(1, 4))
def test_synchronous_fednova_weighs_clients_by_examples(
    start: float, sent: list[Sent], mc: int
) -> None:
    def flush(w: Fraction, buffer: list[Sent]) -> Fraction:
        n = sum(each.numbers["num_examples"] for each in buffer)
        p = [Fraction(each.numbers["num_examples"], n) for each in buffer]
        taus = [each.numbers["num_steps"] for each in buffer]
        effective = sum((a * tau for a, tau in zip(p, taus, strict=True)), Fraction(0))
        terms = zip(p, taus, buffer, strict=True)
        return w + effective * sum((a * Fraction(b.value) / t for a, t, b in terms), Fraction(0))

    ours = run(FedAvg(fednova=True), start, sent, concurrency=mc)
    assert_equal(
        ours, transcribed(start, sent, mc, flush), largest=largest_of(start, sent, times=300)
    )


@pytest.mark.parametrize(
    ("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.02), (0.9, 0.02), (0.5, 0.9)]
)
@pytest.mark.parametrize("num_steps", [1, 2, 3, 10, 257])
def test_effective_steps_are_the_way_that_sgd_goes_along_a_constant_gradient(
    momentum: float, pull: float, num_steps: int
) -> None:
    buffer = way = 0.0
    for _ in range(num_steps):
        buffer = momentum * buffer + (1.0 - pull * way)
        way += buffer
    ours = effective_steps(num_steps, momentum=momentum, pull=pull)
    assert ours == pytest.approx(way, rel=1e-12)


def test_effective_steps_are_fednovas_closed_forms() -> None:
    r, q, tau = 0.9, 0.02, 40
    assert effective_steps(tau, momentum=r, pull=0.0) == pytest.approx(
        (tau - r * (1 - r**tau) / (1 - r)) / (1 - r), rel=1e-12
    )
    assert effective_steps(tau, momentum=0.0, pull=q) == pytest.approx(
        (1 - (1 - q) ** tau) / q, rel=1e-12
    )
    assert effective_steps(2**53 - 1, momentum=0.9, pull=0.0) == pytest.approx(2**53 * 10)


# -- by hand ------------------------------------------------------------------------------------


def late(value: float, staleness: int, **numbers: Any) -> Sent:
    return Sent(value, {"staleness": staleness, **numbers})


def test_hand_computed_fedbuff() -> None:
    # 10 + 2 / 2 * (4 / sqrt(1) + 8 / sqrt(4)) = 18; then 18 + (6 + 2) = 26
    sent = [late(4.0, 0), late(8.0, 3), late(6.0, 0), late(2.0, 0)]
    assert run(FedBuff(window=2, server_lr=2.0), 10.0, sent) == [10.0, 18.0, 18.0, 26.0]


def test_hand_computed_fedavg() -> None:
    # (30 * (10 + 4) + 10 * (10 + 8)) / 40 = 15
    sent = [Sent(4.0, {"num_examples": 30}), Sent(8.0, {"num_examples": 10})]
    assert run(FedAvg(), 10.0, sent, concurrency=2) == [10.0, 15.0]


def test_hand_computed_fedasync() -> None:
    # a = 0.5: 0.5 * 8 + 0.5 * 4 = 6; a = 0.5 / sqrt(4): 0.75 * 6 + 0.25 * 2 = 5
    sent = [late(4.0, 0), late(2.0, 3)]
    assert run(FedAsync(alpha=0.5), 8.0, sent) == [6.0, 5.0]


def test_hand_computed_port() -> None:
    # weights: 10 * (1 + 1) = 20, and 20 * ((0 + 1) / 2 + 10 / (10 + 10)) = 20
    sent = [late(4.0, 0, num_examples=10), late(8.0, 10, num_examples=20, cosine=0.0)]
    assert run(Port(window=2), 10.0, sent) == [10.0, 16.0]


def test_hand_computed_fednova() -> None:
    # tau_eff = (2 + 8) / 2 = 5; 10 + 5 * (4 / 2 + 16 / 8) / 2 = 20
    sent = [Sent(4.0, {"num_steps": 2}), Sent(16.0, {"num_steps": 8})]
    assert run(FedBuff(window=2, fednova=True), 10.0, sent) == [10.0, 20.0]


def test_hand_computed_staleness_in_fedfas_window() -> None:
    # K = 2: the step is 1/2 * (4 / sqrt(1) + 8 / sqrt(4)) / 2 = 2, then (8/2 + 4) / 4 = 2
    sent = [late(4.0, 0), late(8.0, 3), late(4.0, 0)]
    assert run(FedfaDelta(window=2, staleness=Polynomial()), 10.0, sent) == [10.0, 12.0, 14.0]


def test_a_hinge_counts_one_eleventh_just_beyond_its_bend() -> None:
    assert [hinge(late, a=10.0, b=4) for late in (0, 4, 5)] == [1.0, 1.0, 1 / 11]


def test_a_half_power_is_the_reciprocal_root() -> None:
    assert [polynomial(late, exponent=0.5) for late in (0, 3, 8)] == [1.0, 0.5, 1 / 3]


# -- equivalences -------------------------------------------------------------------------------


@given(start=values, sent=sents)
def test_fedfa_param_of_one_is_fedasync_of_weight_one(start: float, sent: list[Sent]) -> None:
    fedasync = FedAsync(alpha=1.0, staleness=Constant())
    assert run(FedfaParam(window=1), start, sent) == run(fedasync, start, sent)  # bitwise


@given(start=values, sent=sents, mc=st.integers(1, 6))
def test_fedbuff_at_flush_of_a_whole_round_is_fedavg_of_equal_weights(
    start: float, sent: list[Sent], mc: int
) -> None:
    alike = [Sent(each.value, {**each.numbers, "num_examples": 7}) for each in sent]
    fedbuff = FedBuff(window=mc, refill="at_flush", staleness=Constant())
    assert_equal(
        run(fedbuff, start, alike, concurrency=mc),
        run(FedAvg(), start, alike, concurrency=mc),
        largest=largest_of(start, alike),
    )


@given(start=values, delta=values, k=st.integers(1, 6), eta=st.sampled_from([0.5, 1.0, 2.0]))
def test_along_a_constant_delta_fedfa_moves_as_fedbuff_and_lags_from_a_cold_start(
    start: float, delta: float, k: int, eta: float
) -> None:
    sent = [Sent(delta)] * (4 * k)
    fedfa = run(FedfaDelta(window=k, server_lr=eta), start, sent)
    fedbuff = run(FedBuff(window=k, server_lr=eta, staleness=Constant()), start, sent)
    tolerance = 4 * ULP * largest_of(start, sent, times=eta) * len(sent)

    # from a full window, over any K updates
    step = fedbuff[2 * k - 1] - fedbuff[k - 1]
    for begin in range(k - 1, 3 * k):
        assert abs(fedfa[begin + k] - fedfa[begin] - step) <= tolerance
    # from a cold start, whenever FedBuff has flushed
    for flushed in range(k - 1, 4 * k, k):
        lag = fedbuff[flushed] - fedfa[flushed]
        assert abs(lag - eta * (k - 1) / k * delta) <= tolerance


@given(start=values, sent=sents, k=st.integers(1, 6), steps=st.integers(1, 1000))
def test_fednova_of_equal_steps_is_fedfa_delta(
    start: float, sent: list[Sent], k: int, steps: int
) -> None:
    alike = [Sent(each.value, {**each.numbers, "num_steps": steps}) for each in sent]
    plain, nova = FedfaDelta(window=k), FedfaDelta(window=k, fednova=True)
    assert run(plain, start, alike) == run(nova, start, alike)  # bitwise
    momentum = {"local": {"epochs": 1, "optimizer": {"name": "sgd", "momentum": 0.9}}}
    assert run(plain, start, alike) == run(nova, start, alike, **momentum)


def test_fedasyncs_weight_is_the_same_after_ten_thousand_merges() -> None:
    rule = rule_of(spec(rule=FedAsync(alpha=0.6, staleness=Hinge(a=10, b=4))))
    for number in range(10_000):
        combination = rule.merge([entry(staleness=number % 9)]).combination
    assert combination is not None
    assert number % 9 == 0
    assert (combination.step, combination.keep) == (0.6, 1 - 0.6)
    last = rule.merge([entry(staleness=5)]).combination
    assert last is not None
    assert last.step == 0.6 / 11


@pytest.mark.parametrize(
    ("choice", "answers"),
    [
        (FedfaDelta(window=2), ["own 1", "own 2", "own 2", "own 2"]),
        (FedfaParam(window=2), ["own 1", "own 2", "own 2", "own 2"]),
        (FedBuff(window=2), ["own 1", "own 0", "own 1", "own 0"]),
        (FedBuff(window=2, refill="at_flush"), ["none 1", "waiting 0", "none 1", "waiting 0"]),
        (Port(window=2), ["none 1", "waiting 0", "none 1", "waiting 0"]),
        (Port(window=2, refill="at_once"), ["own 1", "own 0", "own 1", "own 0"]),
        (FedAvg(), ["none 1", "none 2", "waiting 0", "none 1"]),
        (FedAsync(), ["own 0"] * 4),
    ],
    ids=str,
)
def test_which_slots_open_again_and_what_stays_is_part_of_the_rule(
    choice: RuleChoice, answers: list[str]
) -> None:
    rule, window, given_answers = rule_of(spec(rule=choice, concurrency=3)), [], []
    for _ in answers:
        window.append(entry())
        merge = rule.merge(window)
        window = window[len(window) - merge.kept :]
        given_answers.append(f"{merge.reopens} {merge.kept}")
    assert given_answers == answers
