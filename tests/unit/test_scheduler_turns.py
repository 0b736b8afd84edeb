"""The scheduler's loop under a virtual clock: a slow bucket makes it slow, and nothing worse."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from fedfa import keys, ledger
from fedfa.broker import Publisher
from fedfa.errors import InvalidInput
from fedfa.events import Abandoned, Job
from fedfa.messages import (
    AnyMessage,
    InitModel,
    JobStarted,
    RollCall,
    StopFederation,
    TrainJob,
    encode,
)
from fedfa.replica import decide
from fedfa.store import DirectoryStore
from fedfa.topology import Route
from fedfa_scheduler.bucket import delivered_update, evaluation, evaluation_failure
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.leases import Attempts
from fedfa_scheduler.service import Scheduler
from fedfa_scheduler.settings import SchedulerSettings
from tests.unit.builders import ATTEMPT, UID, stored, submitted, vector
from tests.unit.sample_run import born

NUM_FEDERATIONS = 30


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowStore(DirectoryStore):
    """Every read takes a while, by the virtual clock."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self._clock.now += 0.1
        return super().get(key, max_bytes=max_bytes)


class Sent(list[AnyMessage]):
    """A broker's end of the wire: it keeps what is published, in empty queues."""

    def publish(self, message: AnyMessage, route: Route, **_: Any) -> None:
        self.append(message)

    def counts(self, queue_name: str) -> tuple[int, int]:
        return 0, 0


def started(job: Job) -> JobStarted:
    return JobStarted(
        federation="fed",
        uid=UID,
        task="train",
        slot=job.slot,
        generation=job.generation,
        attempt=ATTEMPT,
        trainer="t",
    )


def test_turns_longer_than_a_lease_are_no_gaps_and_every_federation_is_served(
    tmp_path: Path,
) -> None:
    clock, sent = Clock(), Sent()
    store = SlowStore(tmp_path, clock)
    for number in range(NUM_FEDERATIONS):
        submission = submitted(f"fed-{number}").model_copy(update={"uid": f"{number:032x}"})
        store.create(keys.spec(f"fed-{number}"), submission.model_dump_json(by_alias=True).encode())
    settings = SchedulerSettings(lease_ttl_seconds=3.0, reconcile_interval_seconds=1.0)
    fleet = Fleet(lease_ttl_seconds=3.0, attempts=Attempts(start_ms=1, random=1))
    publisher = cast(Publisher, sent)
    scheduler = Scheduler(fleet, store, publisher, settings, clock=clock, unix_clock=lambda: 1000.0)
    for _ in range(60):
        clock.now += 0.2
        scheduler.turn(None, epoch=1, is_active=True)
    asked_for = {message.federation for message in sent if isinstance(message, InitModel)}
    assert len(asked_for) == NUM_FEDERATIONS
    assert sum(isinstance(message, RollCall) for message in sent) == 1


def test_a_look_at_every_federation_leaves_time_for_each_message(tmp_path: Path) -> None:
    clock, sent = Clock(), Sent()
    store = SlowStore(tmp_path, clock)
    for number in range(NUM_FEDERATIONS):
        submission = submitted(f"fed-{number}").model_copy(update={"uid": f"{number:032x}"})
        store.create(keys.spec(f"fed-{number}"), submission.model_dump_json(by_alias=True).encode())
    settings = SchedulerSettings(lease_ttl_seconds=600.0, reconcile_interval_seconds=1.0)
    fleet = Fleet(lease_ttl_seconds=600.0, attempts=Attempts(start_ms=1, random=1))
    publisher = cast(Publisher, sent)
    scheduler = Scheduler(fleet, store, publisher, settings, clock=clock, unix_clock=lambda: 1000.0)

    def longest_turn(number: int) -> float:
        longest = 0.0
        for _ in range(number):
            clock.now += 0.2
            began = clock.now
            scheduler.turn(None, epoch=1, is_active=True)
            longest = max(longest, clock.now - began)
        return longest

    first = longest_turn(1)  # sees everything before it acts
    later = longest_turn(2 * NUM_FEDERATIONS)

    assert first > 0.1 * NUM_FEDERATIONS
    assert later < 1.0  # a few reads of one federation
    assert len(fleet.federations) == NUM_FEDERATIONS


