"""What the S3 store makes of a server's answers, whatever they are, and of wrong settings.

Against a real server, and a network that breaks: tests/services/test_store_faults.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain, repeat

import pytest
from pydantic import SecretStr, ValidationError

from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, InvalidInput, Misconfigured, StoreUnavailable
from fedfa.local.processes import free_port
from fedfa.settings import StoreSettings
from fedfa.store import from_settings
from tests.http_server import Handler, serving
from tests.unit.builders import every_use

OURS = b"ours" * 1000
NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code></Error>"


def settings(endpoint: str, *, outage_seconds: float = 1.0) -> StoreSettings:
    secret = SecretStr("secret")
    return StoreSettings(
        endpoint=endpoint, access_key=secret, secret_key=secret, outage_seconds=outage_seconds
    )


@contextmanager
def http_server(
    *answers: tuple[int, bytes], seen: list[dict[str, str]] | None = None
) -> Iterator[str]:
    """A web server with these answers, whatever it is asked; the last one repeats.

    seen: takes the headers of every request.
    """
    script = chain(answers, repeat(answers[-1]))

    class Scripted(ScriptedHandler):
        def next_answer(self) -> tuple[int, bytes]:
            if seen is not None:
                seen.append({name.lower(): value for name, value in self.headers.items()})
            return next(script)

    with serving(Scripted) as endpoint:
        yield endpoint


class ScriptedHandler(Handler):
    def next_answer(self) -> tuple[int, bytes]:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.read()
        self.answer(*self.next_answer())

    do_PUT = do_DELETE = do_GET


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


def test_an_upload_tells_the_server_the_digest_that_it_must_find() -> None:
    seen: list[dict[str, str]] = []
    mismatch = b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>"
    with http_server((400, mismatch), seen=seen) as endpoint:
        store = from_settings(settings(endpoint, outage_seconds=0.1))

        with pytest.raises(StoreUnavailable, match="XAmzContentSHA256Mismatch"):
            store.upload("a", [b"bo", b"dy"], digest=sha256(b"body"))

    assert {each["x-amz-content-sha256"] for each in seen} == {sha256(b"body")}
    assert all("x-amz-content-sha256" in each["authorization"] for each in seen)


def test_a_store_that_nobody_serves_is_an_outage_that_names_the_endpoint() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    store = from_settings(settings(endpoint, outage_seconds=0.1))

    for use in every_use(store):
        with pytest.raises(StoreUnavailable, match=endpoint):
            use()


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
