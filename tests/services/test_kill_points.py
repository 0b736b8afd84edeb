"""SIGKILL at each step boundary of each service: the run goes on unaided, and nothing is lost.

FEDFA_TEST_KILL_ROUNDS repeats every kill so many times within its federation.
"""

import os
import signal
import statistics
import time
from collections import deque
from collections.abc import Sequence

import pytest

from fedfa import failpoints, keys
from fedfa.broker import Publisher
from fedfa.settings import BrokerSettings
from fedfa.topology import DEAD_QUEUE, EVENTS, UPDATES, jobs
from tests.services.faults import TRAINERS, World
from tests.waiting import wait_for

ROUNDS = int(os.environ.get("FEDFA_TEST_KILL_ROUNDS", "1"))
AT_BIRTH = ("aggregator.birth_read", "trainer.initial")
BIRTH_STEPS = (
    "aggregator.birth_read",
    "commit.before_manifest",
    "commit.after_manifest",
    "aggregator.published",
)
OF_HOPELESS = ("scheduler.before_abandon", "scheduler.before_evaluation_failure")
OF_POISON = ("aggregator.buried", "scheduler.buried", "trainer.buried")
SELDOM = (*OF_HOPELESS, *OF_POISON, "trainer.failure_reported", "aggregator.collected")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(600 * ROUNDS),
]  # each takes 10 to 40 s on two idle cores


def places(service: str) -> list[str]:
    """The failpoints of a running federation; commit.* are the aggregator's."""
    prefixes = ("aggregator.", "commit.") if service == "aggregator" else (f"{service}.",)
    names = [name for name in failpoints.NAMES if name.startswith(prefixes)]
    return [name for name in names if not name.startswith(AT_BIRTH + SELDOM)]


class Killer:
    """Arms one failpoint after the other in processes of one service, restarting the dead."""

    def __init__(self, here: World, processes: Sequence[str], armed: Sequence[str]) -> None:
        self._here = here
        self._todo = deque(armed)
        self._armed: dict[str, str] = {}
        self.struck: list[str] = []
        self.restarts = 0
        self.restarted_at = 0.0
        for process in processes:
            here.process(process).kill()
            self._restart(process)

    @property
    def has_more(self) -> bool:
        """Restarts whatever has died since; says whether a failpoint is still to strike."""
        for process in [each for each in self._armed if not self._here.process(each).is_running]:
            assert self._here.process(process).exit_code == -signal.SIGKILL, process
            if place := self._armed[process]:
                self.struck.append(place)
            self._restart(process)
        return any(self._armed.values())

    def _restart(self, process: str) -> None:
        place = self._todo.popleft() if self._todo else ""
        self._armed[process] = place
        self.restarts += 1
        self.restarted_at = time.monotonic()
        self._here.stack.restart(process, **{failpoints.VARIABLE: place})


def test_an_aggregator_killed_at_each_step_recovers_by_itself(here: World) -> None:
    name = here.running("aggregator-dies")
    todo = [  # some work between deaths; HEAD.json is put seldom enough
        place if place == "aggregator.head_put" else f"{place}@2" for place in places("aggregator")
    ] * ROUNDS
    killer = Killer(here, ["aggregator"], todo)
    took: list[float] = []
    restarts, seen = 0, -1

    def is_dead() -> bool:
        return not here.process("aggregator").is_running

    def has_committed() -> bool:
        return here.number(name) > seen

    while killer.has_more:
        if killer.restarts > restarts:  # the last one may have died before its first commit
            restarts, seen = killer.restarts, here.number(name)
        wait_for(lambda: has_committed() or is_dead(), seconds=60)
        if has_committed():
            took.append(time.monotonic() - killer.restarted_at)
        wait_for(lambda: is_dead() or not killer.has_more, seconds=60)
    assert killer.struck == todo
    here.goes_on(name)
    here.stops_and_verifies(name)
    ordered = sorted(took)
    print(f"\n{len(todo)} kills; seconds from a restart to its first commit: median", end=" ")
    print(f"{statistics.median(ordered):.2f}, worst {ordered[-1]:.2f} of {len(ordered)}")


