"""The scheduler process on a real broker and a real bucket; the test plays all the others."""

import json
import os
import secrets
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fedfa import keys, ledger
from fedfa.broker import Consumer, Publisher
from fedfa.canonical import canonical_json, sha256
from fedfa.events import Abandoned, Job
from fedfa.ledger import Ledger
from fedfa.local.processes import ServerProcess, free_port
from fedfa.log import ModelRef
from fedfa.messages import (
    AbandonJob,
    EvalJob,
    EvalReady,
    InitModel,
    JobFailed,
    JobHeartbeat,
    JobReleased,
    JobStarted,
    ModelReady,
    RollCall,
    StartFederation,
    StopFederation,
    TrainJob,
    UpdateReady,
)
from fedfa.messages import encode as encode_message
from fedfa.replica import decide
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.submission import request_stop
from fedfa.tensor_files import encode
from fedfa.topology import (
    BROADCAST,
    BROADCAST_QUEUE,
    DEAD_QUEUE,
    EVENTS,
    UPDATES_QUEUE,
    Route,
    jobs_queue,
)
from fedfa_scheduler.fleet import STOP_REPEAT_SECONDS
from tests.proxy import Proxy
from tests.servers import port_of, variables
from tests.unit.builders import UID, birth, put_update, submitted, update_ready, vector
from tests.waiting import wait_for

M = TypeVar("M")

TTL = 3.0
JOBS = jobs_queue("default")


@dataclass
class World:
    """The other services of one test, and the schedulers that it started."""

    store: S3Store
    environment: dict[str, str]
    folder: Path
    publisher: Publisher
    jobs: Consumer
    others: Consumer  # of fedfa.updates, fedfa.dead and the broadcasts
    heard: list[Any] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    schedulers: list[ServerProcess] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    def start(self, **variables: str) -> ServerProcess:
        port, number = free_port(), len(self.schedulers)
        process = ServerProcess(
            "scheduler",
            [sys.executable, "-m", "fedfa_scheduler"],
            log=self.folder / f"scheduler-{number}.log",
            env=self.environment | {"FEDFA_HTTP_PORT": str(port)} | variables,
        )
        self.schedulers.append(process)
        self.ports.append(port)
        return process

    def start_and_wait(self, **variables: str) -> ServerProcess:
        process = self.start(**variables)
        wait_for(lambda: self.ask("/readyz")[0] == 200)
        return process

    def ask(self, path: str, *, scheduler: int = -1) -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.ports[scheduler]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def submit(self, **fields: Any) -> None:
        body = submitted(**fields).model_dump_json(by_alias=True)
        self.store.create(keys.spec("fed"), body.encode())

    def bear(self, **fields: Any) -> Ledger:
        """What trainer and aggregator do until manifest 0 is there; nobody is told."""
        body = encode(vector(0), ledger.birth_metadata(birth()))
        key = keys.model("fed", 0, sha256(body))
        self.store.put(key, body)
        return ledger.bear(
            self.store,
            submitted(**fields),
            ModelRef(0, key, sha256(body)),
            birth(),
            vector(0),
            writer="test",
            now=1.0,
        )

    def abandon(self, head: Ledger, slot: int) -> Ledger:
        """What the aggregator does to close a slot's first job."""
        assert head.replica is not None
        replica, decisions = decide(head.replica, Abandoned(Job(slot, 1), "too slow"))
        return ledger.commit(self.store, head, replica, decisions, writer="test", now=2.0)

    def finish(self, job: TrainJob) -> str:
        """A trainer uploads its update and dies before it tells anybody."""
        ready = update_ready(
            slot=job.slot, generation=job.generation, attempt=job.attempt, client=job.client
        )
        return put_update(self.store, ready, encode(vector(1), ready.metadata())).key

    def send(self, message: Any, route: Route = EVENTS) -> None:
        self.publisher.publish(message, route, timeout_seconds=20)

    def say(self, kind: Any, job: Any, **fields: Any) -> None:
        """A trainer reports on a job that it took."""
        work: dict[str, Any] = {"task": "init"}
        if isinstance(job, TrainJob):
            work = {"task": "train", "slot": job.slot, "generation": job.generation}
        if isinstance(job, EvalJob):
            work = {"task": "evaluate", "version": job.version}
        facts = {"federation": "fed", "uid": UID, "attempt": job.attempt, "trainer": "trainer-1"}
        self.send(kind(**facts, **work, **fields))

    def listen(self, consumer: Consumer) -> None:
        for delivery in consumer.ready():
            if delivery.queue == DEAD_QUEUE.name:
                self.dead.append(delivery.body)
            else:
                self.heard.append(delivery.message())
            delivery.ack()

    def take(self, kind: type[M], number: int = 1, *, seconds: float = 30.0) -> list[M]:
        """The next messages of a kind; the others stay to be taken later."""

        def enough() -> bool:
            self.listen(self.jobs)
            self.listen(self.others)
            return sum(isinstance(message, kind) for message in self.heard) >= number

        wait_for(enough, seconds=seconds)
        taken = [message for message in self.heard if isinstance(message, kind)][:number]
        for message in taken:
            self.heard.remove(message)
        return taken

    def is_quiet(self, kind: type[Any], *, seconds: float) -> bool:
        """Whether no message of a kind comes for so long."""
        deadline = time.monotonic() + seconds
        while True:
            self.listen(self.jobs)
            self.listen(self.others)
            if any(isinstance(message, kind) for message in self.heard):
                return False
            if time.monotonic() > deadline:
                return True
            time.sleep(0.05)

    def leave_nothing(self) -> None:
        """To the next test: no federation in the bucket, and no message on its way."""
        for info in list(self.store.list("")):
            self.store.delete(info.key)
        self.jobs.resume(JOBS.name)
        last = StartFederation(federation=f"last-{secrets.token_hex(4)}", uid=UID)
        for queue in (JOBS, UPDATES_QUEUE, BROADCAST_QUEUE, DEAD_QUEUE):
            self.send(last, queue.route)

        def is_heard() -> bool:
            self.listen(self.jobs)
            self.listen(self.others)
            return self.heard.count(last) == 3 and encode_message(last) in self.dead

        wait_for(is_heard, of="the last message of each queue")

    def num_waiting(self) -> int:
        return self.publisher.counts(JOBS.name)[0]

    def first_jobs(self, **fields: Any) -> list[TrainJob]:
        """From the spec to the first jobs, with the evaluation of version 0 done."""
        self.submit(**fields)
        self.take(InitModel)
        self.evaluate(0, 0.1)
        self.bear(**fields)
        return self.take(TrainJob, 3)

    def evaluate(self, version: int, accuracy: float) -> None:
        result = {"version": version, "at": 1.0, "metrics": {"accuracy": accuracy}}
        self.store.create(keys.evaluation("fed", version), canonical_json(result).encode())
        self.send(EvalReady(federation="fed", uid=UID, version=version))


