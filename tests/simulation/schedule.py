"""Runs one schedule: the world of a seed, until every federation has ended or a rule is broken."""

import logging
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedfa import keys
from fedfa.canonical import canonical_json
from fedfa.errors import AlreadyExists
from fedfa.messages import StartFederation
from fedfa.spec import FederationSpec, Submission
from fedfa.topology import EVENTS, UPDATES_QUEUE
from tests.simulation.actors import Services
from tests.simulation.broker import SimBroker
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults, Mix
from tests.simulation.memo import memo
from tests.simulation.scenario import FAR, LEASE_TTL_SECONDS, LONGEST_SECONDS, Scenario
from tests.simulation.store import MemoryStore
from tests.simulation.world import UNIX_EPOCH, Host, Life, World


@dataclass(frozen=True, slots=True)
class Outcome:
    """violations: empty if every invariant held. trace: one line for each effect."""

    seed: int
    violations: tuple[str, ...]
    num_effects: int
    virtual_seconds: float
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """The protocol with one thing wrong. scenario, faults: what makes that thing matter more often.

    apply: patches the product for the time of the run; the checker's verdict is the product's.
    """

    apply: Callable[[], AbstractContextManager[object]] | None
    scenario: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, Any] = field(default_factory=dict)


def run_schedule(
    seed: int, *, mutation: Mutation | None = None, keeps_trace: bool = False
) -> Outcome:
    logging.getLogger().manager.disable = logging.CRITICAL  # thousands of simulated outages
    random.seed(seed)  # trainers draw their waits from it
    world = World(seed, keeps_trace=keeps_trace)
    scenario, mix = Scenario.draw(world.random), Mix.draw(world.random)
    if mutation is not None:
        scenario = replace(scenario, **mutation.scenario)
        mix = replace(mix, **mutation.faults)
    world.note("world", f"{scenario}")
    world.note("world", f"{mix}")
    checker = Checker(world, lease_ttl_seconds=LEASE_TTL_SECONDS)
    faults = Faults(world, mix)
    memory = MemoryStore(checker)
    broker = SimBroker(world, faults, checker)
    sim = Services(world, scenario, faults, memory, broker, checker)
    hosts = _hosts(sim)
    for host in hosts:
        host.at_stall = lambda life: _stalled(broker, checker, life)
    faults.plan(hosts, broker, until=scenario.calm_at)
    if scenario.has_two_pools and scenario.far_dies is not None:
        at, seconds = scenario.far_dies
        for host in hosts:
            if host.role == "trainer" and scenario.pools_of(host.name) == FAR:
                world.call_at(at, partial(host.leave, seconds))
    user = _user(sim)

    def is_over() -> bool:
        return bool(checker.violations or world.problems) or (
            user.is_done and _is_quiet(broker) and checker.has_ended(memory)
        )

    with memo(), mutation.apply() if mutation and mutation.apply else nullcontext():
        if not world.run(is_over, deadline=scenario.calm_at + LONGEST_SECONDS):
            checker.fail("the run does not end by itself")
        for host in [*hosts, user.host]:
            host.life.is_dead = True
            for task in host.life.tasks:
                world.kill(task)
        checker.finish(memory)
    return Outcome(
        seed, tuple(checker.violations), world.num_effects, world.now, tuple(world.trace or ())
    )


def _stalled(broker: SimBroker, checker: Checker, life: Life) -> None:
    broker.notice_stall(life)
    if life.host.role == "trainer":
        checker.lost_touch(life)


def _is_quiet(broker: SimBroker) -> bool:
    """No update waits for an answer."""
    queue = broker.queues.get(UPDATES_QUEUE.name)
    unacked = any(UPDATES_QUEUE.name in each.unacked.values() for each in broker.consumers)
    return not unacked and (queue is None or not queue.letters)


def _hosts(sim: Services) -> list[Host]:
    world, scenario = sim.world, sim.scenario
    kinds: list[tuple[str, int, Callable[[Life], Callable[[], None]]]] = [
        ("aggregator", scenario.num_aggregators, sim.aggregator),
        ("scheduler", scenario.num_schedulers, sim.scheduler),
        ("trainer", scenario.num_trainers, sim.trainer),
    ]
    hosts = []
    for role, number, boot in kinds:
        for at in range(number):
            host = Host(world, f"{role}-{at}", boot, role)
            hosts.append(host)
            begin = scenario.trainers_start_at if role == "trainer" else 0.0
            world.call_at(begin + world.random.random(), host.start)
    return hosts


class User:
    """Submits, stops, deletes and submits again. It is never killed."""

    def __init__(self, sim: Services) -> None:
        self.is_done = False
        self._sim = sim
        self.host = Host(sim.world, "user", self._boot, "user")

    def _boot(self, life: Life) -> Callable[[], None]:
        return lambda: self._act(life)

    def _act(self, life: Life) -> None:
        sim, scenario = self._sim, self._sim.scenario
        names = [f"fed-{at}" for at in range(len(scenario.specs))]
        for name, spec in zip(names, scenario.specs, strict=True):
            self._submit(life, name, spec)
        if scenario.stops_at is not None:
            sim.world.sleep(scenario.stops_at)
            for name in names:
                self._stop(life, name)
        if scenario.resubmits:
            while not sim.checker.has_ended(sim.memory) or self._may_commit_still():
                sim.world.sleep(1.0)
            sim.world.note("user", f"deletes {names[0]}")
            for key in [each for each in sim.memory.objects if each.startswith(f"{names[0]}/")]:
                sim.memory.delete(key)
            sim.checker.deleted(names[0])
            spec = scenario.specs[0].model_copy(
                update={"stop": scenario.specs[0].stop.model_copy(update={"updates": 6})}
            )
            self._submit(life, names[0], spec)
        self.is_done = True

    def _may_commit_still(self) -> bool:
        """A commit that begins before the deletion must not land after it: people wait a little."""
        recently = self._sim.world.now - 8.0
        return any(life.last_stall > recently for life in self._sim.aggregators) or any(
            run.log[-1].manifest.at > UNIX_EPOCH + recently
            for run in self._sim.checker.runs.values()
        )

    def _submit(self, life: Life, name: str, spec: FederationSpec) -> None:
        uid = f"{self._sim.world.random.getrandbits(128):032x}"
        submission = Submission(
            federation=name,
            uid=uid,
            created_at=life.unix(),
            spec=self._sim.scenario.spec(spec),
        )
        body = submission.model_dump_json(by_alias=True).encode()
        self._sim.memory.create(keys.spec(name), body)
        self._sim.world.note("user", f"submits {name} as {uid}")
        self._hint(life, submission)

    def _stop(self, life: Life, name: str) -> None:
        submission = Submission.model_validate_json(self._sim.memory.get(keys.spec(name)))
        with suppress(AlreadyExists):
            body = canonical_json({"at": life.unix(), "reason": "enough"}).encode()
            self._sim.memory.create(keys.stop(name), body)
        self._sim.world.note("user", f"stops {name}")
        self._hint(life, submission)

    def _hint(self, life: Life, submission: Submission) -> None:
        message = StartFederation(federation=submission.federation, uid=submission.uid)
        self._sim.publisher(life).publish(message, EVENTS)


def _user(sim: Services) -> User:
    user = User(sim)
    user.host.start()
    return user
