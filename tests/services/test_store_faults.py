"""The S3 store against a real server: lost answers, crashes, stalls, and wrong settings."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, InvalidInput, Misconfigured, StoreUnavailable
from fedfa.local.processes import free_port
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings
from fedfa.store import ObjectStore, from_settings
from tests.proxy import Proxy

pytestmark = pytest.mark.services

OURS = b"ours" * 1000
NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code></Error>"


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


@pytest.mark.parametrize(
    ("found", "is_ours"),
    [((200, OURS), True), ((200, b"theirs"), False), ((404, NO_SUCH_KEY), False)],
    ids=["ours", "theirs", "deleted since"],
)
def test_a_refused_retry_is_judged_by_what_the_store_holds(
    found: tuple[int, bytes], is_ours: bool
) -> None:
    # The first request lands late: after the read-back, before the second request.
    with http_server((503, b""), (404, NO_SUCH_KEY), (412, b""), found) as endpoint:
        store = from_settings(settings(endpoint, outage_seconds=5))

        with nullcontext() if is_ours else pytest.raises(AlreadyExists):
            store.create("create/late", OURS)


def test_a_conflict_is_no_refusal() -> None:
    with http_server(
        (409, b""), (404, NO_SUCH_KEY), (409, b""), (404, NO_SUCH_KEY), (200, b"")
    ) as endpoint:
        from_settings(settings(endpoint, outage_seconds=5)).create("create/conflict", OURS)


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


def test_an_upload_tells_the_server_the_digest_that_it_must_find() -> None:
    seen: list[dict[str, str]] = []
    mismatch = b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>"
    with http_server((400, mismatch), seen=seen) as endpoint:
        store = from_settings(settings(endpoint, outage_seconds=0.1))

        with pytest.raises(StoreUnavailable, match="XAmzContentSHA256Mismatch"):
            store.upload("a", [b"bo", b"dy"], digest=sha256(b"body"))

    assert {each["x-amz-content-sha256"] for each in seen} == {sha256(b"body")}
    assert all("x-amz-content-sha256" in each["authorization"] for each in seen)


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


def test_a_store_that_nobody_serves_is_an_outage_that_names_the_endpoint() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    store = from_settings(settings(endpoint, outage_seconds=0.1))

    for use in every_use(store):
        with pytest.raises(StoreUnavailable, match=endpoint):
            use()


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


def test_a_load_balancers_404_is_an_outage_and_no_missing_object() -> None:
    with http_server((404, b"<html>default backend</html>")) as endpoint:
        store = from_settings(settings(endpoint, outage_seconds=0.1))

        for use in every_use(store):
            with pytest.raises(StoreUnavailable, match="HTTP 404"):
                use()


@pytest.mark.parametrize("status", [500, 502, 503, 429, 409])
def test_an_overloaded_store_is_an_outage(status: int) -> None:
    with http_server((status, b"<Error><Code>SlowDown</Code></Error>")) as endpoint:
        store = from_settings(settings(endpoint, outage_seconds=0.1))

        for use in (lambda: store.get("a"), lambda: store.create("a", b"")):
            with pytest.raises(StoreUnavailable, match=f"HTTP {status} SlowDown"):
                use()


def test_a_denied_key_is_reported_with_the_operation_and_the_permission() -> None:
    denial = b"<Error><Code>AccessDenied</Code><Message>Access\nDenied.</Message></Error>"
    with http_server((403, denial)) as endpoint:
        store = from_settings(settings(endpoint))

        with pytest.raises(Misconfigured) as refusal:
            store.create("runs/manifests/1.json", b"")

    text = str(refusal.value)
    assert text.startswith(f"create 'runs/manifests/1.json' in bucket 'fedfa' at {endpoint}: ")
    assert "allow s3:PutObject" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "InvalidObjectState"), (400, "InvalidRequest"), (400, "KMS.DisabledException")],
)
def test_an_object_that_its_writer_made_unreadable_is_no_wrong_setting(
    status: int, code: str
) -> None:
    answer = f"<Error><Code>{code}</Code><Message>archived</Message></Error>".encode()
    with http_server((status, answer)) as endpoint:
        store = from_settings(settings(endpoint))

        for read in (store.get, store.download, store.exists):
            with pytest.raises(InvalidInput, match=f"^unreadable: get 'a' in .*: {code} archived"):
                read("a")
        with pytest.raises(Misconfigured, match=code):
            store.put("a", b"")


def test_a_refusal_arrives_before_a_large_body_is_sent() -> None:
    received: list[bytes] = []

    class Refusing(ScriptedHandler):
        def handle_expect_100(self) -> bool:
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.connection.settimeout(1.0)
            with suppress(TimeoutError):
                received.append(self.rfile.read1(1))
            self.close_connection = True
            return False

    body = bytes(8 << 20)
    with serving(Refusing) as endpoint:
        store = from_settings(settings(endpoint))
        with pytest.raises(Misconfigured, match="allow s3:PutObject"):
            store.upload("a", [body], digest=sha256(body))

    assert received == []


def test_a_wrong_region_is_reported_with_its_setting() -> None:
    redirect = b"<Error><Code>PermanentRedirect</Code><Message>Elsewhere</Message></Error>"
    with http_server((301, redirect)) as endpoint:
        store = from_settings(settings(endpoint))

        with pytest.raises(Misconfigured, match=r"PermanentRedirect.*correct FEDFA_S3_REGION"):
            store.get("a")


def test_a_store_without_conditional_creates_is_reported() -> None:
    unknown = b"<Error><Code>NotImplemented</Code><Message>If-None-Match</Message></Error>"
    with http_server((501, unknown)) as endpoint:
        store = from_settings(settings(endpoint))

        with pytest.raises(Misconfigured, match="HTTP 501 NotImplemented If-None-Match"):
            store.create("a", b"")


def test_half_a_pair_of_keys_is_refused() -> None:
    with pytest.raises(Misconfigured, match="set both FEDFA_S3_ACCESS_KEY and"):
        from_settings(StoreSettings(access_key=SecretStr("only")))


@pytest.mark.parametrize(
    "endpoint", ["localhost:8333", "ftp://host", "http://user:pass@host", "http://a b"]
)
def test_an_invalid_endpoint_is_refused_without_showing_it(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="endpoint") as refusal:
        StoreSettings(endpoint=endpoint)

    assert "pass@" not in str(refusal.value)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFA_S3_BUCKET", "runs")
    monkeypatch.setenv("FEDFA_S3_SECRET_KEY", "hidden")
    monkeypatch.setenv("FEDFA_S3_ENDPOINT", "")

    read = StoreSettings()

    assert (read.bucket, read.endpoint) == ("runs", None)
    assert "hidden" not in repr(read)


def settings(endpoint: str, *, outage_seconds: float = 1.0) -> StoreSettings:
    secret = SecretStr("secret")
    return StoreSettings(
        endpoint=endpoint, access_key=secret, secret_key=secret, outage_seconds=outage_seconds
    )


def every_use(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get("a"),
        lambda: store.get_start("a", 1),
        lambda: store.exists("a"),
        lambda: store.put("a", b""),
        lambda: store.download("a"),
        lambda: store.upload("a", [b""], digest=sha256(b"")),
        lambda: store.create("a", b""),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
        lambda: list(store.folders()),
    ]


@contextmanager
def http_server(
    *answers: tuple[int, bytes], seen: list[dict[str, str]] | None = None
) -> Iterator[str]:
    """A web server with these answers, whatever it is asked; the last one repeats.

    seen: takes the headers of every request.
    """
    script = chain(answers, repeat(answers[-1]))

    class Handler(ScriptedHandler):
        def next_answer(self) -> tuple[int, bytes]:
            if seen is not None:
                seen.append({name.lower(): value for name, value in self.headers.items()})
            return next(script)

    with serving(Handler) as endpoint:
        yield endpoint


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class ScriptedHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # boto waits for this version's 100 Continue

    def next_answer(self) -> tuple[int, bytes]:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.next_answer()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


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
