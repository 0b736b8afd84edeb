"""A trainer's marks on its own pod, against a real HTTPS server."""

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedfa_trainer.protection import BUSY, NotMarked, Pod, Protection
from tests.http_server import Handler, running
from tests.waiting import wait_for

IDLE = dict.fromkeys(BUSY)


class ApiServer(ThreadingHTTPServer):
    """Notes every request, and answers with `status`."""

    status = 200

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key")
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust this server hangs up: expected in one test."""

    def marks(self) -> list[Any]:
        return [body["metadata"]["annotations"] for _, _, _, body in self.requests]


class _Handler(Handler):
    server: ApiServer

    def do_PATCH(self) -> None:
        body = json.loads(self.read())
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        self.answer(self.server.status, b"{}")


def certificate(folder: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    command += f" -subj /CN=api -addext subjectAltName=IP:127.0.0.1 -keyout {folder}/key"
    subprocess.run([*command.split(), "-out", f"{folder}/ca.crt"], check=True, capture_output=True)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    certificate(tmp_path)
    (tmp_path / "token").write_text("first-token\n")
    (tmp_path / "namespace").write_text("learning")
    return tmp_path


@pytest.fixture
def server(account: Path) -> Iterator[ApiServer]:
    server = ApiServer(account)
    with running(server):
        yield server


@pytest.fixture
def pod(server: ApiServer, account: Path) -> Pod:
    return Pod("trainer-7d9f-x2b", "127.0.0.1", server.server_port, account)


def test_a_mark_is_one_patch_of_the_own_pods_annotations(server: ApiServer, pod: Pod) -> None:
    pod.mark(True)
    method, path, headers, body = server.requests[0]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/learning/pods/trainer-7d9f-x2b")
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert body == {"metadata": {"annotations": BUSY}}
    assert all(isinstance(value, str) for value in BUSY.values())


def test_an_idle_pod_has_none_of_the_marks_left(server: ApiServer, pod: Pod) -> None:
    pod.mark(False)
    assert server.marks() == [IDLE]  # null removes


def test_a_rotated_token_is_used(server: ApiServer, pod: Pod, account: Path) -> None:
    pod.mark(True)
    (account / "token").write_text("second-token\n")
    pod.mark(False)
    used = [headers["Authorization"] for _, _, headers, _ in server.requests]
    assert used == ["Bearer first-token", "Bearer second-token"]


def test_a_server_of_another_authority_gets_no_token(
    server: ApiServer, pod: Pod, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    certificate(other)
    for name in ("token", "namespace"):
        (other / name).write_text("x")
    with pytest.raises(ssl.SSLCertVerificationError):
        Pod(pod.name, pod.host, pod.port, other).mark(True)
    assert server.requests == []


def test_a_refusal_says_what_the_server_said(server: ApiServer, pod: Pod) -> None:
    server.status = 403
    with pytest.raises(NotMarked, match="403"):
        pod.mark(True)


def test_marks_follow_the_work_and_a_short_pause_is_not_shown(server: ApiServer, pod: Pod) -> None:
    protection = Protection(pod.mark, idle_seconds=0.5)
    wait_for(lambda: server.marks() == [IDLE])  # what a former container left is removed
    protection.show(True)
    wait_for(lambda: server.marks() == [IDLE, BUSY])
    protection.show(False)
    protection.show(True)
    time.sleep(1)
    assert server.marks() == [IDLE, BUSY]
    protection.show(False)
    wait_for(lambda: server.marks() == [IDLE, BUSY, IDLE])
    protection.close()


def test_a_failed_mark_is_tried_again(server: ApiServer, pod: Pod) -> None:
    server.status = 500
    protection = Protection(pod.mark, idle_seconds=0.1, retry_seconds=0.1)
    protection.show(True)
    wait_for(lambda: len(server.requests) >= 3)
    server.status = 200
    wait_for(lambda: server.marks()[-1] == BUSY)
    seen = len(server.requests)
    time.sleep(0.5)
    assert len(server.requests) <= seen + 1  # and then not again
    protection.close()


@pytest.mark.timeout(30)
def test_showing_never_waits_for_the_api_server() -> None:
    release = threading.Event()
    protection = Protection(lambda _: bool(release.wait()) and None)
    for is_busy in (True, False, True):
        protection.show(is_busy)  # one that waited would do so for ever
    release.set()
    protection.close()
