"""What every ObjectStore promises, and what the conformance probe makes of those that do not."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import SecretStr

from fedfa import conformance
from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, InvalidInput, Misconfigured, NotFound, TooLarge
from fedfa.memory import Bytes
from fedfa.settings import StoreSettings
from fedfa.store import DirectoryStore, ObjectStore, from_settings
from tests.http_server import Handler, serving

ALL_BYTES = bytes(range(256)) * 5000  # 1.28 MB, so that it spans many reads


@pytest.mark.parametrize("body", [b"text", ALL_BYTES], ids=["text", "binary"])
def test_an_object_comes_back_as_it_was_put(store: ObjectStore, folder: str, body: bytes) -> None:
    store.put(f"{folder}/a/b.bin", body)

    assert store.get(f"{folder}/a/b.bin") == body
    assert store.exists(f"{folder}/a/b.bin")


@pytest.mark.parametrize("body", [b"text", ALL_BYTES], ids=["text", "binary"])
def test_a_created_object_comes_back(store: ObjectStore, folder: str, body: bytes) -> None:
    store.create(f"{folder}/a", body)

    assert store.get(f"{folder}/a") == body


@pytest.mark.parametrize(
    "parts",
    [[b"text"], [b"he", bytearray(b"ad"), b"", memoryview(ALL_BYTES)]],
    ids=["text", "parts"],
)
def test_a_large_object_comes_back_with_its_digest(
    store: ObjectStore, folder: str, parts: list[Bytes]
) -> None:
    body = b"".join(parts)
    store.upload(f"{folder}/a/b.bin", parts, digest=sha256(body))

    found = store.download(f"{folder}/a/b.bin", max_bytes=len(body))

    assert found.body == body == store.get(f"{folder}/a/b.bin")
    assert found.digest == sha256(body)


def test_a_downloaded_body_is_its_readers_own(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", ALL_BYTES)
    first = store.download(f"{folder}/a").body
    first[:4] = b"mine"

    second = store.download(f"{folder}/a").body

    assert second == ALL_BYTES
    assert first[:4] == b"mine"


def test_an_upload_replaces_the_object(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", b"long and old")

    store.upload(f"{folder}/a", [b"new"], digest=sha256(b"new"))

    assert store.get(f"{folder}/a") == b"new"


def test_a_put_replaces_the_object(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", b"long and old")

    store.put(f"{folder}/a", b"new")

    assert store.get(f"{folder}/a") == b"new"


@pytest.mark.parametrize("second", [b"second", b"first", b""])
def test_a_second_create_is_refused(store: ObjectStore, folder: str, second: bytes) -> None:
    store.create(f"{folder}/a", b"first")

    with pytest.raises(AlreadyExists, match=folder):
        store.create(f"{folder}/a", second)

    assert store.get(f"{folder}/a") == b"first"


def test_a_create_of_something_put_is_refused(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", b"first")

    with pytest.raises(AlreadyExists):
        store.create(f"{folder}/a", b"second")


def test_of_two_simultaneous_creates_one_succeeds(store: ObjectStore, folder: str) -> None:
    def create(body: bytes) -> bool:
        together.wait()
        try:
            store.create(key, body)
        except AlreadyExists:
            return False
        return True

    for n in range(10):
        key, together = f"{folder}/{n}", threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(create, [b"left", b"right"]))

        assert sorted(won) == [False, True]
        assert store.get(key) == (b"left" if won[0] else b"right")


def test_a_deleted_object_is_gone_and_can_be_created_again(store: ObjectStore, folder: str) -> None:
    store.create(f"{folder}/a", b"first")

    store.delete(f"{folder}/a")

    assert not store.exists(f"{folder}/a")
    store.create(f"{folder}/a", b"second")
    assert store.get(f"{folder}/a") == b"second"


def test_what_does_not_exist_is_not_found(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a/b", b"")

    for key in (f"{folder}/missing", f"{folder}/a", f"{folder}/missing/below"):
        assert not store.exists(key)
        with pytest.raises(NotFound, match=key):
            store.get(key)
        with pytest.raises(NotFound, match=key):
            store.get_start(key, 10)
        with pytest.raises(NotFound, match=key):
            store.download(key)
    store.delete(f"{folder}/missing")
    assert list(store.list(f"{folder}/missing/")) == []


def test_an_object_over_the_limit_is_refused(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", b"12345")

    assert store.get(f"{folder}/a", max_bytes=5) == b"12345"
    for read in (store.get, store.download):
        with pytest.raises(TooLarge, match="5 bytes, at most 4"):
            read(f"{folder}/a", max_bytes=4)


def test_the_start_of_an_object_can_be_read_alone(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a", b"12345")

    assert store.get_start(f"{folder}/a", 2) == b"12"
    assert store.get_start(f"{folder}/a", 5) == b"12345"
    assert store.get_start(f"{folder}/a", 500) == b"12345"


def test_a_listing_gives_key_size_and_time(store: ObjectStore, folder: str) -> None:
    before = time.time()
    store.put(f"{folder}/a/x", b"123")

    [info] = store.list(f"{folder}/a/")

    assert (info.key, info.size_bytes) == (f"{folder}/a/x", 3)
    assert abs(info.modified - before) < 10


def test_a_listing_has_every_key_with_the_prefix_in_order(store: ObjectStore, folder: str) -> None:
    names = ["a/1", "a/10", "a/2", "a/b/c", "ab", "b/1"]
    for name in reversed(names):
        store.put(f"{folder}/{name}", b"")

    def found(prefix: str) -> list[str]:
        return [info.key.removeprefix(f"{folder}/") for info in store.list(f"{folder}/{prefix}")]

    assert found("a/") == ["a/1", "a/10", "a/2", "a/b/c"]
    assert found("a/1") == ["a/1", "a/10"]
    assert sorted(found("a")) == ["a/1", "a/10", "a/2", "a/b/c", "ab"]
    assert sorted(found("")) == names
    assert found("c") == []


def test_a_listing_of_more_than_one_page_is_whole(store: ObjectStore, folder: str) -> None:
    keys = [f"{folder}/{n:020d}.json" for n in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"{}"), keys))

    assert [info.key for info in store.list(f"{folder}/")] == keys


def test_the_folders_are_the_first_components(store: ObjectStore, folder: str) -> None:
    store.put(f"{folder}/a/b", b"")
    store.put(f"{folder}-too/spec.json", b"")
    store.put(f"{folder}.txt", b"in no folder")

    found = [name for name in store.folders() if name.startswith(folder)]

    assert sorted(found) == [folder, f"{folder}-too"]


@pytest.mark.parametrize(
    "key", ["", "/", "/etc/passwd", "a//b", "a/", "../a", "a/../../b", "a/.", ".partial/a", "a\0b"]
)
def test_a_key_that_could_mean_another_place_is_refused(store: ObjectStore, key: str) -> None:
    for use in (store.get, store.download, store.exists, store.delete):
        with pytest.raises(InvalidInput, match="no object key"):
            use(key)
    for write in (store.put, store.create):
        with pytest.raises(InvalidInput, match="no object key"):
            write(key, b"")
    with pytest.raises(InvalidInput, match="no object key"):
        store.upload(key, [b""], digest=sha256(b""))


def test_a_listing_does_not_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").touch()

    with pytest.raises(InvalidInput, match="no object key"):
        list(DirectoryStore(tmp_path / "store").list("../"))


def test_a_folder_shows_no_half_written_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial/left-by-a-crash").write_bytes(b"half")

    assert list(store.list("")) == []
    assert list(store.folders()) == []


def test_the_probe_passes_once_a_day_and_cleans_up(store: ObjectStore) -> None:
    store.delete(conformance.PASSED)
    for now, passed_at in [(1e6, 1e6), (1e6 + 86_399, 1e6), (1e6 + 86_401, 1e6 + 86_401)]:
        conformance.probe(store, now=lambda now=now: now)  # type: ignore[misc]

        [left] = store.list(f"{conformance.FOLDER}/")
        assert left.key == conformance.PASSED
        assert json.loads(store.get(conformance.PASSED))["passed_at"] == passed_at


@pytest.mark.parametrize(
    "stored", [b"", b"nonsense", b"[]", b'{"store":"another","passed_at":1e6}', b'{"passed_at":1}']
)
def test_the_probe_trusts_only_its_own_mark(tmp_path: Path, stored: bytes) -> None:
    store = DirectoryStore(tmp_path)
    store.put(conformance.PASSED, stored)

    conformance.probe(store, now=lambda: 1e6)

    assert json.loads(store.get(conformance.PASSED))["store"] == store.name


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("ignores the condition", "2 of 2 simultaneous creates"),
        ("checks without a lock", "2 of 2 simultaneous creates"),
        ("stores what it refuses", "the bytes of the one successful create were replaced"),
        ("refuses everything", "0 of 2 simultaneous creates"),
        ("allows a later create", "a create of an existing key succeeded"),
        ("ignores If-Match", "simultaneous creates over one empty object succeeded"),
    ],
)
def test_the_probe_refuses_a_store_that_is_not_atomic(fault: str, complaint: str) -> None:
    with brittle_s3(fault) as store:
        with pytest.raises(Misconfigured, match=complaint) as refusal:
            conformance.probe(store, now=time.time)

        assert store.name in str(refusal.value)
        assert "SeaweedFS >= 4.29" in str(refusal.value)
        assert not store.exists(conformance.PASSED)


@pytest.mark.parametrize("fault", ["none", "knows no If-Match"])
def test_the_probe_passes_the_same_server_without_a_fault_that_matters(fault: str) -> None:
    with brittle_s3(fault) as store:
        conformance.probe(store, now=time.time)


@contextmanager
def brittle_s3(fault: str) -> Iterator[ObjectStore]:
    """The real S3Store on a tiny S3 server with one fault in its conditional put."""

    class Faulty(BrittleS3Handler):
        objects: ClassVar[dict[str, bytes]] = {}
        lock = threading.Lock()

    Faulty.fault = fault
    with serving(Faulty) as endpoint:
        secret = SecretStr("secret")
        settings = StoreSettings(
            endpoint=endpoint, access_key=secret, secret_key=secret, outage_seconds=1
        )
        yield from_settings(settings)


class BrittleS3Handler(Handler):
    fault: ClassVar[str]
    objects: ClassVar[dict[str, bytes]]
    lock: ClassVar[threading.Lock]

    def do_PUT(self) -> None:
        body = self.read()
        is_conditional = self.headers["If-None-Match"] == "*"
        if_match = self.headers["If-Match"]
        if if_match is not None and self.fault == "knows no If-Match":
            self.answer(501, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>")
            return
        if self.fault == "checks without a lock":
            exists = self.path in self.objects
            time.sleep(0.05)
            self._store(body, refuse=is_conditional and exists)
            return
        with self.lock:
            is_refused = is_conditional and self._is_refused(body)
            if if_match is not None and self.fault != "ignores If-Match":
                is_refused = self.objects.get(self.path) != b""
            self._store(body, refuse=is_refused)

    def do_GET(self) -> None:
        body = self.objects.get(self.path)
        if body is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        else:
            self.answer(200, body)

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self.answer(204)

    def _is_refused(self, body: bytes) -> bool:
        if self.fault == "ignores the condition":
            return False
        if self.fault == "allows a later create" and body == b"late":
            return False
        return self.fault == "refuses everything" or self.path in self.objects

    def _store(self, body: bytes, *, refuse: bool) -> None:
        if not refuse or self.fault == "stores what it refuses":
            self.objects[self.path] = body
        self.answer(412 if refuse else 200)
