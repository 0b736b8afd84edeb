"""The S3 store against a real server: lost answers, crashes, stalls, and wrong settings."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, Misconfigured, StoreUnavailable
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.s3 import S3Store
from fedfa.store import ObjectStore, from_settings
from tests.proxy import Proxy
from tests.unit.builders import every_use

pytestmark = pytest.mark.services

OURS = b"ours" * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: SeaweedFS) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def direct(server: SeaweedFS) -> ObjectStore:
    return from_settings(server.settings())


@pytest.fixture
def proxied(server: SeaweedFS, proxy: Proxy) -> ObjectStore:
    return through(proxy, server)


def through(proxy: Proxy, server: SeaweedFS, **changes: object) -> ObjectStore:
    change = {"endpoint": f"http://127.0.0.1:{proxy.port}", "outage_seconds": 10.0, **changes}
    return from_settings(server.settings().model_copy(update=change))


def test_a_create_whose_answer_is_lost_succeeds_once(
    proxied: ObjectStore, proxy: Proxy, direct: ObjectStore
) -> None:
    proxy.cut_responses(1)

    proxied.create("create/lost-answer", OURS)

    assert proxy.num_cut == 1
    assert direct.get("create/lost-answer") == OURS
    with pytest.raises(AlreadyExists):
        proxied.create("create/lost-answer", OURS)


def test_a_create_whose_read_back_is_lost_too_succeeds(
    proxied: ObjectStore, proxy: Proxy, direct: ObjectStore
) -> None:
    proxy.cut_responses(3)

    proxied.create("create/lost-read-back", OURS)

    assert proxy.num_cut == 3
    assert direct.get("create/lost-read-back") == OURS


@pytest.mark.parametrize("theirs", [b"theirs", b"", OURS + b"longer"])
def test_a_create_whose_refusal_is_lost_is_refused(
    proxied: ObjectStore, proxy: Proxy, direct: ObjectStore, theirs: bytes
) -> None:
    direct.put("create/lost-refusal", theirs)
    proxy.cut_responses(1)

    with pytest.raises(AlreadyExists, match="create/lost-refusal"):
        proxied.create("create/lost-refusal", OURS)

    assert proxy.num_cut == 1
    assert direct.get("create/lost-refusal") == theirs


def test_a_create_that_never_arrived_is_sent_again(
    proxied: ObjectStore, proxy: Proxy, direct: ObjectStore
) -> None:
    proxy.refuse()
    healing = threading.Timer(0.5, proxy.heal)
    healing.start()

    proxied.create("create/refused", OURS)

    healing.join()
    assert direct.get("create/refused") == OURS


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
    proxied: ObjectStore, proxy: Proxy, direct: ObjectStore, size: int
) -> None:
    parts = [OURS, memoryview(bytes(size))]
    proxy.cut_responses(2)

    proxied.upload("upload/lost-answer", parts, digest=sha256(*parts))

    assert proxy.num_cut == 2
    assert direct.get("upload/lost-answer") == OURS + bytes(size)


def test_a_large_upload_with_a_wrong_secret_is_reported_as_such(server: SeaweedFS) -> None:
    wrong = server.settings().model_copy(update={"secret_key": SecretStr("not-the-secret")})
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


def test_a_stalled_store_is_an_outage_and_works_afterwards(server: SeaweedFS, proxy: Proxy) -> None:
    store = through(proxy, server, read_timeout_seconds=0.3, outage_seconds=1.0)
    store.put("stalled", OURS)
    proxy.stall()
    started = time.monotonic()

    with pytest.raises(StoreUnavailable, match="get 'stalled' in bucket 'fedfa' at http://127"):
        store.get("stalled")

    assert time.monotonic() - started < 5
    proxy.heal()
    assert store.get("stalled") == OURS


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


def test_a_wrong_secret_is_reported_in_one_line_without_it(server: SeaweedFS) -> None:
    wrong = server.settings().model_copy(update={"secret_key": SecretStr("not-the-secret")})
    store = from_settings(wrong)

    for use in every_use(store):
        with pytest.raises(Misconfigured, match="FEDFA_S3_SECRET_KEY") as refusal:
            use()
        text = str(refusal.value)
        assert server.endpoint in text
        assert "\n" not in text
        assert "not-the-secret" not in text
    with pytest.raises(Misconfigured, match="FEDFA_S3_SECRET_KEY"):
        store.ensure_bucket()


def test_an_unknown_access_key_is_reported(server: SeaweedFS) -> None:
    wrong = server.settings().model_copy(update={"access_key": SecretStr("nobody")})

    with pytest.raises(Misconfigured, match="InvalidAccessKeyId; check FEDFA_S3_ACCESS_KEY"):
        from_settings(wrong).get("a")


def test_a_missing_bucket_is_no_missing_object(server: SeaweedFS) -> None:
    store = from_settings(server.settings().model_copy(update={"bucket": "absent"}))

    for use in (lambda: store.get("a"), lambda: store.exists("a")):
        with pytest.raises(Misconfigured, match=r"'absent' .*: no such bucket; create it"):
            use()

    store.ensure_bucket()
    store.ensure_bucket()
    assert not store.exists("a")


def test_a_large_object_tells_of_its_progress(server: SeaweedFS) -> None:
    # given
    told: list[None] = []
    store = S3Store(server.settings(), on_progress=lambda: told.append(None))
    body = bytes(5 << 20)
    # when
    store.put("large", body)
    num_out = len(told)
    store.download("large")
    # then
    assert num_out >= 5
    assert len(told) - num_out >= 5
