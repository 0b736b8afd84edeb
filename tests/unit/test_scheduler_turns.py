"""The scheduler's loop under a virtual clock: a slow bucket makes it slow, and nothing worse."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from fedfa import keys, ledger
from fedfa.errors import InvalidInput, StoreUnavailable
from fedfa.events import Abandoned, Job
from fedfa.history import evaluation_or_none
from fedfa.messages import (
    MAX_TEXT_CHARACTERS,
    InitModel,
    JobStarted,
    RollCall,
    StopFederation,
    TrainJob,
    encode,
)
from fedfa.replica import decide
from fedfa.store import DirectoryStore
from fedfa_scheduler.bucket import delivered_update, evaluation_failure, stop_reason
from tests.unit.builders import ATTEMPT, UID, stored, submitted, update_ready, vector
from tests.unit.sample_run import born
from tests.unit.scheduling import Clock, Loop, SlowStore, submit_many

NUM_FEDERATIONS = 30
MANIFEST_0 = keys.manifest("", 0).removeprefix("/")


class Deaf(DirectoryStore):
    """Does not answer for some keys; for all others it does."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock
        self.is_deaf_to: Callable[[str], bool] = lambda _: False

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self._listen(key)
        return super().get(key, max_bytes=max_bytes)

    def get_start(self, key: str, num_bytes: int) -> bytes:
        self._listen(key)
        return super().get_start(key, num_bytes)

    def exists(self, key: str) -> bool:
        self._listen(key)
        return super().exists(key)

    def create(self, key: str, body: bytes) -> None:
        self._listen(key)
        super().create(key, body)

    def _listen(self, key: str) -> None:
        if self.is_deaf_to(key):
            self._clock.now += 1.0
            raise StoreUnavailable(f"{key}: no answer")


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
    clock = Clock()
    store = SlowStore(tmp_path, clock)
    submit_many(store, NUM_FEDERATIONS)
    loop = Loop(store, clock=clock)
    loop.turns(60, seconds=0.2)
    asked_for = {message.federation for message in loop.sent if isinstance(message, InitModel)}
    assert len(asked_for) == NUM_FEDERATIONS
    assert sum(isinstance(message, RollCall) for message in loop.sent) == 1


def test_a_look_at_every_federation_leaves_time_for_each_message(tmp_path: Path) -> None:
    clock = Clock()
    store = SlowStore(tmp_path, clock)
    submit_many(store, NUM_FEDERATIONS)
    loop = Loop(store, clock=clock, lease_ttl_seconds=600.0)

    def longest_turn(number: int) -> float:
        longest = 0.0
        for _ in range(number):
            clock.now += 0.2
            began = clock.now
            loop.turns(1, seconds=0.0)
            longest = max(longest, clock.now - began)
        return longest

    first = longest_turn(1)  # sees everything before it acts
    later = longest_turn(2 * NUM_FEDERATIONS)

    assert first > 0.1 * NUM_FEDERATIONS
    assert later < 1.0  # a few reads of one federation
    assert len(loop.fleet.federations) == NUM_FEDERATIONS