@pytest.fixture(scope="module")
def clients(broker_settings: BrokerSettings) -> Iterator[tuple[Publisher, Consumer, Consumer]]:
    """What a World speaks and hears with."""
    publisher = Publisher(broker_settings, name="test")
    jobs = Consumer(broker_settings, [(JOBS, 100)], name="test-jobs")
    queues = [(UPDATES_QUEUE, 100), (BROADCAST_QUEUE, 100), (DEAD_QUEUE, 100)]
    others = Consumer(broker_settings, queues, name="test-others")
    wait_for(lambda: jobs.is_consuming and others.is_consuming)
    yield publisher, jobs, others
    for client in (jobs, others, publisher):
        client.close()


@pytest.fixture
def world(
    clients: tuple[Publisher, Consumer, Consumer],
    broker_settings: BrokerSettings,
    store: S3Store,
    store_settings: StoreSettings,
    tmp_path: Path,
) -> Iterator[World]:
    environment = os.environ | variables(store_settings, broker_settings)
    environment |= {
        "FEDFA_LEASE_TTL_SECONDS": f"{TTL:g}",
        "FEDFA_RECONCILE_INTERVAL_SECONDS": "0.3",
        "FEDFA_DISCOVER_INTERVAL_SECONDS": "1",
    }
    world = World(store, environment, tmp_path, *clients)
    yield world
    for process in world.schedulers:
        process.stop()
    world.leave_nothing()
    for process in world.schedulers:
        assert "Traceback" not in process.log.read_text()


def test_a_spec_becomes_an_init_model_and_its_birth_becomes_jobs_without_any_hint(
    world: World,
) -> None:
    world.start()
    world.submit()
    [init] = world.take(InitModel)
    assert (init.federation, init.uid, init.lease_ttl_seconds) == ("fed", UID, TTL)
    world.bear()
    jobs = world.take(TrainJob, 3)
    assert sorted((job.slot, job.generation) for job in jobs) == [(0, 1), (1, 1), (2, 1)]
    [evaluation] = world.take(EvalJob)
    assert evaluation.version == 0


def test_hints_bring_the_next_work_long_before_the_next_reconcile(world: World) -> None:
    slow = {
        "FEDFA_RECONCILE_INTERVAL_SECONDS": "60",
        "FEDFA_DISCOVER_INTERVAL_SECONDS": "60",
        "FEDFA_LEASE_TTL_SECONDS": "60",
    }
    world.start_and_wait(**slow)
    wait_for(lambda: world.ask("/federations")[1] == "[]")
    world.submit()
    world.send(StartFederation(federation="fed", uid=UID))
    world.take(InitModel, seconds=40)
    head = world.bear()
    ready = ModelReady(federation="fed", uid=UID, n=0, version=0, status="running", closed=())
    world.send(ready, BROADCAST)
    world.take(TrainJob, 3, seconds=40)
    world.abandon(head, slot=1)
    world.send(ready.model_copy(update={"n": 1, "closed": ((1, 1),)}), BROADCAST)
    [job] = world.take(TrainJob, seconds=40)
    assert (job.slot, job.generation) == (1, 2)