def test_a_deleted_federation_is_let_go_also_while_its_deletion_is_under_way(
    tmp_path: Path,
) -> None:
    clock, sent = Clock(), Sent()
    store = DirectoryStore(tmp_path)
    submission = submitted("fed", stop={"wall_seconds": 1.0})
    spec = submission.model_dump_json(by_alias=True).encode()
    store.create(keys.spec("fed"), spec)
    ledger.stillborn(store, submission, status="failed", reason="x", writer="test", now=1.0)
    manifest = store.get(keys.manifest("fed", 0)).replace(b'"failed"', b'"running"')
    store.put(keys.manifest("fed", 0), manifest)  # one that runs, as far as a scheduler can see
    settings = SchedulerSettings(
        lease_ttl_seconds=3.0, reconcile_interval_seconds=1.0, discover_interval_seconds=1.0
    )
    fleet = Fleet(lease_ttl_seconds=3.0, attempts=Attempts(start_ms=1, random=1))
    publisher = cast(Publisher, sent)
    scheduler = Scheduler(fleet, store, publisher, settings, clock=clock, unix_clock=lambda: 9000.0)

    def turns(number: int) -> None:
        for _ in range(number):
            clock.now += 0.5
            scheduler.turn(None, epoch=1, is_active=True)

    turns(20)
    assert sum(isinstance(message, StopFederation) for message in sent) > 1
    for info in list(store.list("fed/")):
        if info.key != keys.spec("fed"):
            store.delete(info.key)
    turns(4)
    sent.clear()
    turns(40)
    [shown] = cast(list[dict[str, Any]], scheduler.federations()[1])
    assert shown["messages"] == ["fed: it has a spec.json and no manifests"]
    store.delete(keys.spec("fed"))
    turns(10)
    assert scheduler.federations()[1] == []
    assert sent == []
    again = submission.model_copy(update={"uid": "f" * 32})
    store.create(keys.spec("fed"), again.model_dump_json(by_alias=True).encode())
    turns(4)
    assert {message.uid for message in sent if isinstance(message, StopFederation)} == {"f" * 32}


def test_a_first_look_at_a_long_history_keeps_the_pulse(tmp_path: Path) -> None:
    clock, sent, beats = Clock(), Sent(), [1000.0]
    store = SlowStore(tmp_path, clock)
    for number in range(NUM_FEDERATIONS):
        submission = submitted(f"fed-{number}").model_copy(update={"uid": f"{number:032x}"})
        store.create(keys.spec(f"fed-{number}"), submission.model_dump_json(by_alias=True).encode())
    for version in range(50):
        store.create(keys.evaluation("fed-0", version), evaluation_failure(version, "x", at=1.0))
    fleet = Fleet(lease_ttl_seconds=3.0, attempts=Attempts(start_ms=1, random=1))
    scheduler = Scheduler(
        fleet,
        store,
        cast(Publisher, sent),
        SchedulerSettings(lease_ttl_seconds=3.0),
        beat=lambda: beats.append(clock.now),
        clock=clock,
        unix_clock=lambda: 1000.0,
    )
    scheduler.turn(None, epoch=1, is_active=True)

    assert len(fleet.federations["fed-0"].evaluations) == 50
    assert max(later - earlier for earlier, later in pairwise(beats)) < 1.0


@pytest.mark.parametrize(
    "stop", [b'{"reason": "\\ud800"}', b"[" * 100_000, b'{"reason": 5}', b"\xff", b""]
)
def test_a_federation_is_stopped_whatever_its_stop_json_holds(tmp_path: Path, stop: bytes) -> None:
    clock, sent = Clock(), Sent()
    store = DirectoryStore(tmp_path)
    store.create(keys.spec("fed"), submitted().model_dump_json(by_alias=True).encode())
    store.create(keys.stop("fed"), stop)
    fleet = Fleet(lease_ttl_seconds=3.0, attempts=Attempts(start_ms=1, random=1))
    scheduler = Scheduler(
        fleet, store, cast(Publisher, sent), SchedulerSettings(), clock=clock, unix_clock=clock
    )
    scheduler.turn(None, epoch=1, is_active=True)

    [message] = [each for each in sent if isinstance(each, StopFederation)]
    assert encode(message)


