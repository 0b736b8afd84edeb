"""The comparison with the theorem's rate, on gradients whose fall is known."""

import pytest

from fedfa.bound import METRIC, compare
from fedfa.log import Evaluation
from fedfa.rows import History, Row
from tests.unit.builders import submitted


def history(values: dict[int, float]) -> History:
    return History(
        submission=submitted(),
        born_at=0.0,
        at=1.0,
        state=None,
        has_model=True,
        rows=tuple(Row(n, 0.0, "merged", n, staleness=n % 3) for n in range(1, 10)),
        evaluations=tuple(Evaluation(v, 0.0, {METRIC: value}) for v, value in values.items()),
    )


def test_a_gradient_whose_mean_falls_as_the_rate_has_the_rates_slope() -> None:
    # given sum_{t <= T} g_t = T^0.5, so that the mean is T^-0.5
    values = {t: t**0.5 - (t - 1) ** 0.5 for t in range(1, 65)}
    # when
    bound = compare(history(values))
    # then
    assert bound is not None
    assert bound.slope == pytest.approx(-0.5)
    for line in bound.lines:
        assert line.observed == pytest.approx(line.rate)
    assert [bound.lines[0].version, bound.lines[-1].version] == [1, 64]
    assert len(bound.lines) <= 8
    assert (bound.staleness_mean, bound.staleness_max) == (1.0, 2)


def test_a_gradient_that_does_not_fall_has_no_slope() -> None:
    bound = compare(history(dict.fromkeys(range(0, 50, 5), 3.0)))
    assert bound is not None
    assert bound.slope == pytest.approx(0.0, abs=1e-12)
    assert bound.lines[-1].observed == 3.0 > bound.lines[-1].rate


def test_two_versions_are_needed() -> None:
    assert compare(history({0: 1.0, 5: 1.0})) is None
