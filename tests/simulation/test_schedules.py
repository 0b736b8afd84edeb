"""Tens of thousands of seeded schedules of the real services, with every invariant checked."""

import itertools

import pytest

from tests.simulation.pool import broken
from tests.simulation.schedule import run_schedule

SHOWN = 5


@pytest.mark.timeout(3600)
def test_no_schedule_of_faults_breaks_an_invariant(seed: int | None, num_schedules: int) -> None:
    if seed is not None:
        outcome = run_schedule(seed, keeps_trace=True)
        print("\n".join(outcome.trace))
        assert outcome.violations == ()
        return

    found = list(itertools.islice(broken(range(num_schedules)), SHOWN))

    assert not found, "\n".join(
        f"pytest tests/simulation --seed {each.seed}   # {each.violations[0]}" for each in found
    )


def test_a_seed_gives_the_same_schedule_again() -> None:
    first = run_schedule(4, keeps_trace=True)
    again = run_schedule(4, keeps_trace=True)

    assert first.num_effects > 50
    assert first == again