def test_a_deleted_federation_is_let_go_also_while_its_deletion_is_under_way(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    submission = submitted("fed", stop={"wall_seconds": 1.0})
    spec = submission.model_dump_json(by_alias=True).encode()
    store.create(keys.spec("fed"), spec)
    ledger.stillborn(store, submission, status="failed", reason="x", writer="test", now=1.0)
    manifest = store.get(keys.manifest("fed", 0)).replace(b'"failed"', b'"running"')
    store.put(keys.manifest("fed", 0), manifest)  # one that runs, as far as a scheduler can see
    loop = Loop(store, unix=9000.0, discover_interval_seconds=1.0)
    loop.turns(20)
    assert sum(isinstance(message, StopFederation) for message in loop.sent) > 1
    for info in list(store.list("fed/")):
        if info.key != keys.spec("fed"):
            store.delete(info.key)
    loop.turns(4)
    loop.sent.clear()
    loop.turns(40)
    [shown] = cast(list[dict[str, Any]], loop.scheduler.federations()[1])
    assert shown["messages"] == ["fed: it has a spec.json and no manifests"]
    store.delete(keys.spec("fed"))
    loop.turns(10)
    assert loop.scheduler.federations()[1] == []
    assert loop.sent == []
    again = submission.model_copy(update={"uid": "f" * 32})
    store.create(keys.spec("fed"), again.model_dump_json(by_alias=True).encode())
    loop.turns(4)
    stops = [message for message in loop.sent if isinstance(message, StopFederation)]
    assert {stop.uid for stop in stops} == {"f" * 32}


def test_a_first_look_at_a_long_history_keeps_the_pulse(tmp_path: Path) -> None:
    clock, beats = Clock(), [1000.0]
    store = SlowStore(tmp_path, clock)
    submit_many(store, NUM_FEDERATIONS)
    for version in range(50):
        store.create(keys.evaluation("fed-0", version), evaluation_failure(version, "x", at=1.0))
    loop = Loop(store, clock=clock, beat=lambda: beats.append(clock.now))
    loop.turns(1, seconds=0.0)

    assert len(loop.fleet.federations["fed-0"].evaluations) == 50
    assert max(later - earlier for earlier, later in pairwise(beats)) < 1.0


@pytest.mark.parametrize(
    "stop", [b'{"reason": "\\ud800"}', b"[" * 100_000, b'{"reason": 5}', b"\xff", b""]
)
def test_a_federation_is_stopped_whatever_its_stop_json_holds(tmp_path: Path, stop: bytes) -> None:
    store = DirectoryStore(tmp_path)
    store.create(keys.spec("fed"), submitted().model_dump_json(by_alias=True).encode())
    store.create(keys.stop("fed"), stop)
    loop = Loop(store)
    loop.turns(1)

    [message] = [each for each in loop.sent if isinstance(each, StopFederation)]
    assert encode(message)


def test_a_reason_to_stop_is_kept_as_far_as_a_message_can_carry_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create(keys.stop("fed"), json.dumps({"reason": "x" * 5_000}).encode())
    assert stop_reason(store, "fed") == "x" * MAX_TEXT_CHARACTERS


def test_a_file_that_names_another_federation_is_no_delivery(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    metadata = update_ready().metadata()
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
    found = evaluation_or_none(store, "fed", 1)
    assert found is not None
    assert found.error.startswith("unreadable: ")
    assert delivered_update(store, submitted(), 0, 1) is None


LOOKS_ONCE = {"reconcile_interval_seconds": 1000.0}  # in its first turns


def test_a_job_that_was_decided_unheard_and_its_file_collected_is_not_handed_out_again(
    tmp_path: Path,
) -> None:
    # given three jobs that a trainer has, and a scheduler that looks around only now
    store = DirectoryStore(tmp_path)
    held = born(store, "fed")
    loop = Loop(store, **LOOKS_ONCE)
    loop.turns(2)
    assert held.replica is not None
    closed, *others = (job for job, _ in held.replica.federation.open_jobs())
    for job in (closed, *others):
        loop.fleet.heard(started(job), loop.clock.now)
    # when the first of them is abandoned by a manifest that nobody tells the scheduler of
    replica, decisions = decide(held.replica, Abandoned(closed, "it took too long"))
    ledger.commit(store, held, replica, decisions, writer="a", now=1003.0)
    loop.sent.clear()
    loop.turns(20)
    # then the others' silence makes them be handed out again, and of the first, its successor
    again = {Job(each.slot, each.generation) for each in loop.sent if isinstance(each, TrainJob)}
    assert again == {*others, Job(closed.slot, closed.generation + 1)}


def test_silent_trainers_of_a_deleted_federation_end_no_scheduler(tmp_path: Path) -> None:
    # given jobs whose trainers fall silent together, and a scheduler that looks around only then
    store = DirectoryStore(tmp_path)
    held = born(store, "fed")
    loop = Loop(store, **LOOKS_ONCE)
    loop.turns(2)
    assert held.replica is not None
    for job, _ in held.replica.federation.open_jobs():
        loop.fleet.heard(started(job), loop.clock.now)
    # when the folder is deleted before their leases expire
    for info in list(store.list("fed/")):
        store.delete(info.key)
    loop.turns(20)
    # then it is let go
    assert loop.fleet.federations == {}


def handed_out(loop: Loop, turns: int) -> set[tuple[str, Job]]:
    """The training jobs that are sent in so many turns of a second."""
    loop.sent.clear()
    loop.turns(turns, seconds=1.0)
    jobs = [each for each in loop.sent if isinstance(each, TrainJob)]
    return {(job.federation, Job(job.slot, job.generation)) for job in jobs}


@pytest.mark.parametrize("name", ["spec.json", "stop.json", MANIFEST_0, "evals/0.json"])
def test_one_object_without_an_answer_holds_up_no_other_federation(
    tmp_path: Path, name: str
) -> None:
    clock = Clock()
    store = Deaf(tmp_path, clock)
    for federation in ("a", "b", "c"):
        born(store, federation)
        store.create(keys.evaluation(federation, 0), evaluation_failure(0, "x", at=1.0))
    store.is_deaf_to = lambda key: key == f"b/{name}"
    loop = Loop(store, clock=clock, lease_ttl_seconds=60.0, reconcile_interval_seconds=10.0)

    assert {federation for federation, _ in handed_out(loop, 80)} == {"a", "c"}
    shown = cast(list[dict[str, Any]], loop.scheduler.federations()[1])
    assert "no answer" in str([each for each in shown if each["id"] == "b"])

    store.is_deaf_to = lambda _: False
    loop.turns(20, seconds=1.0)
    assert loop.fleet.federations["b"].is_current
    assert len(loop.fleet.federations["b"].evaluations) == 1


def test_a_store_without_any_answer_is_an_outage_and_no_federations_trouble(
    tmp_path: Path,
) -> None:
    clock = Clock()
    store = Deaf(tmp_path, clock)
    born(store, "fed")
    store.is_deaf_to = lambda _: True
    loop = Loop(store, clock=clock)
    loop.turns(20)
    assert loop.scheduler.federations()[0] == 503
    store.is_deaf_to = lambda _: False
    loop.turns(20)
    assert loop.fleet.federations["fed"].is_current


def test_a_finished_file_without_an_answer_holds_up_no_other_job(tmp_path: Path) -> None:
    # given jobs whose trainers fall silent, of which one has left a file that cannot be read
    clock = Clock()
    store = Deaf(tmp_path, clock)
    held = born(store, "fed")
    loop = Loop(store, clock=clock, reconcile_interval_seconds=1000.0)
    loop.turns(2)
    assert held.replica is not None
    first, *others = (job for job, _ in held.replica.federation.open_jobs())
    for job in (first, *others):
        loop.fleet.heard(started(job), clock.now)
    delivered = keys.update("fed", first.slot, first.generation, ATTEMPT, "a" * 64)
    store.put(delivered, b"")
    store.is_deaf_to = lambda key: key == delivered
    # then the others are handed out again at once, and it, when its file was seen to be none
    assert handed_out(loop, 10) == {("fed", job) for job in others}
    store.is_deaf_to = lambda _: False
    assert ("fed", first) in handed_out(loop, 10)
