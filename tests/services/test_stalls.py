"""Processes that stall or are told to end: the others go on, and nothing is done twice."""

import signal
import time

import pytest

from fedfa import failpoints
from fedfa.observability import EXIT_FENCED
from tests.services.faults import LONG_DELAY, SPEC, TRAINERS, World
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
]  # each takes 10 to 25 s on two idle cores


def phases(here: World, trainer: str) -> list[str]:
    """Of everything that a trainer holds, sorted."""
    return sorted(held["phase"] for held in here.jobs(trainer))


def in_training(here: World, trainer: str) -> set[tuple[object, ...]]:
    return {
        tuple(held["work"].values()) for held in here.jobs(trainer) if held["phase"] == "training"
    }


def zombies(here: World, name: str, trainer: str) -> list[object]:
    """What a trainer still holds although it is closed."""
    manifest = here.newest(name)
    assert manifest is not None
    slots = manifest.state.slots
    return [
        held
        for held in here.jobs(trainer)
        if held["federation"] == name
        and held["work"]["activity"] == "train"
        and slots[held["work"]["slot"]].generation > held["work"]["generation"]
    ]


def test_a_frozen_aggregator_is_fenced_and_ends_at_its_second_loss(here: World) -> None:
    # given an aggregator that freezes before each commit, and another that takes over
    name = here.running("frozen-aggregator")
    here.restart("aggregator", **{failpoints.VARIABLE: "commit.before_manifest=stop"})
    wait_for(lambda: here.is_frozen("aggregator"), seconds=60)
    second = here.stack.add_standby("aggregator")
    try:
        here.goes_on(name)  # beyond all that the first one holds, which it would freeze at again

        # when it wakes up, then it is fenced and goes on as the standby
        start = here.log_size("aggregator")
        here.signal("aggregator", signal.SIGCONT)
        wait_for(lambda: "fenced" in here.log("aggregator", start=start), seconds=30)
        wait_for(lambda: "broker connected" in here.log("aggregator", start=start), seconds=30)
        assert here.process("aggregator").is_running

        # when it leads and freezes again within the minute, then the next loss ends it
        here.process(second).kill()
        wait_for(lambda: here.is_frozen("aggregator"), seconds=30)
        here.restart(second)
        here.goes_on(name, by=3)
        here.signal("aggregator", signal.SIGCONT)
        wait_for(lambda: not here.process("aggregator").is_running, seconds=30)
        assert here.process("aggregator").exit_code == EXIT_FENCED
        here.restart("aggregator")
        here.goes_on(name)
    finally:
        here.stack.processes.pop(second).stop()
    here.stops_and_verifies(name)


@pytest.mark.parametrize("how", ["frozen", "unreachable"])
def test_a_trainer_that_falls_silent_loses_its_jobs_and_drops_them(here: World, how: str) -> None:
    # given a trainer in the middle of its work
    name = here.running(
        f"silent-{how}",
        task={"name": "tests.services.tasks:Slowed"},
        local=SPEC["local"] | {"steps": 15},
        evaluation={"every_versions": 10_000},
    )
    slow = here.slow / "trainer-1"
    fast = in_training(here, "trainer-1")
    slow.touch()
    fast |= in_training(here, "trainer-1")  # what began before it was slow may end at once
    wait_for(
        lambda: (
            phases(here, "trainer-1") == ["training", "waiting", "waiting"]
            and not fast & in_training(here, "trainer-1")
        ),
        seconds=60,
    )

    # when it is not heard for longer than a lease
    start, its_start = here.log_size("scheduler"), here.log_size("trainer-1")
    if how == "frozen":
        here.signal("trainer-1", signal.SIGSTOP)
    else:
        here.amqp.cut_off(b"trainer-1-")
    wait_for(lambda: here.log("scheduler", start=start).count("a lease expired") >= 2, seconds=60)
    here.goes_on(name)

    # then it drops, once it is back, what others have done meanwhile
    if how == "frozen":
        here.signal("trainer-1", signal.SIGCONT)
    else:
        here.amqp.heal()
    began = time.monotonic()
    wait_for(lambda: not zombies(here, name, "trainer-1"), seconds=30)
    print(f"\nno zombie {time.monotonic() - began:.2f} s after the trainer is back")
    slow.unlink()
    here.goes_on(name)
    assert here.log("trainer-1", start=its_start).count("outcome=dropped") >= 2
    here.stops_and_verifies(name)


def test_a_trainer_told_to_end_hands_back_what_does_not_fit(here: World) -> None:
    name = here.begin("told-to-end", delay=LONG_DELAY, concurrency=4)

    def held(trainer: str) -> set[tuple[int, int]]:
        works = [job["work"] for job in here.jobs(trainer) if job["phase"] == "delaying"]
        return {(work["slot"], work["generation"]) for work in works if work["activity"] == "train"}

    busy = wait_for(lambda: [each for each in TRAINERS if len(held(each)) >= 2], seconds=60)[0]
    mine = held(busy)
    start, began = here.log_size("scheduler"), time.monotonic()
    here.signal(busy, signal.SIGTERM)
    wait_for(lambda: mine <= set(here.sent(name, start=start)), seconds=15)
    print(f"\nhanded out again {time.monotonic() - began:.2f} s after SIGTERM")
    wait_for(lambda: not here.process(busy).is_running, seconds=15)
    assert here.process(busy).exit_code == 0
    here.restart(busy)
    here.stops_and_verifies(name)


def test_an_aggregator_told_to_end_finishes_its_commit(here: World) -> None:
    # given one in the middle of a commit
    name = here.running("told-to-end-too")
    here.restart("aggregator", **{failpoints.VARIABLE: "commit.before_manifest@1=stop"})
    wait_for(lambda: here.is_frozen("aggregator"), seconds=60)
    number = here.number(name)
    # when
    here.signal("aggregator", signal.SIGTERM)
    here.signal("aggregator", signal.SIGCONT)
    # then
    wait_for(lambda: not here.process("aggregator").is_running, seconds=30)
    assert here.process("aggregator").exit_code == 0
    assert here.number(name) > number
    here.restart("aggregator")
    here.goes_on(name)
    here.stops_and_verifies(name)
