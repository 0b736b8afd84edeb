"""An S3 server that costs next to nothing: objects stay in memory, nothing is checked.

    python benchmarks/null_store.py PORT

It shows what an aggregator does when the store is not the limit. Of the models, which nobody reads
here, only the size is kept. Enough of S3 for FedFa's store, and for nothing else.
"""

import sys
import threading
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from pydantic import SecretStr

from fedfa.local.processes import ServerProcess, accepts, free_port
from fedfa.settings import StoreSettings

BUCKET = "fedfa"
START_SECONDS = 60.0
SINK_BYTES = 1 << 20


class NullStore:
    """The server as a process; the same to its users as `fedfa.local.seaweedfs.SeaweedFS`."""

    bucket, access_key, secret_key = BUCKET, "null", "null"

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def settings(self) -> StoreSettings:
        return StoreSettings(
            endpoint=self.endpoint,
            bucket=self.bucket,
            access_key=SecretStr(self.access_key),
            secret_key=SecretStr(self.secret_key),
        )

    def start(self) -> None:
        command = [sys.executable, __file__, str(self._port)]
        self._process = ServerProcess("null store", command, log=self._folder / "null.log")
        self._process.wait_until(lambda: accepts(self._port), timeout_seconds=START_SECONDS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


@dataclass(frozen=True, slots=True)
class Stored:
    size: int
    body: bytearray | None  # None: zeros


objects: dict[str, Stored] = {}
creating = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer's head and a small body leave together
    sink = memoryview(bytearray(SINK_BYTES))

    def handle_expect_100(self) -> bool:
        is_fine = super().handle_expect_100()
        self.wfile.flush()  # the client waits for it
        return is_fine

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_DELETE(self) -> None:
        objects.pop(self._key, None)
        self._answer(204)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if "list-type=2" in address.query:
            self._list(parse_qs(address.query))
            return
        stored = objects.get(self._key)
        if stored is None:
            self._refuse(404, "NoSuchKey")
            return
        first, last, status = 0, stored.size - 1, 200
        if given := self.headers.get("Range"):
            begin, _, end = given.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end), last), 206
        self.send_response(status)
        self.send_header("Content-Length", str(last + 1 - first))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{stored.size}")
        self.end_headers()
        body = bytes(last + 1 - first) if stored.body is None else stored.body
        start = 0 if stored.body is None else first
        self.wfile.write(memoryview(body)[start : start + last + 1 - first])

    def do_PUT(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        is_kept = "/models/" not in self._key or "/models/0-" in self._key
        body = bytearray(size) if is_kept else None
        self._receive(size, body)
        if not self._key:
            self._answer(200)  # a bucket
            return
        with creating:
            if self.headers.get("If-None-Match") and self._key in objects:
                self._refuse(412, "PreconditionFailed")
                return
            objects[self._key] = Stored(size, body)
        self._answer(200)

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path.removeprefix(f"/{BUCKET}").removeprefix("/"))

    def _receive(self, size: int, body: bytearray | None) -> None:
        at = 0
        while at < size:
            end = min(size, at + SINK_BYTES)
            view = self.sink[: end - at] if body is None else memoryview(body)[at:end]
            at += self.rfile.readinto(view) or size

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        keys = sorted(key for key in list(objects) if key.startswith(prefix))
        if "delimiter" in query:
            folders = sorted({key.split("/")[0] + "/" for key in keys if "/" in key})
            inner = "".join(
                f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                for folder in folders
            )
        else:
            inner = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{objects[key].size}</Size>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for key in keys
            )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{inner}</ListBucketResult>"
        self._answer(200, text.encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