def test_trainers_killed_at_each_step_lose_only_what_they_held(here: World) -> None:
    name = here.running("trainers-die", evaluation={"every_versions": 2})
    todo = places("trainer") * ROUNDS
    killer = Killer(here, ["trainer-1", "trainer-2"], todo)
    wait_for(lambda: not killer.has_more, seconds=500 * ROUNDS)
    assert sorted(killer.struck) == sorted(todo)
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_scheduler_killed_at_each_step_forgets_nothing(here: World) -> None:
    name = here.running("scheduler-dies")
    todo = [f"{place}@3" for place in places("scheduler")] * ROUNDS
    killer = Killer(here, ["scheduler"], todo)
    wait_for(lambda: not killer.has_more, seconds=500 * ROUNDS)
    assert killer.struck == todo
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_scheduler_killed_while_giving_up_gives_up_all_the_same(here: World) -> None:
    killer = Killer(here, ["trainer-1", "scheduler"], ["trainer.failure_reported", *OF_HOPELESS])
    name = here.begin(
        "hopeless", task={"name": "tests.services.tasks:Hopeless"}, limits={"max_attempts": 2}
    )
    wait_for(lambda: not killer.has_more, seconds=80)
    assert sorted(killer.struck) == sorted(["trainer.failure_reported", *OF_HOPELESS])

    def has_given_up() -> bool:
        manifest = here.newest(name)
        is_abandoned = manifest is not None and manifest.state.num_abandoned > 0
        return is_abandoned and here.store.exists(keys.evaluation(name, 0))

    wait_for(has_given_up, seconds=60)
    assert b"nobody kept the test images" in here.store.get(keys.evaluation(name, 0))
    here.stops_and_verifies(name)


def test_poison_is_kept_whoever_dies_while_burying_it(here: World) -> None:
    name = here.running("poisoned-to-death")
    publisher = Publisher(BrokerSettings.model_validate({"url": here.rabbit.url}), name="test")
    before, _ = publisher.counts(DEAD_QUEUE.name)
    armed = [*OF_POISON, "trainer.buried"]  # whichever trainer takes it
    killer = Killer(here, ["aggregator", "scheduler", *TRAINERS], armed)
    for route in (UPDATES, EVENTS):
        here.publish(b"poison", route=route)
    here.publish(*[b"poison"] * 4, route=jobs("default"))
    wait_for(lambda: not killer.has_more, seconds=60)
    assert sorted(killer.struck) == sorted(armed)
    # what was not acknowledged when its service died is buried again
    buried = before + 6 + len(armed)
    wait_for(lambda: publisher.counts(DEAD_QUEUE.name)[0] == buried, seconds=30)
    publisher.close()
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_an_aggregator_killed_while_it_collects_leaves_nothing_that_is_needed(here: World) -> None:
    here.process("aggregator").kill()
    here.stack.restart("aggregator", **{failpoints.VARIABLE: "aggregator.collected@5"})
    bounded = {"keep": "bounded", "keep_last": 3, "min_age_seconds": 0}
    name = here.begin("collected", retention=bounded)
    wait_for(lambda: not here.process("aggregator").is_running, seconds=60)
    here.stack.restart("aggregator")
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_birth_survives_a_kill_at_each_of_its_steps(here: World) -> None:
    # an aggregator at rest, so that the first commit it reaches is the birth
    for number, place in enumerate(BIRTH_STEPS):
        here.stack.restart("aggregator", **{failpoints.VARIABLE: place})
        name = here.begin(f"birth-{number}", stop={"updates": 4})
        wait_for(lambda: not here.process("aggregator").is_running, seconds=30)
        here.stack.restart("aggregator")
        assert here.ends(name).state.status == "finished"
        assert here.stops_and_verifies(name)[-1].state.num_merged == 4


def test_an_initialisation_survives_a_kill_at_each_of_its_steps(here: World) -> None:
    initial = [place for place in failpoints.NAMES if place.startswith("trainer.initial")]
    killer = Killer(here, ["trainer-1", "trainer-2"], initial)
    patient = {"stop": {"updates": 4}, "limits": {"max_attempts": 20}}  # a killed one counts
    names = [here.begin(f"initial-{number}", **patient) for number in range(len(initial))]
    wait_for(lambda: not killer.has_more, seconds=300)
    assert sorted(killer.struck) == sorted(initial)
    for name in names:
        assert here.ends(name).state.status == "finished"
        assert here.stops_and_verifies(name)[-1].state.num_merged == 4
