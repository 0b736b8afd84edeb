"""The real services, booted into a simulated process; only the training itself is made up."""

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import cast

import numpy as np
from torch import nn

from fedfa import keys
from fedfa.broker import Consumer, Publisher
from fedfa.errors import Cancelled, Fenced
from fedfa.ledger import Ledger
from fedfa.merge import rule_of
from fedfa.messages import TrainJob
from fedfa.observability import Pulse
from fedfa.randomness import prf
from fedfa.tasks.base import Task
from fedfa.tensors import FlatModel, Template, Tensor
from fedfa.topology import BROADCAST_QUEUE, EVENTS_QUEUE, UPDATES_QUEUE
from fedfa.training import LocalResult
from fedfa_aggregator.collector import Collector
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.service import Aggregator
from fedfa_aggregator.service import run as run_aggregator
from fedfa_aggregator.views import Views
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.leases import Attempts
from fedfa_scheduler.service import Scheduler
from fedfa_scheduler.service import run as run_scheduler
from fedfa_scheduler.settings import SchedulerSettings
from fedfa_trainer.bucket import Bucket
from fedfa_trainer.held import Held
from fedfa_trainer.runtime import Runtime
from fedfa_trainer.service import Trainer, queues
from fedfa_trainer.settings import TrainerSettings
from fedfa_trainer.warm import Warm
from fedfa_trainer.work import Finished, Worker
from tests.simulation.broker import SimBroker, SimConsumer, SimPublisher
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults
from tests.simulation.scenario import LEASE_TTL_SECONDS, Scenario
from tests.simulation.store import FaultyStore, MemoryStore
from tests.simulation.world import Life, SimLock, SimSignal, World

SCHEDULER_SETTINGS = SchedulerSettings(
    lease_ttl_seconds=LEASE_TTL_SECONDS,
    reconcile_interval_seconds=3.0,
    discover_interval_seconds=6.0,
)
TASK_ALLOW = ("tests.simulation.task",)


