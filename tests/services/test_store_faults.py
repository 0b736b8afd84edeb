"""The S3 store against a real server: lost answers, crashes, stalls, and wrong settings."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import SecretStr

from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, Misconfigured, NotFound, StoreUnavailable
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings
from fedfa.store import ObjectStore, from_settings
from tests.proxy import Proxy
from tests.servers import own_bucket, port_of, variables
from tests.unit.builders import every_use

pytestmark = pytest.mark.services

OURS = b"ours" * 1000


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(s3: StoreSettings) -> Iterator[Proxy]:
    with Proxy(port_of(s3)) as proxy:
        yield proxy


@pytest.fixture
def proxied(store: S3Store, store_settings: StoreSettings, proxy: Proxy) -> ObjectStore:
    """The same bucket as `store`, through the proxy."""
    return through(proxy, store_settings)


def through(proxy: Proxy, settings: StoreSettings, **changes: object) -> ObjectStore:
    change = {"endpoint": f"http://127.0.0.1:{proxy.port}", "outage_seconds": 10.0, **changes}
    return from_settings(settings.model_copy(update=change))


def test_a_create_whose_answer_is_lost_succeeds_once(
    proxied: ObjectStore, proxy: Proxy, store: S3Store
) -> None:
    proxy.cut_responses(1)

    proxied.create("create/lost-answer", OURS)

    assert proxy.num_cut == 1
    assert store.get("create/lost-answer") == OURS
    with pytest.raises(AlreadyExists):
        proxied.create("create/lost-answer", OURS)


def test_a_create_whose_read_back_is_lost_too_succeeds(
    proxied: ObjectStore, proxy: Proxy, store: S3Store
) -> None:
    proxy.cut_responses(3)

    proxied.create("create/lost-read-back", OURS)

    assert proxy.num_cut == 3
    assert store.get("create/lost-read-back") == OURS


@pytest.mark.parametrize("theirs", [b"theirs", OURS + b"longer"])
def test_a_create_whose_refusal_is_lost_is_refused(
    proxied: ObjectStore, proxy: Proxy, store: S3Store, theirs: bytes
) -> None:
    store.put("create/lost-refusal", theirs)
    proxy.cut_responses(1)

    with pytest.raises(AlreadyExists, match="create/lost-refusal"):
        proxied.create("create/lost-refusal", OURS)

    assert proxy.num_cut == 1
    assert store.get("create/lost-refusal") == theirs


DYING = """
import os, signal, sys
from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings
store = S3Store(StoreSettings(), on_progress=lambda: os.kill(os.getpid(), signal.SIGKILL))
store.create(sys.argv[1], b"never sent")
"""


def test_a_writer_killed_between_head_and_body_of_its_request_has_written_nothing(
    store: S3Store, store_settings: StoreSettings
) -> None:
    environment = os.environ | variables(store_settings)
    for number in range(5):
        key = f"create/killed-{number}"
        died = subprocess.run([sys.executable, "-c", DYING, key], env=environment)
        assert died.returncode == -signal.SIGKILL
        time.sleep(0.2)  # until the server has noticed

        assert not store.exists(key)
        store.create(key, OURS)
        assert store.get(key) == OURS


def test_an_empty_object_counts_as_absent(store: S3Store) -> None:
    store.put("create/empty", b"")

    assert not store.exists("create/empty")
    for read in (store.get, store.download, lambda key: store.get_start(key, 10)):
        with pytest.raises(NotFound, match="it is empty"):
            read("create/empty")


def test_of_several_that_create_over_an_empty_object_one_succeeds(store: S3Store) -> None:
    store.put("create/over-empty", b"")

    def is_created(body: bytes) -> bool:
        with suppress(AlreadyExists):
            store.create("create/over-empty", body)
            return True
        return False

    bodies = [f"writer {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(len(bodies)) as threads:
        created = list(threads.map(is_created, bodies))

    assert [body for body, is_its in zip(bodies, created, strict=True) if is_its] == [
        store.get("create/over-empty")
    ]


def test_a_create_that_never_arrived_is_sent_again(
    proxied: ObjectStore, proxy: Proxy, store: S3Store
) -> None:
    proxy.refuse()
    healing = threading.Timer(0.5, proxy.heal)
    healing.start()

    proxied.create("create/refused", OURS)

    healing.join()
    assert store.get("create/refused") == OURS


@pytest.mark.parametrize("after_bytes", [0, 100, 50_000])
def test_an_answer_that_breaks_off_is_asked_for_again(
    proxied: ObjectStore, proxy: Proxy, after_bytes: int
) -> None:
    body = bytes(range(256)) * 4000
    proxied.put("broken-off", body)
    proxy.cut_responses(2, after_bytes=after_bytes)

    assert proxied.get("broken-off") == body
    assert proxied.get_start("broken-off", 1000) == body[:1000]
    assert proxied.exists("broken-off")
    assert proxy.num_cut == 2


@pytest.mark.parametrize("after_bytes", [0, 100, 50_000, 1_000_000])
def test_a_download_that_breaks_off_starts_again(
    proxied: ObjectStore, proxy: Proxy, after_bytes: int
) -> None:
    body = bytes(range(256)) * 8000
    proxied.put("broken-off", body)
    proxy.cut_responses(2, after_bytes=after_bytes)

    found = proxied.download("broken-off")

    assert found.body == body
    assert found.digest == sha256(body)
    assert proxy.num_cut == 2


@pytest.mark.parametrize("size", [4000, 4_000_000])
def test_an_upload_whose_answer_is_lost_is_sent_again(
    proxied: ObjectStore, proxy: Proxy, store: S3Store, size: int
) -> None:
    parts = [OURS, memoryview(bytes(size))]
    proxy.cut_responses(2)

    proxied.upload("upload/lost-answer", parts, digest=sha256(*parts))

    assert proxy.num_cut == 2
    assert store.get("upload/lost-answer") == OURS + bytes(size)


def test_a_large_upload_with_a_wrong_secret_is_reported_as_such(
    store_settings: StoreSettings,
) -> None:
    wrong = store_settings.model_copy(update={"secret_key": SecretStr("not-the-secret")})
    body = bytes(20_000_000)

    with pytest.raises(Misconfigured, match="FEDFA_S3_SECRET_KEY"):
        from_settings(wrong).upload("upload/denied", [body], digest=sha256(body))


def test_lost_answers_to_puts_listings_and_deletes_are_asked_for_again(
    proxied: ObjectStore, proxy: Proxy
) -> None:
    proxy.cut_responses(1)
    proxied.put("again/a", OURS)
    proxy.cut_responses(1)
    assert [info.key for info in proxied.list("again/")] == ["again/a"]
    proxy.cut_responses(1)
    assert "again" in set(proxied.folders())
    proxy.cut_responses(1)
    proxied.delete("again/a")

    assert proxy.num_cut == 4
    assert not proxied.exists("again/a")


def test_a_stalled_store_is_an_outage_and_works_afterwards(
    store: S3Store, store_settings: StoreSettings, proxy: Proxy
) -> None:
    slow = through(proxy, store_settings, read_timeout_seconds=0.3, outage_seconds=1.0)
    store.put("stalled", OURS)
    proxy.stall()
    started = time.monotonic()

    with pytest.raises(StoreUnavailable, match=f"get 'stalled' in {slow.name}"):
        slow.get("stalled")

    assert time.monotonic() - started < 5
    proxy.heal()
    assert slow.get("stalled") == OURS


def test_calls_go_on_after_a_crash_of_the_server_without_loss(own_server: SeaweedFS) -> None:
    store = from_settings(own_server.settings())
    done = [0, 0]
    is_over = threading.Event()

    def work(worker: int) -> None:
        while not is_over.is_set():
            key = f"worker/{worker}/{done[worker]}"
            store.create(key, key.encode())
            store.put(f"worker/{worker}/head", key.encode())
            assert store.get(key) == key.encode()
            done[worker] += 1

    def wait_for_progress() -> None:
        goals = [num_done + 10 for num_done in done]
        while any(num_done < goal for num_done, goal in zip(done, goals, strict=True)):
            assert not any(worker.done() for worker in workers)
            time.sleep(0.01)

    with ThreadPoolExecutor(2) as pool:
        workers = [pool.submit(work, worker) for worker in range(2)]
        try:
            for _ in range(2):
                wait_for_progress()
                own_server.kill()
                own_server.start()
            wait_for_progress()
        finally:
            is_over.set()
    for worker in workers:
        worker.result()

    for number, num_done in enumerate(done):
        assert store.get(f"worker/{number}/head") == f"worker/{number}/{num_done - 1}".encode()
        for n in range(num_done):
            key = f"worker/{number}/{n}"
            assert store.get(key) == key.encode()


def test_a_wrong_secret_is_reported_in_one_line_without_it(store_settings: StoreSettings) -> None:
    wrong = store_settings.model_copy(update={"secret_key": SecretStr("not-the-secret")})
    store = from_settings(wrong)

    for use in every_use(store):
        with pytest.raises(Misconfigured, match="FEDFA_S3_SECRET_KEY") as refusal:
            use()
        text = str(refusal.value)
        assert str(store_settings.endpoint) in text
        assert "\n" not in text
        assert "not-the-secret" not in text
    with pytest.raises(Misconfigured, match="FEDFA_S3_SECRET_KEY"):
        store.ensure_bucket()


def test_an_unknown_access_key_is_reported(store_settings: StoreSettings) -> None:
    wrong = store_settings.model_copy(update={"access_key": SecretStr("nobody")})

    with pytest.raises(Misconfigured, match="InvalidAccessKeyId; check FEDFA_S3_ACCESS_KEY"):
        from_settings(wrong).get("a")


def test_a_missing_bucket_is_no_missing_object(store_settings: StoreSettings) -> None:
    absent = own_bucket(store_settings)
    store = from_settings(absent)
    missing = f"'{absent.bucket}' .*: no such bucket; create it"

    for use in (lambda: store.get("a"), lambda: store.exists("a")):
        with pytest.raises(Misconfigured, match=missing):
            use()

    store.ensure_bucket()
    store.ensure_bucket()
    assert not store.exists("a")


def test_a_large_object_tells_of_its_progress(
    store: S3Store, store_settings: StoreSettings
) -> None:
    # given
    told: list[None] = []
    telling = S3Store(store_settings, on_progress=lambda: told.append(None))
    body = bytes(5 << 20)
    # when
    telling.put("large", body)
    num_out = len(told)
    telling.download("large")
    # then
    assert num_out >= 5
    assert len(told) - num_out >= 5
