"""GET and PUT of one S3 object by requests that are signed here, a PUT by its body's digest.

Every update costs several of these. boto takes 2.5 ms of CPU for one where this takes 1.4,
and it hashes a body to sign it, and copies it. Our large objects are named by their SHA-256
digest, which is also what the signature needs: the server can check every byte, and the body
goes from the model's memory to the socket. Errors are botocore's, as from boto.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, HeadersDict
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from botocore.session import Session
from botocore.utils import get_environ_proxies

from fedfa.canonical import sha256
from fedfa.errors import Misconfigured
from fedfa.memory import Bytes
from fedfa.settings import StoreSettings

EXPECT_FROM_BYTES = 1 << 20  # a refusal then arrives before the body is sent
SEND_BYTES = 1 << 18  # at once: a socket's time limit is for the whole of one send
NO_BODY = sha256(b"")
CONDITIONS = {
    "always": {},
    "if absent": {"If-None-Match": "*"},
    "if empty": {"If-Match": '"d41d8cd98f00b204e9800998ecf8427e"'},  # MD5 of no bytes
}
Condition = Literal["always", "if absent", "if empty"]


class S3Http:
    """Requests with the credentials, proxies and certificates that boto would use.

    root: URL of the bucket, with a slash at its end.
    """

    def __init__(
        self,
        settings: StoreSettings,
        session: Session,
        *,
        root: str,
        max_connections: int,
        on_progress: Callable[[], None],
    ) -> None:
        self._session = session
        self._region = settings.region
        self._root = root
        self._on_progress = on_progress
        options: dict[str, Any] = {
            "verify": session.get_config_variable("ca_bundle")
            or os.environ.get("REQUESTS_CA_BUNDLE", True),
            "proxies": get_environ_proxies(root),
            "timeout": (settings.connect_timeout_seconds, settings.read_timeout_seconds),
            "max_pool_connections": max_connections,
            "socket_options": [
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            ],
        }
        self._http = URLLib3Session(**options)

    def put(
        self,
        key: str,
        parts: Sequence[Bytes],
        *,
        digest: str,
        condition: Condition = "always",
    ) -> None:
        """Raises botocore's errors. digest: SHA-256 of the parts together, in hexadecimal."""
        size = sum(len(part) for part in parts)
        headers = {"Content-Length": str(size), **CONDITIONS[condition]}
        self._send("PUT", key, headers, digest, self._slices(parts))

    def get(self, key: str, *, first_bytes: int | None = None) -> tuple[StreamingBody, int]:
        """The body, for the caller to close, and its size in bytes. Raises botocore's errors."""
        headers = {} if first_bytes is None else {"Range": f"bytes=0-{first_bytes - 1}"}
        response = self._send("GET", key, headers, NO_BODY, None)
        try:
            size = int(response.headers["Content-Length"])
        except (KeyError, ValueError):
            response.raw.close()
            raise Misconfigured(
                f"get {key!r} at {self._root}: an answer without Content-Length, which the store, "
                "or whatever is in front of it, must send"
            ) from None
        return StreamingBody(response.raw, size), size

    def _send(self, method: str, key: str, headers: dict[str, str], digest: str, body: Any) -> Any:
        url = self._root + quote(key, safe="/~")
        request = AWSRequest(method, url, headers=headers)
        credentials = self._session.get_credentials()
        frozen = credentials and credentials.get_frozen_credentials()  # one set, if refreshed now
        _Signer(frozen, self._region, digest).add_auth(request)
        signed: Any = HeadersDict(request.headers.items())
        if int(headers.get("Content-Length", "0")) >= EXPECT_FROM_BYTES:
            signed["Expect"] = b"100-continue"  # bytes: botocore's connection knows no other
        is_stream = method == "GET"
        response = self._http.send(AWSPreparedRequest(method, url, signed, body, is_stream))
        if response.status_code >= 301:
            raise ClientError(_error_in(response), f"{method.title()}Object")
        return response

    def _slices(self, parts: Sequence[Bytes]) -> Iterator[memoryview]:
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), SEND_BYTES):
                self._on_progress()
                yield view[start : start + SEND_BYTES]


class _Signer(S3SigV4Auth):
    def __init__(self, credentials: Any, region: str, digest: str) -> None:
        super().__init__(credentials, "s3", region)
        self._digest = digest

    def payload(self, request: Any) -> str:
        return self._digest


def _error_in(response: Any) -> Any:
    """The code and message of an error answer, as boto would give them."""
    answer: dict[str, Any] = {
        "status_code": response.status_code,
        "headers": response.headers,
        "body": response.content,
    }
    no_shape: Any = None
    return create_parser("rest-xml").parse(answer, no_shape)
