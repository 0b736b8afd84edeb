"""The trainer process on a real broker and a real bucket, with the real digits task."""

import json
import os
import secrets
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fedfa import keys, ledger, modules, replica, submission
from fedfa.broker import Consumer, Publisher
from fedfa.canonical import sha256
from fedfa.events import Abandoned, Job, Update
from fedfa.federation import Client
from fedfa.ledger import Ledger
from fedfa.local.processes import ServerProcess, free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.log import Birth, ModelRef
from fedfa.messages import (
    EvalJob,
    EvalReady,
    InitModel,
    InitReady,
    JobFailed,
    JobHeartbeat,
    JobReleased,
    JobStarted,
    ModelReady,
    RollCall,
    TrainJob,
    UpdateReady,
)
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.spec import Submission, parse
from fedfa.tasks import base as tasks
from fedfa.tensor_files import encode, read_header
from fedfa.topology import (
    BROADCAST,
    BROADCAST_QUEUE,
    DEAD_QUEUE,
    EVENTS_QUEUE,
    UPDATES_QUEUE,
    jobs,
)
from tests.proxy import Proxy
from tests.servers import own_bucket, port_of, variables, virtual_host
from tests.waiting import wait_for

M = TypeVar("M")

GRACE_SECONDS = 8.0
UNHURRIED_SECONDS = 600.0  # of a lease: its first heartbeat is due after 150 s
QUICK = {"epochs": 1}
ENDLESS = {"epochs": 1_000_000}
OWN_TASK = '''
from fedfa.tasks.digits import Digits

class Clumsy(Digits):
    """Fails in its loss, the way a mistake in somebody's task does."""

    def loss(self, model, batch):
        raise ValueError("the labels are upside down")

class Frozen(Digits):
    """Its frozen weights are different in every process."""

    def network(self):
        import torch
        network = super().network()
        network[0].weight.requires_grad_(False)
        network[0].weight.copy_(torch.randn(network[0].weight.shape, generator=fresh()))
        return network

class Slow(Digits):
    """Takes 20 ms for each batch, and 2 s for an evaluation."""

    def loss(self, model, batch):
        import time
        time.sleep(0.02)
        return super().loss(model, batch)

    def evaluate(self, model):
        import time
        time.sleep(2)
        return super().evaluate(model)

class Hanging(Digits):
    """Never ends its first step."""

    def loss(self, model, batch):
        import time
        while True:
            time.sleep(1)

def fresh():
    import torch
    generator = torch.Generator()
    generator.seed()
    return generator
'''


