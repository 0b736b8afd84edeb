"""Tens of thousands of seeded schedules of the real services, with every invariant checked."""

import itertools

import pytest

from tests.simulation.pool import broken
from tests.simulation.schedule import run_schedule

SHOWN = 5


@pytest.mark.timeout(900)
def test_no_schedule_of_faults_breaks_an_invariant(seeds: range) -> None:
    found = list(itertools.islice(broken(seeds), SHOWN))

    assert not found, "\n".join(
        f"pytest tests/simulation --seed {each.seed}   # {each.violations[0]}" for each in found
    )


def test_one_schedule_by_its_seed(seed: int | None) -> None:
    outcome = run_schedule(seed or 0, keeps_trace=seed is not None)
    print("\n".join(outcome.trace))

    assert outcome.violations == ()


def test_a_seed_gives_the_same_schedule_again() -> None:
    first = run_schedule(4, keeps_trace=True)
    again = run_schedule(4, keeps_trace=True)

    assert first.num_effects > 50
    assert first == again