def test_a_job_that_fails_max_attempts_times_is_abandoned_until_its_slot_moves_on(
    world: World,
) -> None:
    world.start()
    world.submit()
    world.take(InitModel)
    head = world.bear()
    job = world.take(TrainJob, 3)[0]
    for _ in range(2):
        world.say(JobFailed, job, error="out of memory")
        [job] = world.take(TrainJob)
    world.say(JobFailed, job, error="no space left")
    [abandon] = world.take(AbandonJob)
    assert (abandon.slot, abandon.generation) == (job.slot, 1)
    assert abandon.reason == "failed 3 times, at last: no space left"
    [again] = world.take(AbandonJob)
    assert again == abandon
    world.abandon(head, slot=job.slot)
    fresh = job
    while fresh.generation == 1:  # the other two were never claimed, and may come again
        [fresh] = world.take(TrainJob)
    assert (fresh.slot, fresh.generation) == (job.slot, 2)


def test_a_silent_job_is_handed_out_again_and_a_released_one_at_once(world: World) -> None:
    world.start()
    jobs = world.first_jobs()
    for job in jobs:
        world.say(JobStarted, job)
    world.say(JobReleased, jobs[0], reason="SIGTERM")
    [again] = world.take(TrainJob)
    assert (again.slot, again.generation) == (jobs[0].slot, 1)
    world.say(JobStarted, again)
    deadline = time.monotonic() + 3 * TTL
    while time.monotonic() < deadline:
        world.say(JobHeartbeat, again)
        world.say(JobHeartbeat, jobs[1])
        world.listen(world.jobs)
        time.sleep(0.5)
    reissued = {message.slot for message in world.heard if isinstance(message, TrainJob)}
    assert reissued == {jobs[2].slot}


def test_a_silent_job_with_a_file_is_announced_from_the_bucket_and_never_sent_again(
    world: World,
) -> None:
    world.start()
    job, *others = world.first_jobs()
    world.say(JobStarted, job)
    for other in others:
        world.say(JobStarted, other)
        world.finish(other)
    key = world.finish(job)
    announced = world.take(UpdateReady, 6)
    [mine, *_] = [message for message in announced if message.slot == job.slot]
    assert (mine.key, mine.digest, mine.client) == (key, None, job.client)
    assert world.is_quiet(TrainJob, seconds=TTL)


def test_a_restart_sends_nothing_that_waits_in_the_queue(world: World) -> None:
    process = world.start_and_wait()
    world.submit()
    world.take(InitModel)
    world.jobs.pause(JOBS.name)
    world.evaluate(0, 0.1)
    world.bear()
    wait_for(lambda: world.num_waiting() == 3)
    process.kill()
    world.start_and_wait()
    wait_for(lambda: json.loads(world.ask("/open-jobs")[1]).get("open_jobs") == 3)
    assert world.is_quiet(TrainJob, seconds=3 * TTL)
    assert world.num_waiting() == 3


def test_jobs_that_vanished_with_the_broker_are_sent_again_after_a_restart(world: World) -> None:
    process = world.start_and_wait()
    lost = world.first_jobs()  # taken, and never heard of again
    process.kill()
    world.start_and_wait()
    again = world.take(TrainJob, 3)
    assert {job.slot for job in again} == {job.slot for job in lost}
    assert min(job.attempt for job in again) > max(job.attempt for job in lost)


def test_a_second_scheduler_stands_by_and_takes_over_with_a_roll_call(world: World) -> None:
    ttl = {"FEDFA_LEASE_TTL_SECONDS": "10"}
    first = world.start_and_wait(**ttl)
    jobs = world.first_jobs()
    for job in jobs:
        world.say(JobStarted, job)
    world.take(RollCall)
    world.start(**ttl)
    wait_for(lambda: world.ask("/healthz")[0] == 200)
    assert world.is_quiet(RollCall, seconds=2.5)
    assert world.is_quiet(TrainJob, seconds=0)
    assert [world.ask(path)[0] for path in ("/readyz", "/open-jobs", "/federations")] == [503] * 3
    first.kill()
    world.take(RollCall)

    def keep_two_alive() -> bool:
        for job in jobs[1:]:
            world.say(JobHeartbeat, job)
        return not world.is_quiet(TrainJob, seconds=0.5)

    wait_for(keep_two_alive, seconds=40)
    [silent] = world.take(TrainJob)
    assert silent.slot == jobs[0].slot


