"""What an aggregator holds in memory: one update ahead, and views within a limit."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedfa import keys, ledger, manifests
from fedfa.broker import Delivery
from fedfa.canonical import sha256
from fedfa.errors import StoreUnavailable
from fedfa.log import Manifest
from fedfa.memory import Bytes
from fedfa.messages import AnyMessage, InitReady, UpdateReady, encode
from fedfa.store import DirectoryStore, Download
from fedfa.tensor_files import encode as encode_file
from fedfa.tensors import FlatModel
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.service import Aggregator
from fedfa_aggregator.views import ENDED_KEPT, Views
from tests.unit.builders import (
    ATTEMPT,
    TEMPLATE,
    UID,
    birth,
    put_update,
    submitted,
    update_ready,
    vector,
)
from tests.unit.sample_run import born

MODEL_BYTES = TEMPLATE.num_floats * 4
RULE = {"name": "fedfa-delta", "window": 2}
PLENTY = 10**9


class Store(DirectoryStore):
    """A folder that remembers what was downloaded, and tells before it reads or writes a file.

    unreadable: keys for which alone it gives no answer. failed: what it gave none for.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.downloaded: list[str] = []
        self.before_download: Callable[[str], object] = lambda key: None
        self.before_upload: Callable[[], None] = lambda: None
        self.is_down = False
        self.unreadable: set[str] = set()
        self.failed: list[str] = []

    def exists(self, key: str) -> bool:
        self._answer(key)
        return super().exists(key)

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self._answer(key)
        return super().get(key, max_bytes=max_bytes)

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        self.before_download(key)
        self._answer(key)
        self.downloaded.append(key)
        return super().download(key, max_bytes=max_bytes)

    def upload(self, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        self.before_upload()
        super().upload(key, parts, digest=digest)

    def _answer(self, key: str) -> None:
        if self.is_down or key in self.unreadable:
            self.failed.append(key)
            raise StoreUnavailable(key)


class Harness:
    """An aggregator on a folder, without a broker."""

    def __init__(self, root: Path, *, memory_bytes: int = PLENTY) -> None:
        self.store = Store(root)
        self.reader = Reader(self.store)
        self.published: list[AnyMessage | bytes] = []
        self.num_acked = 0
        self.aggregator = Aggregator(
            self.store,
            lambda message, *_: self.published.append(message),
            writer="a",
            reader=self.reader,
            views=Views(memory_bytes=memory_bytes),
        )

    def serve(self, *messages: AnyMessage) -> None:
        self.aggregator.serve([self.delivery(message) for message in messages])

    def delivery(self, message: AnyMessage) -> Delivery:
        def ack() -> None:
            self.num_acked += 1

        return Delivery(encode(message), "updates", {}, False, ack, lambda: None)

    def newest(self, name: str = "fed") -> Manifest:
        newest = manifests.newest(self.store, name)
        assert newest is not None
        return newest.manifest

    def update(self, seed: int, *, slot: int, name: str = "fed", **changes: Any) -> UpdateReady:
        state = self.newest(name).state
        where: dict[str, Any] = {
            "federation": name,
            "slot": slot,
            "generation": state.slots[slot].generation,
            "client": state.slots[slot].client,
            "base_version": state.version,
        }
        ready = update_ready(**(where | changes))
        body = encode_file(vector(seed, scale=0.1), ready.metadata())
        return put_update(self.store, ready, body)

    def model(self, name: str = "fed") -> FlatModel:
        reference = self.newest(name).model
        assert reference is not None
        return ledger.read_model(self.store, reference, TEMPLATE)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    born(harness.store, "fed", rule={"name": "fedfa-delta", "window": 1})
    return harness


def test_the_next_update_is_read_while_the_one_before_is_uploaded(harness: Harness) -> None:
    first, second = harness.update(1, slot=0), harness.update(2, slot=1)
    is_read = threading.Event()
    harness.store.before_download = lambda key: is_read.set() if key == second.key else None
    harness.serve(harness.update(0, slot=2))  # the federation is known from here on
    harness.store.before_upload = lambda: None if is_read.wait(10) else pytest.fail("not read")
    for message in (first, second):
        harness.reader.hear(harness.delivery(message))

    harness.serve(first)
    harness.store.before_upload = lambda: None
    harness.serve(second)

    assert harness.store.downloaded.count(second.key) == 1
    assert harness.newest().state.version == 3


def test_reading_ahead_changes_no_bit(tmp_path: Path) -> None:
    models = []
    for hears in (True, False):
        harness = Harness(tmp_path / str(hears))
        born(harness.store, "fed", rule=RULE)
        for seed in range(12):
            messages = [harness.update(10 * seed + slot, slot=slot) for slot in range(3)]
            if hears:
                for message in messages:
                    harness.reader.hear(harness.delivery(message))
            harness.serve(*messages)
        models.append(harness.model().floats.tobytes())
        assert harness.newest().state.version == 35
        assert harness.num_acked == 36

    assert models[0] == models[1]


def test_bad_updates_read_ahead_are_rejected_in_their_place(harness: Harness) -> None:
    harness.serve(harness.update(0, slot=2))
    missing = harness.update(1, slot=0)
    harness.store.delete(missing.key)
    other = harness.update(2, slot=1, client="client-0099")
    late, good = harness.update(3, slot=2), harness.update(4, slot=2)
    for message in (missing, other, late, late, good):
        harness.reader.hear(harness.delivery(message))

    harness.serve(missing, other, late, late, good)

    outcomes = [decision.event.outcome for decision in harness.newest().decisions]
    assert outcomes == ["rejected", "rejected", "merged"]
    assert harness.num_acked == 6


def test_an_outage_while_reading_ahead_is_no_verdict(harness: Harness) -> None:
    harness.serve(harness.update(0, slot=2))
    message = harness.update(1, slot=0)
    harness.store.is_down = True
    harness.reader.hear(harness.delivery(message))
    with pytest.raises(StoreUnavailable):
        harness.serve(message)
    harness.aggregator.forget()
    harness.store.is_down = False

    harness.reader.hear(harness.delivery(message))
    harness.serve(message)

    assert harness.newest().state.version == 2


def test_what_was_heard_and_never_came_blocks_nothing(harness: Harness) -> None:
    harness.serve(harness.update(0, slot=2))
    gone, next_one = harness.update(1, slot=0), harness.update(2, slot=1)
    harness.reader.hear(harness.delivery(gone))  # and the broker takes it back

    harness.aggregator.rest()
    harness.reader.hear(harness.delivery(next_one))
    harness.serve(next_one)

    assert harness.store.downloaded.count(next_one.key) == 1
    assert harness.newest().state.version == 2


def test_a_view_that_had_to_go_is_built_again(tmp_path: Path) -> None:
    harness = Harness(tmp_path, memory_bytes=7 * MODEL_BYTES)
    names = ["one", "two", "three"]
    for name in names:
        born(harness.store, name, rule=RULE)
    for seed in range(4):
        for name in names:
            harness.serve(harness.update(seed, slot=seed % 3, name=name))

    expected = harness.model("one").floats.tobytes()
    assert [harness.newest(name).state.version for name in names] == [3, 3, 3]
    assert [harness.model(name).floats.tobytes() for name in names] == [expected] * 3
    models_read = [key for key in harness.store.downloaded if "/models/" in key]
    assert len(models_read) == 12 + 4, "each view was built at every turn, and 4 reads are ours"


def test_views_that_fit_together_stay(tmp_path: Path) -> None:
    harness = Harness(tmp_path, memory_bytes=8 * MODEL_BYTES)
    for name in ("one", "two"):
        born(harness.store, name, rule=RULE)
    for seed in range(4):
        for name in ("one", "two"):
            harness.serve(harness.update(seed, slot=seed % 3, name=name))

    assert len([key for key in harness.store.downloaded if "/models/" in key]) == 2


def test_a_model_too_large_for_the_memory_ends_its_federation_with_the_arithmetic(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path, memory_bytes=5 * MODEL_BYTES - 1)
    submission = submitted(rule=RULE)
    harness.store.create(keys.spec("fed"), submission.model_dump_json(by_alias=True).encode())
    body = encode_file(vector(0), ledger.birth_metadata(birth()))
    key = keys.model("fed", 0, sha256(body))
    harness.store.put(key, body)

    ready = InitReady(federation="fed", uid=UID, attempt=ATTEMPT, key=key, digest=sha256(body))
    harness.serve(ready)

    state = harness.newest().state
    assert state.status == "failed"
    assert "merging holds 5 of them (a window of 2, and 3 more)" in str(state.reason)
    assert "raise FEDFA_AGGREGATOR_MEMORY_MIB" in str(state.reason)
    assert harness.num_acked == 1


def test_a_running_federation_too_large_for_the_memory_waits_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = Harness(tmp_path, memory_bytes=5 * MODEL_BYTES - 1)
    born(small.store, "fed", rule=RULE)
    message = small.update(0, slot=0)

    small.serve(message)

    assert (small.published, small.num_acked, small.newest().n) == ([], 1, 0)
    assert small.store.downloaded == []
    assert "raise FEDFA_AGGREGATOR_MEMORY_MIB" in str(caplog.records[-1].__dict__["reason"])

    large = Harness(tmp_path, memory_bytes=5 * MODEL_BYTES)
    large.serve(message)  # as the scheduler announces it, every lease

    assert large.newest().state.num_merged == 1


def test_a_birth_makes_room_before_its_model_is_read(tmp_path: Path) -> None:
    body = encode_file(vector(0), ledger.birth_metadata(birth()))
    # For a merge's five models, taken for as large as the file, and the two of one view that rests.
    harness = Harness(tmp_path, memory_bytes=5 * len(body) + 2 * MODEL_BYTES)
    for name in ("one", "two"):
        born(harness.store, name, rule=RULE)
        harness.serve(harness.update(0, slot=0, name=name))
    submission = submitted("three", rule=RULE)
    harness.store.create(keys.spec("three"), submission.model_dump_json(by_alias=True).encode())
    key = keys.model("three", 0, sha256(body))
    harness.store.put(key, body)
    views = harness.aggregator._views
    held_at_read: list[bool] = []

    def look(key: str) -> None:
        held_at_read.extend(views.get(name) is not None for name in ("one", "two"))

    harness.store.before_download = look
    harness.serve(
        InitReady(federation="three", uid=UID, attempt=ATTEMPT, key=key, digest=sha256(body))
    )

    assert harness.newest("three").state.status == "running"
    assert held_at_read == [False, True]


def test_a_window_that_is_read_for_long_keeps_the_pulse(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    born(harness.store, "fed", rule=RULE)
    for slot in (0, 1):
        harness.serve(harness.update(slot, slot=slot))
    beats_before: list[int] = []
    num_beats = 0

    def beat() -> None:
        nonlocal num_beats
        num_beats += 1

    harness.store.before_download = lambda key: beats_before.append(num_beats)
    fresh = Aggregator(
        harness.store,
        lambda *_: None,
        writer="b",
        reader=Reader(harness.store),
        views=Views(memory_bytes=PLENTY),
        beat=beat,
    )
    fresh.serve([harness.delivery(harness.update(2, slot=0))])

    assert beats_before[:3] == [0, 1, 2]  # the model, then the window


def test_federations_that_ended_are_let_go_but_for_a_few(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    views = Views(memory_bytes=PLENTY)
    aggregator = Aggregator(
        harness.store, lambda *_: None, writer="a", reader=harness.reader, views=views
    )
    names = [f"fed-{number}" for number in range(ENDED_KEPT + 3)]
    for name in names:
        born(harness.store, name, rule=RULE, stop={"updates": 1})
        last = harness.update(0, slot=0, name=name)
        aggregator.serve([harness.delivery(last)])
        assert harness.newest(name).state.status == "finished"
    assert [name for name in names if views.get(name) is not None] == names[3:]
