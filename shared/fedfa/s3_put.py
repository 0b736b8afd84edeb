"""PUT of a large body to S3, signed by the digest that its sender knows already.

boto hashes a body to sign it, and copies it on the way. Our large objects are named by their
SHA-256 digest, which is also what the signature needs: the server can check every byte, and the
body goes from the model's memory to the socket. Errors are botocore's, as from boto.
"""

import socket
from collections.abc import Iterator, Sequence
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, HeadersDict
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from botocore.session import Session
from botocore.utils import get_environ_proxies

from fedfa.memory import Bytes
from fedfa.settings import StoreSettings

EXPECT_FROM_BYTES = 1 << 20  # a refusal then arrives before the body is sent
SEND_BYTES = 1 << 18  # at once: a socket's time limit is for the whole of one send


class SignedPut:
    """Puts bodies with the credentials, proxies and certificates that boto would use."""

    def __init__(self, settings: StoreSettings, session: Session, *, endpoint: str) -> None:
        self._session = session
        self._region = settings.region
        options: dict[str, Any] = {
            "verify": session.get_config_variable("ca_bundle") or True,
            "proxies": get_environ_proxies(endpoint),
            "timeout": (settings.connect_timeout_seconds, settings.read_timeout_seconds),
            "socket_options": [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
        }
        self._http = URLLib3Session(**options)

    def put(self, url: str, parts: Sequence[Bytes], *, digest: str) -> None:
        """Raises botocore's errors. digest: SHA-256 of the parts together, in hexadecimal."""
        size = sum(len(part) for part in parts)
        request = AWSRequest("PUT", url, headers={"Content-Length": str(size)})
        if size >= EXPECT_FROM_BYTES:
            request.headers["Expect"] = "100-continue"
        credentials = self._session.get_credentials()
        frozen = credentials and credentials.get_frozen_credentials()  # one set, if refreshed now
        _Signer(frozen, self._region, digest).add_auth(request)
        body: Any = _slices(parts)
        headers: Any = HeadersDict(request.headers.items())
        response = self._http.send(AWSPreparedRequest("PUT", url, headers, body, False))
        if response.status_code >= 301:
            raise ClientError(_error_in(response), "PutObject")


class _Signer(S3SigV4Auth):
    def __init__(self, credentials: Any, region: str, digest: str) -> None:
        super().__init__(credentials, "s3", region)
        self._digest = digest

    def payload(self, request: Any) -> str:
        return self._digest


def _slices(parts: Sequence[Bytes]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), SEND_BYTES):
            yield view[start : start + SEND_BYTES]


def _error_in(response: Any) -> Any:
    """The code and message of an error answer, as boto would give them."""
    answer: dict[str, Any] = {
        "status_code": response.status_code,
        "headers": response.headers,
        "body": response.content,
    }
    no_shape: Any = None
    return create_parser("rest-xml").parse(answer, no_shape)