def test_a_file_that_names_another_federation_is_no_delivery(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    metadata = {
        "schema": 1, "kind": "UpdateReady", "federation": "fed", "uid": UID, "slot": 0,
        "generation": 1, "attempt": ATTEMPT, "client": "c", "base_version": 0, "num_examples": 1,
        "num_steps": 1, "loss": 1.0, "trainer": "t", "started_at": 1.0, "train_seconds": 1.0,
        "delay_seconds": 0.0,
    }  # fmt: skip
    store.put(keys.update("fed", 0, 1, ATTEMPT, "a" * 64), stored(vector(0), metadata))
    assert delivered_update(store, submitted(), 0, 1) is not None
    store.put(
        keys.update("fed", 0, 2, ATTEMPT, "a" * 64),
        stored(vector(0), metadata | {"federation": "other", "generation": 2}),
    )
    assert delivered_update(store, submitted(), 0, 2) is None


class Archived(DirectoryStore):
    """Lists its objects, and says of each that it cannot be read as it is kept."""

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        raise InvalidInput(f"unreadable: {key}")

    def get_start(self, key: str, num_bytes: int) -> bytes:
        raise InvalidInput(f"unreadable: {key}")


def test_what_a_trainer_wrote_and_nobody_can_read_is_as_good_as_malformed(tmp_path: Path) -> None:
    store = Archived(tmp_path)
    store.put(keys.update("fed", 0, 1, ATTEMPT, "a" * 64), stored(vector(0)))
    found = evaluation(store, "fed", 1)
    assert found is not None
    assert found.error == "its file is malformed"
    assert delivered_update(store, submitted(), 0, 1) is None


def looking_once(
    store: DirectoryStore, clock: Clock, sent: Sent
) -> tuple[Fleet, Callable[[int], None]]:
    """A scheduler that looks around in its first turns only; and what makes it take some turns."""
    settings = SchedulerSettings(lease_ttl_seconds=3.0, reconcile_interval_seconds=1000.0)
    fleet = Fleet(lease_ttl_seconds=3.0, attempts=Attempts(start_ms=1, random=1))
    scheduler = Scheduler(
        fleet, store, cast(Publisher, sent), settings, clock=clock, unix_clock=lambda: 1000.0
    )

    def turns(number: int) -> None:
        for _ in range(number):
            clock.now += 0.5
            scheduler.turn(None, epoch=1, is_active=True)

    return fleet, turns


def test_a_job_that_was_decided_unheard_and_its_file_collected_is_not_handed_out_again(
    tmp_path: Path,
) -> None:
    # given three jobs that a trainer has, and a scheduler that looks around only now
    clock, sent = Clock(), Sent()
    store = DirectoryStore(tmp_path)
    held = born(store, "fed")
    fleet, turns = looking_once(store, clock, sent)
    turns(2)
    assert held.replica is not None
    closed, *others = (job for job, _ in held.replica.federation.open_jobs())
    for job in (closed, *others):
        fleet.heard(started(job), clock.now)
    # when the first of them is abandoned by a manifest that nobody tells the scheduler of
    replica, decisions = decide(held.replica, Abandoned(closed, "it took too long"))
    ledger.commit(store, held, replica, decisions, writer="a", now=1003.0)
    sent.clear()
    turns(20)
    # then the others' silence makes them be handed out again, and of the first, its successor
    again = {Job(each.slot, each.generation) for each in sent if isinstance(each, TrainJob)}
    assert again == {*others, Job(closed.slot, closed.generation + 1)}


def test_silent_trainers_of_a_deleted_federation_end_no_scheduler(tmp_path: Path) -> None:
    # given jobs whose trainers fall silent together, and a scheduler that looks around only then
    clock, sent = Clock(), Sent()
    store = DirectoryStore(tmp_path)
    held = born(store, "fed")
    fleet, turns = looking_once(store, clock, sent)
    turns(2)
    assert held.replica is not None
    for job, _ in held.replica.federation.open_jobs():
        fleet.heard(started(job), clock.now)
    # when the folder is deleted before their leases expire
    for info in list(store.list("fed/")):
        store.delete(info.key)
    turns(20)
    # then it is let go
    assert fleet.federations == {}