class Ears:
    """Hears everything that trainers say, in order of arrival."""

    def __init__(self, settings: BrokerSettings) -> None:
        queues = [EVENTS_QUEUE, UPDATES_QUEUE, BROADCAST_QUEUE, DEAD_QUEUE]
        self._consumer = Consumer(settings, [(queue, 100) for queue in queues], name="ears")
        self._heard: list[tuple[str, Any]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for delivery in self._consumer:
            if delivery is not None:
                self._heard.append((delivery.queue, delivery.message()))
                delivery.ack()

    def all(self, kind: type[M], submitted: Submission, *, queue: str | None = None) -> list[M]:
        return [
            message
            for where, message in self._heard
            if isinstance(message, kind)
            and getattr(message, "uid", "") == submitted.uid
            and (where == queue if queue is not None else where != BROADCAST_QUEUE.name)
        ]

    def first(
        self, kind: type[M], submitted: Submission, *, seconds: float = 30.0, number: int = 1
    ) -> M:
        """The first (or a later) message of a kind about a federation, once it arrives."""
        heard = wait_for(
            lambda: self.all(kind, submitted)[number - 1 : number], seconds=seconds, of=kind
        )
        return heard[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(5)


@dataclass
class World:
    """A broker, a bucket, ears, and what schedulers and aggregators would do there."""

    broker: BrokerSettings
    bucket: StoreSettings
    store: S3Store
    publisher: Publisher
    ears: Ears
    proxy: Proxy  # between the trainers and the bucket
    folder: Path
    attempts: int = 0

    def submit(
        self, *, local: dict[str, Any] = QUICK, task: str = "digits", **limits: float
    ) -> Submission:
        spec = parse(
            {
                "task": {"name": task},
                "limits": limits,
                "clients": 20,
                "concurrency": 4,
                "rule": {"name": "fedfa-delta", "window": 1},
                "local": local,
                "seed": 7,
            }
        )
        return submission.submit(self.store, spec, submission.new_id("digits"))

    def bear(
        self, *, local: dict[str, Any] = QUICK, task: str = "digits", **limits: float
    ) -> Ledger:
        """A federation with manifest 0."""
        submitted = self.submit(local=local, task=task, **limits)
        digits = tasks.load(submitted.spec.model_copy(update={"task": DIGITS}), [])
        module = digits.model()
        template = modules.template_of(module)
        model = modules.read(module, template)
        clients = tuple(Client(name, count) for name, count in digits.clients().items())
        birth = Birth(clients, template, modules.frozen_digest(module))
        body = encode(model, ledger.birth_metadata(birth))
        key = keys.model(submitted.federation, 0, sha256(body))
        self.store.put(key, body)
        reference = ModelRef(0, key, sha256(body))
        return ledger.bear(
            self.store, submitted, reference, birth, model, writer="test", now=time.time()
        )

    def merge(self, before: Ledger, ready: UpdateReady) -> Ledger:
        """Commit an update, as an aggregator does; it is not announced."""
        assert before.replica is not None
        assert before.birth is not None
        fields = ready.model_dump(
            exclude={"schema_version", "kind", "federation", "uid", "slot", "generation"}
        )
        update = Update(job=Job(ready.slot, ready.generation), **fields)
        vector = ledger.read_vector(self.store, ready.key, update.digest, before.birth.template)
        after, decisions = replica.merge(before.replica, update, vector)
        return ledger.commit(self.store, before, after, decisions, writer="test", now=time.time())

    def attempt(self) -> str:
        self.attempts += 1
        return f"1764495000000-0a1b2c3d-{self.attempts:06d}"

    def train_job(
        self,
        at: Ledger,
        slot: int = 0,
        *,
        delay_seconds: float = 0.0,
        lease_ttl_seconds: float = 4.0,
    ) -> TrainJob:
        where = at.state.slots[slot]
        return TrainJob(
            federation=at.submission.federation,
            uid=at.submission.uid,
            slot=slot,
            generation=where.generation,
            attempt=self.attempt(),
            client=where.client,
            opened_at=where.opened_at,
            delay_seconds=delay_seconds,
            lease_ttl_seconds=lease_ttl_seconds,
        )

    def init_job(self, submitted: Submission) -> InitModel:
        return InitModel(
            federation=submitted.federation,
            uid=submitted.uid,
            attempt=self.attempt(),
            lease_ttl_seconds=4.0,
        )

    def send(self, order: TrainJob | EvalJob | InitModel, *, to: "TrainerProcess") -> None:
        self.publisher.publish(order, jobs(to.pool), timeout_seconds=20)

    def tell_everyone(self, message: ModelReady | JobStarted | RollCall) -> None:
        self.publisher.publish(message, BROADCAST, timeout_seconds=20)

    def call_the_roll(self, at: Ledger, *slots: int) -> None:
        """Until each slot answers, and so has heard whatever was broadcast before.

        Their leases must be unhurried, or a heartbeat would pass for an answer.
        """
        before = self._heartbeats(at)
        self.tell_everyone(RollCall())

        def has_answered() -> bool:
            now = self._heartbeats(at)
            return all(now[slot] > before[slot] for slot in slots)

        wait_for(has_answered, seconds=20, of="the roll call")

    def _heartbeats(self, at: Ledger) -> Counter[int | None]:
        return Counter(beat.slot for beat in self.ears.all(JobHeartbeat, at.submission))

    def start_trainer(
        self, *, held: int = 1, grace_seconds: float = 25.0, prefetch: bool = False
    ) -> "TrainerProcess":
        return TrainerProcess(self, held=held, grace_seconds=grace_seconds, prefetch=prefetch)


class TrainerProcess:
    """A trainer in a pool of its own, so that only it gets the jobs meant for it."""

    def __init__(self, world: World, *, held: int, grace_seconds: float, prefetch: bool) -> None:
        self.pool = f"pool-{secrets.token_hex(4)}"
        self.name = f"trainer-of-{self.pool}"
        self.port = free_port()
        (world.folder / "own_task.py").write_text(OWN_TASK)
        environment = {
            **os.environ,
            **variables(world.bucket, world.broker),
            "PYTHONPATH": os.pathsep.join([*sys.path, str(world.folder)]),
            "FEDFA_S3_ENDPOINT": f"http://127.0.0.1:{world.proxy.port}",
            "FEDFA_S3_OUTAGE_SECONDS": "1",
            "FEDFA_HTTP_PORT": str(self.port),
            "FEDFA_LOG_JSON": "false",
            "FEDFA_TRAINER_NAME": self.name,
            "FEDFA_TRAINER_POOLS": self.pool,
            "FEDFA_TRAINER_JOBS": str(held),
            "FEDFA_TRAINER_PREFETCH": str(prefetch),
            "FEDFA_TRAINER_TASK_ALLOW": "own_task",
            "FEDFA_TRAINER_GRACE_SECONDS": str(grace_seconds),
            "FEDFA_TRAINER_TORCH_THREADS": "1",
        }
        self.process = ServerProcess(
            self.name,
            [sys.executable, "-m", "fedfa_trainer"],
            log=world.folder / f"{self.name}.log",
            env=environment,
        )

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def phases(self) -> list[str]:
        """What /jobs shows; raises nothing while the process starts, or is too busy to answer."""
        try:
            held = json.loads(self.get("/jobs"))
        except OSError:
            return ["starting"]
        return sorted(job["phase"] for job in held)

    def wait_for_phase(self, *phases: str, seconds: float = 30.0) -> None:
        wait_for(lambda: self.phases() == sorted(phases), seconds=seconds, of=phases)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        os.kill(self.process.pid, signal.SIGTERM)
        return self.exit_status(seconds=20)

    def exit_status(self, *, seconds: float) -> int:
        wait_for(lambda: not self.process.is_running, seconds=seconds, of="the end")
        status = self.process._process.returncode
        assert isinstance(status, int)
        return status


DIGITS = parse({"clients": 20}).task


@pytest.fixture(scope="module")
def world(
    rabbit: RabbitMQ, s3: StoreSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    broker = virtual_host(rabbit).model_copy(update={"reconnect_max_seconds": 1.0})
    bucket = own_bucket(s3)
    store = S3Store(bucket)
    store.ensure_bucket()
    publisher, ears = Publisher(broker, name="test"), Ears(broker)
    with Proxy(port_of(s3)) as proxy:
        yield World(
            broker, bucket, store, publisher, ears, proxy, tmp_path_factory.mktemp("trainer")
        )
    ears.close()
    publisher.close()


@pytest.fixture(scope="module")
def mortals(world: World) -> Iterator[list[TrainerProcess]]:
    """Trainers for the tests that end one; they start while other tests run."""
    trainers = [world.start_trainer(held=2, grace_seconds=GRACE_SECONDS) for _ in range(3)]
    yield list(trainers)
    for trainer in trainers:
        trainer.process.stop()


@pytest.fixture(scope="module")
def shared(world: World, mortals: list[TrainerProcess]) -> Iterator[TrainerProcess]:
    """A trainer that holds two jobs, for all tests that do not end it."""
    del mortals  # started as early as this one
    trainer = world.start_trainer(held=2)
    yield trainer
    trainer.process.stop()


@pytest.fixture
def trainer(shared: TrainerProcess) -> Iterator[TrainerProcess]:
    yield shared
    assert shared.process.is_running, shared.process.log_tail()
    shared.wait_for_phase()  # whatever the test did, it holds nothing any more


# -- the three kinds of work ----------------------------------------------------------------------


def test_initialisation_gives_version_0_with_its_birth_certificate(
    world: World, trainer: TrainerProcess
) -> None:
    submitted = world.submit()
    world.send(world.init_job(submitted), to=trainer)

    ready = world.ears.first(InitReady, submitted, seconds=40)

    body = world.store.get(ready.key)
    birth, model = ledger.birth_from(body)
    assert sha256(body) == ready.digest
    assert ready.key == keys.model(submitted.federation, 0, ready.digest)
    task = tasks.load(submitted.spec, [])
    assert birth.clients == tuple(Client(*item) for item in task.clients().items())
    assert birth.template == modules.template_of(task.model())
    assert (model.floats == modules.read(task.model(), birth.template).floats).all()
    started = world.ears.first(JobStarted, submitted)
    assert (started.task, started.slot, started.trainer) == ("init", None, trainer.name)


def test_initialisation_of_a_born_federation_is_dropped(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    world.send(world.init_job(born.submission), to=trainer)

    world.ears.first(JobStarted, born.submission)
    trainer.wait_for_phase()

    assert not world.ears.all(InitReady, born.submission)


def test_update_file_says_what_its_message_says(world: World, trainer: TrainerProcess) -> None:
    born = world.bear()
    assert born.birth is not None
    job = world.train_job(born, slot=2)
    world.send(job, to=trainer)

    ready = world.ears.first(UpdateReady, born.submission, seconds=40)

    body = world.store.get(ready.key)
    assert read_header(body).metadata == ready.model_dump(by_alias=True, exclude={"key", "digest"})
    assert ready.digest == sha256(body)
    assert ready.key == keys.update(
        job.federation, job.slot, job.generation, job.attempt, ready.digest
    )
    vector = ledger.read_vector(world.store, ready.key, ready.digest, born.birth.template)
    assert vector.floats.any()
    sizes = {client.name: client.num_examples for client in born.birth.clients}
    assert (ready.client, ready.num_examples) == (job.client, sizes[job.client])
    assert (ready.base_version, ready.trainer) == (0, trainer.name)
    for queue in (EVENTS_QUEUE.name, BROADCAST_QUEUE.name):
        [started] = world.ears.all(JobStarted, born.submission, queue=queue)
        assert (started.task, started.slot, started.attempt) == ("train", 2, job.attempt)
    assert 'fedfa_jobs_total{outcome="delivered"}' in trainer.get("/metrics")


def test_training_waits_for_the_version_that_opened_its_job(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    first = world.train_job(born)
    world.send(first, to=trainer)
    update = world.ears.first(UpdateReady, born.submission)
    after = world.train_job(born).model_copy(update={"generation": 2, "opened_at": 1})
    world.send(after, to=trainer)
    world.ears.first(JobStarted, born.submission, number=2)
    trainer.wait_for_phase("waiting")

    world.merge(born, update)

    second = world.ears.first(UpdateReady, born.submission, number=2)
    assert (second.base_version, second.generation) == (1, 2)


def test_evaluation_is_written_once_and_announced_each_time(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    model = born.head.manifest.model
    assert model is not None
    order = EvalJob(
        federation=born.submission.federation,
        uid=born.submission.uid,
        attempt=world.attempt(),
        version=0,
        key=model.key,
        digest=model.digest,
        lease_ttl_seconds=4.0,
    )
    world.send(order, to=trainer)
    world.ears.first(EvalReady, born.submission)
    result = world.store.get(keys.evaluation(order.federation, 0))

    world.send(order.model_copy(update={"attempt": world.attempt()}), to=trainer)
    world.ears.first(EvalReady, born.submission, number=2)

    assert world.store.get(keys.evaluation(order.federation, 0)) == result
    fields = json.loads(result)
    assert set(fields) == {"version", "metrics", "at", "trainer", "seconds"}
    assert 0 < fields["metrics"]["accuracy"] < 0.5  # untrained


# -- holding --------------------------------------------------------------------------------------


def test_delays_overlap_while_one_job_computes(world: World, trainer: TrainerProcess) -> None:
    born = world.bear(local={"epochs": 40})
    began = time.monotonic()
    for slot in (0, 1):
        world.send(world.train_job(born, slot, delay_seconds=2.0), to=trainer)

    first = world.ears.first(UpdateReady, born.submission, number=1)
    second = world.ears.first(UpdateReady, born.submission, number=2)
    seconds = time.monotonic() - began

    assert {first.slot, second.slot} == {0, 1}
    training = first.train_seconds + second.train_seconds
    assert seconds < training + 2 * 2.0 - 0.5, "the delays were slept one after the other"
    [earlier, later] = sorted((first, second), key=lambda ready: ready.started_at)
    assert later.started_at >= earlier.started_at + earlier.train_seconds, "both computed at once"
    assert later.started_at < earlier.started_at + earlier.train_seconds + 2.0
    assert first.delay_seconds == 2.0


def test_prefetching_trainer_reads_the_next_jobs_model_while_one_trains(world: World) -> None:
    trainer = world.start_trainer(held=1, prefetch=True)
    born = world.bear(local={"epochs": 60}, task="own_task:Slow")
    world.send(world.train_job(born, 0), to=trainer)
    update = world.ears.first(UpdateReady, born.submission)
    model = born.head.manifest.model
    assert model is not None
    read = f"GET /{world.bucket.bucket}/{model.key}".encode()
    before = world.proxy.num_requests(read)
    for slot in (1, 2):
        world.send(world.train_job(born, slot), to=trainer)
    trainer.wait_for_phase("training", "waiting")
    wait_for(lambda: world.proxy.num_requests(read) >= before + 2, of="two reads of the model")

    world.merge(born, update)

    assert trainer.phases() == ["training", "waiting"]
    later = [world.ears.first(UpdateReady, born.submission, number=number) for number in (2, 3)]
    assert {(ready.slot, ready.base_version) for ready in later} == {(1, 0), (2, 0)}
    trainer.process.stop()


def test_trainer_at_capacity_leaves_further_jobs_in_the_queue(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    for slot in range(3):
        world.send(world.train_job(born, slot, delay_seconds=1.5), to=trainer)
    trainer.wait_for_phase("delaying", "delaying")

    ready, _ = world.publisher.counts(f"fedfa.jobs.{trainer.pool}")
    held = len(trainer.phases())

    assert (held, ready) == (2, 1)
    world.ears.first(UpdateReady, born.submission, number=3)  # and takes it once there is room


def test_job_that_is_held_already_is_trained_once_under_the_greater_attempt(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    job = world.train_job(born, delay_seconds=1.5)
    world.send(job, to=trainer)
    trainer.wait_for_phase("delaying")

    again = job.model_copy(update={"attempt": world.attempt()})
    world.send(again, to=trainer)

    assert world.ears.first(JobStarted, born.submission, number=2).attempt == again.attempt
    assert trainer.phases() == ["delaying"]
    update = world.ears.first(UpdateReady, born.submission)
    assert update.attempt == again.attempt
    trainer.wait_for_phase()
    assert len(world.ears.all(UpdateReady, born.submission)) == 1


def test_heartbeats_come_for_as_long_as_a_job_is_held(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    job = world.train_job(born, delay_seconds=60.0, lease_ttl_seconds=2.0)
    world.send(job, to=trainer)

    world.ears.first(JobHeartbeat, born.submission, number=9)  # of two leases

    world.tell_everyone(_the_end(job))
    trainer.wait_for_phase()


def test_a_roll_call_is_answered_at_once_for_every_job_held(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    unhurried = {"delay_seconds": 60.0, "lease_ttl_seconds": UNHURRIED_SECONDS}
    jobs_held = [world.train_job(born, slot, **unhurried) for slot in (0, 1)]
    for job in jobs_held:
        world.send(job, to=trainer)
    trainer.wait_for_phase("delaying", "delaying")

    world.call_the_roll(born, 0, 1)

    world.tell_everyone(_the_end(jobs_held[0]))


def test_start_of_a_job_is_known_before_its_message_is_forgotten(
    world: World, rabbit: RabbitMQ, trainer: TrainerProcess
) -> None:
    # given an event queue that refuses whatever is published to it
    vhost = world.broker.url.get_secret_value().rpartition("/")[2]
    limit = json.dumps({"max-length": 0, "overflow": "reject-publish"})
    rabbit.ctl("set_policy", "-p", vhost, "full", "^fedfa\\.events$", limit)
    try:
        born = world.bear()
        world.send(world.train_job(born), to=trainer)
        wait_for(lambda: trainer.phases())

        # then it is not acknowledged, which a quorum queue tells every few seconds
        expected = f"fedfa.jobs.{trainer.pool}\t1"
        listing = ("list_queues", "-p", vhost, "name", "messages_unacknowledged")
        wait_for(lambda: expected in rabbit.ctl(*listing))
        assert not world.ears.all(JobStarted, born.submission)
    finally:
        rabbit.ctl("clear_policy", "-p", vhost, "full")

    world.ears.first(UpdateReady, born.submission)


# -- reasons to stop ------------------------------------------------------------------------------


def test_training_ends_within_seconds_of_its_generation_being_closed(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear(local=ENDLESS)
    job = world.train_job(born, slot=3)
    world.send(job, to=trainer)
    trainer.wait_for_phase("training")

    closed = ((3, job.generation),)
    world.tell_everyone(
        ModelReady(
            federation=job.federation, uid=job.uid, n=1, version=1, status="running", closed=closed
        )
    )

    trainer.wait_for_phase()
    assert not world.ears.all(UpdateReady, born.submission)


def test_training_ends_when_its_federation_does(world: World, trainer: TrainerProcess) -> None:
    born = world.bear(local=ENDLESS)
    job = world.train_job(born)
    world.send(job, to=trainer)
    trainer.wait_for_phase("training")

    world.tell_everyone(
        ModelReady(
            federation=job.federation, uid=job.uid, n=1, version=0, status="stopped", closed=()
        )
    )

    trainer.wait_for_phase()


def test_training_that_takes_too_long_fails_between_two_steps(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear(local=ENDLESS, job_seconds=1.0)
    world.send(world.train_job(born), to=trainer)

    failed = world.ears.first(JobFailed, born.submission)

    assert failed.error == "job 0-1 took longer than 1 s (limits.job_seconds)"
    trainer.wait_for_phase()
    assert not world.ears.all(JobReleased, born.submission)


def test_training_goes_on_when_another_job_is_closed(world: World, trainer: TrainerProcess) -> None:
    born = world.bear(local=ENDLESS)
    job = world.train_job(born, slot=1, lease_ttl_seconds=UNHURRIED_SECONDS)
    world.send(job, to=trainer)
    trainer.wait_for_phase("training")
    others = ModelReady(
        federation=job.federation,
        uid=job.uid,
        n=1,
        version=1,
        status="running",
        closed=((0, 5), (1, job.generation - 1)),
    )

    world.tell_everyone(others)
    world.call_the_roll(born, 1)
    time.sleep(0.5)  # a step takes milliseconds

    assert trainer.phases() == ["training"]
    world.tell_everyone(others.model_copy(update={"status": "finished"}))


@pytest.mark.parametrize("is_greater", [True, False])
def test_training_ends_when_another_trainer_starts_a_greater_attempt(
    world: World, trainer: TrainerProcess, is_greater: bool
) -> None:
    born = world.bear(local=ENDLESS)
    lesser = world.attempt()
    job = world.train_job(born, lease_ttl_seconds=UNHURRIED_SECONDS)
    world.send(job, to=trainer)
    trainer.wait_for_phase("training")
    mine = world.ears.first(JobStarted, born.submission)

    attempt = world.attempt() if is_greater else lesser
    world.tell_everyone(mine.model_copy(update={"attempt": attempt, "trainer": "another"}))

    if is_greater:
        trainer.wait_for_phase()
    else:
        world.call_the_roll(born, 0)
        time.sleep(0.5)  # a step takes milliseconds
        assert trainer.phases() == ["training"]
        world.tell_everyone(_the_end(job))


def test_finished_update_is_delivered_whatever_greater_attempt_exists(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    world.send(world.train_job(born, delay_seconds=1.0), to=trainer)
    trainer.wait_for_phase("delaying")
    mine = world.ears.first(JobStarted, born.submission)

    world.tell_everyone(mine.model_copy(update={"attempt": world.attempt(), "trainer": "another"}))

    assert world.ears.first(UpdateReady, born.submission).attempt == mine.attempt


def test_finished_update_of_a_closed_job_is_not_uploaded(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear()
    job = world.train_job(born)
    world.send(job, to=trainer)
    update = world.ears.first(UpdateReady, born.submission)
    world.send(job.model_copy(update={"delay_seconds": 1.0, "attempt": job.attempt}), to=trainer)
    trainer.wait_for_phase("delaying")

    world.merge(born, update)  # closes the job, and no trainer hears of it
    trainer.wait_for_phase()

    assert len(world.ears.all(UpdateReady, born.submission)) == 1
    [kept] = world.store.list(keys.updates_of(job.federation, job.slot, job.generation))
    assert kept.key == update.key


def test_job_that_is_closed_already_is_dropped(world: World, trainer: TrainerProcess) -> None:
    born = world.bear()
    job = world.train_job(born)
    world.send(job, to=trainer)
    world.merge(born, world.ears.first(UpdateReady, born.submission))

    world.send(job.model_copy(update={"attempt": world.attempt()}), to=trainer)
    world.ears.first(JobStarted, born.submission, number=2)
    trainer.wait_for_phase()

    assert len(world.ears.all(UpdateReady, born.submission)) == 1


def test_job_of_a_replaced_federation_is_dropped(world: World, trainer: TrainerProcess) -> None:
    born = world.bear()
    job = world.train_job(born).model_copy(update={"uid": "f" * 32})
    world.send(job, to=trainer)

    wait_for(lambda: "f" * 32 not in trainer.get("/jobs") and trainer.phases() == [])
    submitted = born.submission.model_copy(update={"uid": "f" * 32})
    world.ears.first(JobStarted, submitted)
    trainer.wait_for_phase()

    assert not world.ears.all(UpdateReady, submitted)
    assert not world.ears.all(JobFailed, submitted)


def test_nothing_is_written_into_the_folder_of_a_deleted_federation(
    world: World, trainer: TrainerProcess
) -> None:
    # given a trained job, and an evaluation that runs
    born = world.bear(task="own_task:Slow")
    federation, model = born.submission.federation, born.head.manifest.model
    assert model is not None
    world.send(world.train_job(born, delay_seconds=4.0), to=trainer)
    trainer.wait_for_phase("delaying")
    evaluation = EvalJob(
        federation=federation,
        uid=born.submission.uid,
        attempt=world.attempt(),
        version=0,
        key=model.key,
        digest=model.digest,
        lease_ttl_seconds=4.0,
    )
    world.send(evaluation, to=trainer)
    trainer.wait_for_phase("delaying", "training")
    # when somebody deletes the folder, perhaps to use its name again
    for info in list(world.store.list(f"{federation}/")):
        world.store.delete(info.key)
    trainer.wait_for_phase()
    # then an aggregator that remembers it has nothing to write a manifest for
    assert list(world.store.list(f"{federation}/")) == []
    assert not world.ears.all(UpdateReady, born.submission)


def _the_end(job: TrainJob) -> ModelReady:
    return ModelReady(
        federation=job.federation, uid=job.uid, n=1, version=0, status="stopped", closed=()
    )


# -- failures -------------------------------------------------------------------------------------


def test_job_of_a_missing_task_is_handed_back(world: World, trainer: TrainerProcess) -> None:
    born = world.bear(task="weather")
    world.send(world.train_job(born), to=trainer)

    released = world.ears.first(JobReleased, born.submission)

    assert released.missing == "weather"
    assert "digits" in released.reason  # what there is
    assert not world.ears.all(JobFailed, born.submission)


def test_mistake_in_a_task_is_reported_with_its_place(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear(task="own_task:Clumsy")
    world.send(world.train_job(born), to=trainer)

    failed = world.ears.first(JobFailed, born.submission)

    assert failed.error.startswith("ValueError: the labels are upside down")
    assert "own_task.py" in failed.error
    assert failed.slot == 0


def test_other_frozen_weights_fail_the_job_with_both_digests(
    world: World, trainer: TrainerProcess
) -> None:
    born = world.bear(task="own_task:Frozen")
    assert born.birth is not None
    world.send(world.train_job(born), to=trainer)

    failed = world.ears.first(JobFailed, born.submission)

    assert failed.error.startswith("frozen weights:")
    assert born.birth.frozen_digest in failed.error


def test_pause_of_a_trainer_is_no_step_that_hangs(world: World, trainer: TrainerProcess) -> None:
    born = world.bear(local=ENDLESS, task="own_task:Slow", job_seconds=1.0)
    world.send(world.train_job(born), to=trainer)
    trainer.wait_for_phase("training")

    os.kill(trainer.process.pid, signal.SIGSTOP)
    time.sleep(4.0)
    os.kill(trainer.process.pid, signal.SIGCONT)

    world.ears.first(JobFailed, born.submission)
    trainer.wait_for_phase()
    time.sleep(1.0)
    assert trainer.process.is_running


def test_message_that_is_no_job_goes_to_the_dead_letter_queue(
    world: World, trainer: TrainerProcess
) -> None:
    submitted = world.submit()
    world.publisher.publish(submission.start_message(submitted), jobs(trainer.pool))

    wait_for(
        lambda: world.ears.all(
            type(submission.start_message(submitted)), submitted, queue=DEAD_QUEUE.name
        )
    )


# -- endings and outages --------------------------------------------------------------------------


def test_sigterm_hands_back_what_does_not_fit_and_finishes_what_does(
    world: World, mortals: list[TrainerProcess]
) -> None:
    trainer = mortals.pop()
    sleeping, endless = world.bear(), world.bear(local=ENDLESS)
    world.send(world.train_job(sleeping, delay_seconds=5.0), to=trainer)
    trainer.wait_for_phase("delaying")
    world.send(world.train_job(endless), to=trainer)
    trainer.wait_for_phase("delaying", "training")
    began = time.monotonic()

    status = trainer.terminate()

    assert status == 0, trainer.process.log_tail()
    assert time.monotonic() - began < GRACE_SECONDS
    assert world.ears.first(JobReleased, endless.submission).missing is None
    assert world.ears.first(UpdateReady, sleeping.submission).slot == 0
    assert not world.ears.all(UpdateReady, endless.submission)
    assert not world.ears.all(JobReleased, sleeping.submission)


def test_step_that_never_ends_fails_its_job_and_then_ends_the_trainer(
    world: World, mortals: list[TrainerProcess]
) -> None:
    trainer = mortals.pop()
    sleeping, hanging = world.bear(), world.bear(task="own_task:Hanging", job_seconds=1.0)
    world.send(world.train_job(sleeping, delay_seconds=15.0), to=trainer)
    trainer.wait_for_phase("delaying")
    world.send(world.train_job(hanging), to=trainer)

    status = trainer.exit_status(seconds=30)

    assert status == 71, trainer.process.log_tail()
    [failed] = world.ears.all(JobFailed, hanging.submission)
    assert failed.error == "job 0-1 took longer than 1 s (limits.job_seconds)"
    assert f"{failed.error}, and does not stop" in trainer.process.log_tail()
    assert world.ears.first(UpdateReady, sleeping.submission).slot == 0
    assert not world.ears.all(JobReleased, hanging.submission)


def test_second_sigterm_ends_at_once(world: World, mortals: list[TrainerProcess]) -> None:
    trainer = mortals.pop()
    born = world.bear()
    world.send(world.train_job(born, delay_seconds=7.0), to=trainer)
    trainer.wait_for_phase("delaying")

    os.kill(trainer.process.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert trainer.process.is_running
    os.kill(trainer.process.pid, signal.SIGTERM)

    assert trainer.exit_status(seconds=20) == 143


def test_broker_that_dies_costs_no_update_and_hides_no_closed_job(
    world: World, rabbit: RabbitMQ, trainer: TrainerProcess
) -> None:
    sleeping, endless = world.bear(), world.bear(local=ENDLESS)
    world.send(world.train_job(sleeping, delay_seconds=5.0), to=trainer)
    trainer.wait_for_phase("delaying")
    world.send(world.train_job(endless, slot=1), to=trainer)
    trainer.wait_for_phase("delaying", "training")

    rabbit.kill()
    try:
        _close_by_abandoning(world, endless, slot=1)  # nobody can be told
        trainer.wait_for_phase("delivering", "training")
    finally:
        rabbit.start()

    assert world.ears.first(UpdateReady, sleeping.submission, seconds=40).slot == 0
    trainer.wait_for_phase(seconds=40)  # the gap made it look


def test_store_outage_costs_no_update(world: World, trainer: TrainerProcess) -> None:
    born = world.bear()
    world.send(world.train_job(born, delay_seconds=1.0), to=trainer)
    trainer.wait_for_phase("delaying")

    world.proxy.refuse()
    try:
        trainer.wait_for_phase("delivering")
        time.sleep(2.5)  # longer than the store itself keeps trying
        still = trainer.phases()
    finally:
        world.proxy.heal()

    assert still == ["delivering"]
    ready = world.ears.first(UpdateReady, born.submission)
    assert world.store.exists(ready.key)


def _close_by_abandoning(world: World, at: Ledger, *, slot: int) -> None:
    """Commit the end of a slot's job, without announcing it."""
    assert at.replica is not None
    job = Job(slot, at.state.slots[slot].generation)
    after, decisions = replica.decide(at.replica, Abandoned(job, "test"))
    ledger.commit(world.store, at, after, decisions, writer="test", now=time.time())