def test_a_reached_target_is_told_to_the_aggregator_again_and_again(world: World) -> None:
    world.start()
    fields = {"stop": {"target": {"metric": "accuracy", "value": 0.05}}}
    world.submit(**fields)
    world.take(InitModel)
    world.bear(**fields)
    world.take(EvalJob)
    world.evaluate(0, 0.1)
    stops = world.take(StopFederation, 2)
    assert stops[0] == stops[1]
    assert (stops[0].status, stops[0].final_version) == ("finished", 0)
    assert stops[0].reason == "accuracy 0.1000 reached the target 0.05"


def test_a_stop_request_in_the_bucket_is_enough_even_before_the_birth(world: World) -> None:
    world.submit()
    request_stop(world.store, "fed", "changed my mind")
    world.start()
    [stop] = world.take(StopFederation)
    assert (stop.status, stop.reason) == ("stopped", "changed my mind")
    assert world.is_quiet(InitModel, seconds=1.0)


def test_an_evaluation_that_always_fails_is_recorded_in_the_bucket(world: World) -> None:
    world.start()
    world.submit(limits={"max_attempts": 2})
    world.take(InitModel)
    world.bear(limits={"max_attempts": 2})
    for _ in range(2):
        [job] = world.take(EvalJob)
        world.say(JobFailed, job, error="no test data")
    wait_for(lambda: world.store.exists(keys.evaluation("fed", 0)))
    recorded = json.loads(world.store.get(keys.evaluation("fed", 0)))
    assert (recorded["version"], recorded["error"]) == (
        0,
        "failed 2 times, at last: no test data",
    )


def test_a_federation_whose_folder_is_deleted_is_let_go_and_its_stops_end(world: World) -> None:
    world.start()
    fields = {"stop": {"wall_seconds": 0.001}}
    world.submit(**fields)
    world.bear(**fields)
    world.take(StopFederation, seconds=60)
    keys_now = [info.key for info in world.store.list("fed/")]
    spec, others = keys.spec("fed"), [key for key in keys_now if key != keys.spec("fed")]
    for key in others:
        world.store.delete(key)
    wait_for(lambda: "no manifests" in world.ask("/federations")[1])
    world.store.delete(spec)
    wait_for(lambda: world.ask("/federations")[1] == "[]")
    world.listen(world.others)
    world.heard.clear()
    assert world.is_quiet(StopFederation, seconds=STOP_REPEAT_SECONDS + 1)
    assert world.is_quiet(InitModel, seconds=0)


def test_a_store_that_is_out_for_a_while_costs_nothing(world: World, s3: StoreSettings) -> None:
    with Proxy(port_of(s3)) as proxy:
        world.start(
            FEDFA_S3_ENDPOINT=f"http://127.0.0.1:{proxy.port}", FEDFA_S3_OUTAGE_SECONDS="0.5"
        )
        job = world.first_jobs()[0]
        proxy.refuse()
        world.say(JobFailed, job, error="out of memory")
        assert world.is_quiet(TrainJob, seconds=2.0)
        assert world.ask("/healthz")[0] == 200
        proxy.heal()
        again = world.take(TrainJob)[0]
        assert (again.slot, again.generation) == (job.slot, 1)


def test_http_shows_open_jobs_federations_and_bounded_metrics(world: World) -> None:
    world.start_and_wait()
    job = world.first_jobs()[0]
    world.say(JobStarted, job)

    def shown() -> Any:
        [federation] = json.loads(world.ask("/federations")[1])
        claimed = [each for each in federation["jobs"] if each["claimed"]]
        return federation if claimed else None

    federation = wait_for(shown)
    assert (federation["id"], federation["status"], federation["version"]) == ("fed", "running", 0)
    [claimed] = [each for each in federation["jobs"] if each["claimed"]]
    assert (claimed["client"], claimed["attempt"]) == (job.client, job.attempt)
    assert federation["evaluations"][0]["metrics"] == {"accuracy": 0.1}
    assert json.loads(world.ask("/open-jobs")[1]) == {"open_jobs": 3, "pools": {"default": 3}}
    metrics = world.ask("/metrics")[1]
    assert 'fedfa_open_jobs{pool="default"} 3.0' in metrics
    assert 'fedfa_federations{status="running"} 1.0' in metrics
    assert "fedfa_jobs_published_total" in metrics
    assert "client-0" not in metrics


def test_an_event_that_is_no_message_goes_to_the_dead_letters(world: World) -> None:
    world.start()
    world.send(b"not msgpack")
    wait_for(lambda: world.listen(world.others) or world.dead == [b"not msgpack"])


def test_sigterm_ends_it_cleanly(world: World) -> None:
    process = world.start_and_wait()
    os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: not process.is_running)
    assert process._process.returncode == 0
