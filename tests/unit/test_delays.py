import math

import numpy as np
import pytest

from fedfa.delays import delay_seconds
from fedfa.errors import InvalidSpec
from fedfa.sections import Delay
from fedfa.spec import parse

CLIENTS = [f"client-{number:04d}" for number in range(20_000)]


def draws(seed=0, **fields):
    return np.array([delay_seconds(Delay(**fields), seed=seed, client=c) for c in CLIENTS])


def test_no_delay_is_zero():
    assert delay_seconds(Delay(distribution="none"), seed=0, client="client-0000") == 0.0


def test_a_client_keeps_its_delay_and_clients_differ():
    delay = Delay(distribution="pareto")

    first, again, other = (
        delay_seconds(delay, seed=4, client=client) for client in ("a", "a", "b")
    )

    assert first == again != other


def test_pareto_delays_follow_their_tail():
    values = draws(distribution="pareto", shape=1.5)

    assert values.min() >= 1
    for x in (1.5, 3, 10):  # P(X > x) = x^-1.5
        assert np.mean(values > x) == pytest.approx(x**-1.5, abs=0.012)


@pytest.mark.parametrize("shape", [1.1, 2.0, 4.0])
def test_zipf_delays_follow_their_probabilities(shape):
    values = draws(distribution="zipf", shape=shape)

    assert (values == np.round(values)).all()
    # zeta(1.1), zeta(2), zeta(4), from tables
    zeta = {1.1: 10.584448464950809, 2.0: math.pi**2 / 6, 4.0: math.pi**4 / 90}[shape]
    for k in (1, 2, 3, 10):
        assert np.mean(values == k) == pytest.approx(k**-shape / zeta, abs=0.012)


@pytest.mark.parametrize("distribution", ["exponential", "uniform"])
def test_exponential_and_uniform_delays_have_mean_one_unit(distribution):
    values = draws(distribution=distribution, unit_seconds=10)

    assert values.mean() == pytest.approx(10, rel=0.03)
    assert values.std() == pytest.approx(10 if distribution == "exponential" else 5.77, rel=0.05)


def test_the_unit_multiplies_the_draw():
    one, half = (
        delay_seconds(Delay(distribution="zipf", unit_seconds=unit), seed=1, client="c")
        for unit in (1.0, 0.5)
    )

    assert half == one / 2


@pytest.mark.parametrize(("distribution", "shape"), [("pareto", 0.1), ("zipf", 1.1)])
def test_the_heaviest_tails_are_still_finite(distribution, shape):
    assert np.isfinite(draws(distribution=distribution, shape=shape)).all()


def test_a_zipf_exponent_without_a_sum_is_refused_with_the_remedy():
    with pytest.raises(InvalidSpec, match=r"zipf exponent.*at least 1\.1"):
        parse({"clients": 4, "delay": {"distribution": "zipf", "shape": 1.0}})
