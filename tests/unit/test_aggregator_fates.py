"""What becomes of messages that one damaged object, or a forged fact, could hold up for ever."""

from pathlib import Path

import pytest

from fedfa import keys, ledger
from fedfa.canonical import sha256
from fedfa.errors import StoreUnavailable
from fedfa.events import Rejected
from fedfa.messages import AbandonJob, InitReady, MarkPool, ModelReady, StopFederation
from fedfa.replay import verify
from fedfa.tensor_files import encode as encode_file
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.service import Aggregator
from fedfa_aggregator.views import Views
from tests.unit.builders import ATTEMPT, UID, birth, submitted, vector
from tests.unit.sample_run import born
from tests.unit.test_aggregator_memory import PLENTY, RULE, Harness

NEW_UID = "f" * 32


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    for name in ("damaged", "fed"):
        born(harness.store, name, rule=RULE)
    return harness


def test_an_update_from_a_version_that_nobody_made_is_rejected_and_its_slot_goes_on(
    harness: Harness,
) -> None:
    forged = harness.update(1, slot=0, base_version=7)
    harness.serve(harness.update(0, slot=1), forged)
    manifest = harness.newest()
    event = manifest.decisions[-1].event
    assert isinstance(event, Rejected)
    assert event.reason.startswith("base_version: 7")
    assert manifest.state.slots[0].generation == 2
    closed = [each.closed for each in harness.published if isinstance(each, ModelReady)]
    assert ((0, 1), (1, 1)) in closed
    assert harness.num_acked == 2
    assert len(list(verify(harness.store, "fed"))) == 2


def test_one_unreadable_update_holds_up_neither_its_federation_nor_another(
    harness: Harness,
) -> None:
    first, lost, last = (harness.update(slot, slot=slot, name="damaged") for slot in range(3))
    good = harness.update(0, slot=0)
    harness.store.unreadable.add(lost.key)
    announced = lost.model_copy(update={"digest": None})  # as the scheduler does, every lease

    with pytest.raises(StoreUnavailable):
        harness.serve(first, lost, announced, last, good)

    assert harness.newest().state.num_merged == 1
    assert harness.newest("damaged").state.num_merged == 2
    closed = {
        job for each in harness.published if isinstance(each, ModelReady) for job in each.closed
    }
    assert closed == {(0, 1), (2, 1)}
    assert harness.num_acked == 4  # of the two copies of the lost one, one comes again
    harness.store.unreadable.clear()
    harness.serve(lost)
    assert harness.newest("damaged").state.num_merged == 3
    assert harness.num_acked == 5


def test_an_outage_of_the_whole_store_acknowledges_nothing(harness: Harness) -> None:
    messages = [
        harness.update(0, slot=slot, name=name) for slot in (0, 1) for name in ("damaged", "fed")
    ]
    harness.store.is_down = True

    with pytest.raises(StoreUnavailable):
        harness.serve(*messages)

    assert harness.num_acked == 0


@pytest.mark.parametrize(
    ("what", "is_gone"),
    [("model", True), ("window", True), ("model", False), ("window", False), ("manifest", False)],
)
def test_a_federation_that_cannot_be_loaded_is_sent_again_and_holds_up_nobody(
    harness: Harness, what: str, is_gone: bool
) -> None:
    harness.serve(harness.update(9, slot=2, name="damaged"))
    newest = harness.newest("damaged")
    assert newest.model is not None
    key = {
        "model": newest.model.key,
        "window": newest.state.window[0].key,
        "manifest": keys.manifest("damaged", 0),
    }[what]
    update = harness.update(0, slot=0, name="damaged")
    stop = StopFederation(federation="damaged", uid=UID, status="stopped", reason="enough")
    good = harness.update(0, slot=0)
    harness.aggregator.forget()  # as a restart does
    harness.num_acked = 0
    kept = harness.store.get(key)
    if is_gone:
        harness.store.delete(key)
    else:
        harness.store.unreadable.add(key)

    harness.serve(update, stop, good)

    assert harness.newest().state.num_merged == 1
    assert harness.num_acked == 3
    assert {each.federation for each in harness.published if isinstance(each, ModelReady)} == {
        "fed",
        "damaged",
    }
    assert not any(isinstance(each, bytes) for each in harness.published), "a dead letter"
    harness.store.unreadable.clear()
    harness.store.put(key, kept)
    harness.serve(update, stop)
    assert harness.newest("damaged").state.num_merged == 2
    assert harness.newest("damaged").state.status == "stopped"


def test_each_wait_for_an_unreadable_object_ends_with_a_sign_of_life(harness: Harness) -> None:
    lost = [harness.update(slot, slot=slot, name="damaged") for slot in range(3)]
    harness.store.unreadable.update(update.key for update in lost)
    num_failed_at_beats: set[int] = set()
    aggregator = Aggregator(
        harness.store,
        lambda *_: None,
        writer="b",
        reader=Reader(harness.store),
        views=Views(memory_bytes=PLENTY),
        beat=lambda: num_failed_at_beats.add(len(harness.store.failed)),
    )

    with pytest.raises(StoreUnavailable):
        aggregator.serve([harness.delivery(update) for update in lost])

    assert num_failed_at_beats == {0, 1, 2, 3}


def resubmitted(harness: Harness) -> InitReady:
    """The folder is deleted, and `fed` submitted again: its first initial model is there."""
    for info in list(harness.store.list("fed/")):
        harness.store.delete(info.key)
    submission = submitted(rule=RULE).model_copy(update={"uid": NEW_UID})
    harness.store.create(keys.spec("fed"), submission.model_dump_json(by_alias=True).encode())
    body = encode_file(vector(0), ledger.birth_metadata(birth()))
    key = keys.model("fed", 0, sha256(body))
    harness.store.put(key, body)
    return InitReady(federation="fed", uid=NEW_UID, attempt=ATTEMPT, key=key, digest=sha256(body))


JOB = {"federation": "fed", "uid": UID, "slot": 1, "generation": 1, "attempt": ATTEMPT}
LATE = [
    AbandonJob(**JOB, reason="lost"),
    StopFederation(federation="fed", uid=UID, status="stopped", reason="enough"),
    MarkPool(federation="fed", uid=UID, pool="default", change=1, outcome="pool_down"),
    None,
]


@pytest.mark.parametrize("late", LATE, ids=["abandon", "stop", "pool", "update"])
def test_a_late_message_writes_nothing_into_the_folder_of_the_next_federation(
    harness: Harness, late: AbandonJob | StopFederation | MarkPool | None
) -> None:
    harness.serve(harness.update(0, slot=0))  # what is served is remembered
    message = late or harness.update(1, slot=1)
    decided, last = harness.update(2, slot=2), harness.update(3, slot=0)
    harness.num_acked = 0
    ready = resubmitted(harness)

    harness.serve(message)

    assert not list(harness.store.list("fed/manifests/"))
    harness.serve(decided, message, ready, last)
    newest = harness.newest()
    assert (newest.uid, newest.n, harness.num_acked) == (NEW_UID, 0, 5)


def test_a_birth_behind_a_late_message_is_decided_at_once(harness: Harness) -> None:
    duplicate = harness.update(0, slot=0)
    harness.serve(duplicate)
    ready = resubmitted(harness)

    harness.serve(duplicate, ready)

    assert harness.newest().uid == NEW_UID
    assert not any(isinstance(each, bytes) for each in harness.published), "a dead letter"