class Services:
    """How each kind of process boots. A mutation replaces one of these methods."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        faults: Faults,
        memory: MemoryStore,
        broker: SimBroker,
        checker: Checker,
    ) -> None:
        self.world, self.scenario, self.faults = world, scenario, faults
        self.memory, self.broker, self.checker = memory, broker, checker
        self.aggregators: list[Life] = []

    def store(self, life: Life) -> FaultyStore:
        return FaultyStore(life, self.memory, self.faults)

    def publisher(self, life: Life) -> Publisher:
        return cast(Publisher, SimPublisher(self.broker, life))

    def aggregator(self, life: Life) -> Callable[[], None]:
        life.host.allowed_deaths = (Fenced,)
        self.aggregators.append(life)
        store, publisher = self.store(life), self.publisher(life)
        consumer = cast(Consumer, SimConsumer(self.broker, life, [(UPDATES_QUEUE, 64)]))
        collector = SimCollector(self.world, life, store)
        aggregator = Aggregator(
            store,
            lambda message, route, headers: publisher.publish(message, route, headers=headers),
            writer=f"{life.name}-{life.host.num_starts}",
            reader=Reader(store),
            views=Views(memory_bytes=10**9),
            tend=collector.tend,
            clock=life.unix,
            monotonic=life.clock,
        )
        pulse = Pulse(clock=life.clock)
        return lambda: run_aggregator(consumer, aggregator, store, pulse, sleep=self.world.sleep)

    def scheduler(self, life: Life) -> Callable[[], None]:
        attempts = Attempts(
            start_ms=int(life.unix() * 1000), random=self.world.random.getrandbits(32)
        )
        fleet = Fleet(lease_ttl_seconds=LEASE_TTL_SECONDS, attempts=attempts)
        consumer = cast(
            Consumer,
            SimConsumer(self.broker, life, [(EVENTS_QUEUE, 200), (BROADCAST_QUEUE, 200)]),
        )
        scheduler = SimScheduler(
            fleet,
            self.store(life),
            self.publisher(life),
            SCHEDULER_SETTINGS,
            clock=life.clock,
            unix_clock=life.unix,
        )
        return lambda: run_scheduler(consumer, scheduler, Pulse(clock=life.clock))

    def trainer(self, life: Life) -> Callable[[], None]:
        def start(name: str, body: Callable[[], None]) -> None:
            self.world.spawn(life, body)

        runtime = Runtime(
            clock=life.clock,
            unix=life.unix,
            signal=lambda: SimSignal(self.world),
            lock=lambda: SimLock(self.world),
            start=start,
        )
        store, publisher = self.store(life), self.publisher(life)
        settings = trainer_settings(
            life.name, self.scenario.jobs_per_trainer, self.scenario.pools_of(life.name)
        )
        consumer = cast(Consumer, SimConsumer(self.broker, life, queues(settings.pools)))
        bucket = Bucket(store)
        worker = SimWorker(self, life, store, bucket, publisher, runtime)
        trainer = SimTrainer(settings, consumer, publisher, bucket, worker, runtime=runtime)
        life.state["works"] = lambda: [each["work"] for each in trainer.jobs()[1]]
        life.at_death.append(lambda: self.checker.lost_touch(life))
        return trainer.run


@cache
def trainer_settings(name: str, jobs: int, pools: str) -> TrainerSettings:
    return TrainerSettings(
        trainer_name=name,
        trainer_jobs=jobs,
        trainer_pools=pools,
        trainer_task_allow=",".join(TASK_ALLOW),
    )


class SimCollector(Collector):
    """Its loop is one more thread of its aggregator, and deletes one object at a time."""

    def __init__(self, world: World, life: Life, store: FaultyStore) -> None:
        super().__init__(store, on_end=life.die, clock=life.unix, monotonic=life.clock)
        self._world, self._life = world, life
        self._stopping = cast(threading.Event, SimSignal(world))
        self._threads = cast(ThreadPoolExecutor, InOrder())

    def tend(self, ledger: Ledger) -> None:
        super().tend(ledger)
        if self._tended and self._loop is None:
            self._loop = Future()
            self._world.spawn(self._life, self._run)


class InOrder:
    def map(self, function: Callable[[str], None], keys: Iterable[str]) -> Iterator[None]:
        return map(function, keys)


class SimScheduler(Scheduler):
    def _show(self) -> None:
        """Nobody asks over HTTP, and metrics decide nothing."""


class SimTrainer(Trainer):
    def _measure(self) -> None:
        """Nor here."""


class SimComputer:
    """Its training is a pseudo-random vector, after a while."""

    def __init__(self, services: Services, life: Life) -> None:
        self._sim, self._life = services, life

    def build(self, task: Task) -> nn.Module:
        return task.model()

    def train(
        self, warm: Warm, base: FlatModel, job: TrainJob, should_stop: Callable[[], bool]
    ) -> LocalResult:
        world, scenario = self._sim.world, self._sim.scenario
        left = world.random.choice(scenario.train_seconds)
        with self._sim.checker.training(self._life, job) as still_trains:
            while left > 0:
                world.sleep(min(left, 0.5))
                left -= 0.5
                if should_stop():
                    raise Cancelled("it was told to stop")
                still_trains()
        if job.client in scenario.failing_clients:
            raise RuntimeError("no data")
        salt = int.from_bytes(hashlib.sha256(base.floats.tobytes()).digest()[:4], "big")
        seed = prf(warm.submission.spec.seed, "sim", job.slot, job.generation, salt)
        drawn = hashlib.sha256(seed.to_bytes(8, "big")).digest()[:20]
        floats = np.frombuffer(drawn, np.uint32).astype(np.float32) / np.float32(10 * 2**32)
        if rule_of(warm.submission.spec).sends == "models":
            floats = base.floats + floats
        return LocalResult(
            FlatModel(base.template, floats, base.integers),
            num_examples=10,
            num_steps=3,
            loss=0.5,
        )

    def evaluate(self, warm: Warm, model: FlatModel) -> dict[str, float]:
        self._sim.world.sleep(self._sim.world.random.random() * 2)
        if self._sim.world.random.random() < self._sim.scenario.evaluation_fails:
            raise RuntimeError("the evaluation broke")
        distance = float(np.abs(model.floats - np.arange(5, dtype=np.float32) / 10).sum())
        return {"accuracy": 1 - math.exp(-distance), "loss": 1.0}


class SimWorker(Worker):
    """The real worker, but for some updates that no honest trainer delivers."""

    def __init__(
        self,
        services: Services,
        life: Life,
        store: FaultyStore,
        bucket: Bucket,
        publisher: Publisher,
        runtime: Runtime,
    ) -> None:
        computer = SimComputer(services, life)
        super().__init__(bucket, publisher, computer, task_allow=TASK_ALLOW, runtime=runtime)
        self._sim, self._life, self._faulty = services, life, store

    def deliver(self, held: Held, job: TrainJob, finished: Finished) -> None:
        if self._sim.world.random.random() >= self._sim.scenario.bad_updates:
            super().deliver(held, job, finished)
            return
        way = self._sim.world.random.choice(("nan", "shape", "cut", "missing", "digest", "client"))
        self._sim.world.note(self._life.name, f"delivers a bad update: {way}")
        result, template = finished.result, finished.result.update.template
        floats = finished.result.update.floats
        if way == "nan":
            floats = floats * np.float32("nan")
        elif way == "shape":
            template = Template((Tensor("weight", "parameter", "F32", (6,)),))
            floats = np.zeros(6, np.float32)
        elif way == "client":
            job = job.model_copy(update={"client": f"{job.client}x"})
        update = FlatModel(template, floats, result.update.integers)
        spoiled = Finished(
            finished.base_version,
            LocalResult(update, result.num_examples, result.num_steps, result.loss),
            finished.started_at,
            finished.train_seconds,
            finished.spec,
        )
        folder = keys.updates_of(job.federation, job.slot, job.generation)
        ways: dict[str, Callable[[bytes], bytes | None]] = {
            "cut": lambda body: body[:-3],
            "missing": lambda body: None,
            "digest": lambda body: body[:-1] + bytes([body[-1] ^ 1]),
        }
        self._faulty.spoils[folder] = ways.get(way, lambda body: body)
        try:
            super().deliver(held, job, spoiled)
        finally:
            del self._faulty.spoils[folder]
