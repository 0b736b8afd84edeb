"""The checker has teeth: each deliberate mistake in the protocol is caught within a few seeds."""

from dataclasses import replace

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.pool import caught_after
from tests.simulation.schedule import run_schedule

AT_MOST = 300  # seeds


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_protocol_is_caught(name: str, seed: int | None) -> None:
    if seed is not None:
        pytest.skip("--seed replays one schedule of the protocol as it is")
    mutation = MUTATIONS[name]

    outcome = caught_after(mutation, at_most=AT_MOST)

    assert outcome is not None, f"{AT_MOST} schedules passed with this mistake: {name}"
    for each in range(outcome.seed + 1):  # the same schedules, without the mistake
        assert run_schedule(each, mutation=replace(mutation, apply=None)).violations == ()
