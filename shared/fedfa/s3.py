"""One S3 bucket as an `ObjectStore`: the only module that names boto3.

Also the only place where a store request is tried again. A clear answer is a value, NotFound,
AlreadyExists or TooLarge, or InvalidInput for an object that nobody could read. What is no clear
answer is tried again for `outage_seconds`, then it is StoreUnavailable. What no retry mends is
Misconfigured, in one line that names the remedy.

An object without a byte counts as absent, and nothing of ours has none: SeaweedFS 4 leaves one if
a writer dies between a request's head and its body, and a manifest like that would end its log.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import tenacity
import urllib3
from botocore import exceptions as boto_errors
from botocore.config import Config
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody
from botocore.session import Session, get_session

from fedfa.canonical import sha256
from fedfa.errors import (
    AlreadyExists,
    FedfaError,
    InvalidInput,
    Misconfigured,
    NotFound,
    StoreUnavailable,
    TooLarge,
)
from fedfa.keys import ObjectInfo
from fedfa.memory import Bytes
from fedfa.s3_http import Condition, S3Http
from fedfa.settings import StoreSettings
from fedfa.store import Download, check_key, check_size, download_from

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONNECTIONS = 32
FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 2.0  # a longer one outlasts the restart it waits for

# botocore's classes for "nobody, or nothing whole, answered". Not all of them share a base.
_NO_ANSWER = (
    boto_errors.ConnectionError,
    boto_errors.HTTPClientError,
    boto_errors.IncompleteReadError,
    boto_errors.CredentialRetrievalError,
    boto_errors.MetadataRetrievalError,
    ResponseParserError,
    urllib3.exceptions.HTTPError,
)
_PASSING_STATUS = {404, 408, 409, 425, 429}  # 404: a load balancer's; S3 says NoSuchKey
_PASSING_CODES = {
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "XAmzContentSHA256Mismatch",
}
_CREDENTIAL_CODES = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
# Of a GET: archived, or encrypted with a key that is not there. Whoever writes an object can choose
# that, so it says nothing of the settings.
_UNREADABLE_CODES = {"InvalidObjectState", "InvalidRequest"}
_REGION_CODES = {"AuthorizationHeaderMalformed", "PermanentRedirect", "301"}
LIST = "s3:ListBucket"  # without it S3 refuses to say that an object is missing
_PERMISSIONS = {"ListObjectsV2": LIST, "HeadBucket": LIST}


class _Unclear(Exception):
    """Raised inside S3Store when an answer does not say what happened."""


class _Empty(NotFound):
    """Raised for an object without a byte."""


class S3Store:
    """An `ObjectStore` over one bucket of an S3 server."""

    def __init__(
        self, settings: StoreSettings, *, on_progress: Callable[[], None] = lambda: None
    ) -> None:
        """Connects to nothing yet. Raises Misconfigured.

        on_progress is called with each part of an object that is put or downloaded.
        """
        session = _session(settings)
        self._client = _client(settings, session)
        self._session = session
        self._settings = settings
        self._bucket = settings.bucket
        self._on_progress = on_progress

    @property
    def name(self) -> str:
        endpoint = self._settings.endpoint or f"AWS S3 in {self._settings.region}"
        return f"bucket {self._bucket!r} at {endpoint}"

    def ensure_bucket(self) -> None:
        """Create the bucket if it does not exist."""
        if not self._insist("look for the bucket", "", self._has_bucket):
            self._insist("create the bucket", "", self._create_bucket)

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        return self._insist("get", check_key(key), lambda: self._read(key, max_bytes))

    def get_start(self, key: str, num_bytes: int) -> bytes:
        return self._insist("get", check_key(key), lambda: self._read_start(key, num_bytes))

    def put(self, key: str, body: bytes) -> None:
        self.upload(key, (body,), digest=sha256(body))

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        return self._insist("get", check_key(key), lambda: self._download(key, max_bytes))

    def upload(self, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        self._insist("put", check_key(key), lambda: self._objects.put(key, parts, digest=digest))

    def create(self, key: str, body: bytes) -> None:
        # After an unclear try the object may be ours already, or land later: the same request
        # is sent again, and a refusal means something only once the object is seen to differ.
        in_doubt = False
        condition: Condition = "if absent"
        digest = sha256(body)

        def attempt() -> None:
            nonlocal in_doubt, condition
            if in_doubt and self._holds(key, body):
                return
            try:
                with self._verdicts("create", key):
                    self._objects.put(key, (body,), digest=digest, condition=condition)
            except _Unclear:
                in_doubt = True
                raise
            except AlreadyExists as refusal:
                if in_doubt and self._holds(key, body):
                    return
                if not self._is_empty(key):
                    raise
                condition = "if empty"  # of several who find it so, one will succeed
                raise _Unclear("an empty object is in its place") from refusal

        self._insist("create", check_key(key), attempt)

    def exists(self, key: str) -> bool:
        # Not HEAD: its answer has no body, so a missing bucket looks like a missing object.
        try:
            self.get_start(key, 1)
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix, Prefix=prefix):
            for item in page.get("Contents", []):
                yield ObjectInfo(item["Key"], item["Size"], item["LastModified"].timestamp())

    def folders(self) -> Iterator[str]:
        for page in self._pages("", Delimiter="/"):
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"].removesuffix("/")

    def delete(self, key: str) -> None:
        self._insist(
            "delete",
            check_key(key),
            lambda: self._client.delete_object(Bucket=self._bucket, Key=key),
        )

    @cached_property
    def _objects(self) -> S3Http:
        """Made at the first request: it needs credentials, which may have to be fetched."""
        address = {"Bucket": self._bucket, "Key": "-"}
        url = self._client.generate_presigned_url("put_object", Params=address)
        root = url.partition("?")[0].removesuffix("-")  # at the host that boto chooses
        return S3Http(
            self._settings,
            self._session,
            root=root,
            max_connections=MAX_CONNECTIONS,
            on_progress=self._on_progress,
        )

    def _open(self, key: str, *, first_bytes: int | None = None) -> tuple[StreamingBody, int]:
        """As S3Http.get, but NotFound for an empty object."""
        try:
            stream, size = self._objects.get(key, first_bytes=first_bytes)
        except boto_errors.ClientError as error:
            if error.response["Error"]["Code"] != "InvalidRange":
                raise
            size = 0
        else:
            if size > 0:
                return stream, size
            stream.close()
        raise _Empty(f"{self._where('get', key)}: it is empty")

    def _is_empty(self, key: str) -> bool:
        try:
            self.get_start(key, 1)
        except _Empty:
            return True
        except NotFound:
            pass
        return False

    def _read(self, key: str, max_bytes: int | None) -> bytes:
        stream, size = self._open(key)
        with closing(stream) as body:
            check_size(key, size, max_bytes)
            return body.read()

    def _download(self, key: str, max_bytes: int | None) -> Download:
        stream, size = self._open(key)

        def read_into(buffer: Any) -> int:
            self._on_progress()
            return int(stream.readinto(buffer))

        with closing(stream):
            check_size(key, size, max_bytes)
            download = download_from(read_into, size)
        if len(download.body) != size:
            raise _Unclear(f"the answer broke off after {len(download.body)} of {size} bytes")
        return download

    def _read_start(self, key: str, num_bytes: int) -> bytes:
        stream, _ = self._open(key, first_bytes=num_bytes)
        with closing(stream) as body:
            return body.read(num_bytes)  # some servers ignore the range

    def _holds(self, key: str, body: bytes) -> bool:
        """Whether the object is there with this body. Raises AlreadyExists if it differs."""
        with self._verdicts("read back", key):
            try:
                if self._read(key, len(body)) == body:
                    return True
            except TooLarge:
                pass
            except NotFound:
                return False
            except boto_errors.ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchKey":
                    return False
                raise
        raise AlreadyExists(self._where("create", key))

    def _pages(self, prefix: str, **request: Any) -> "Iterator[ListObjectsV2OutputTypeDef]":
        while True:
            page = self._insist(
                "list",
                prefix,
                lambda: self._client.list_objects_v2(Bucket=self._bucket, **request),
            )
            yield page
            if not page["IsTruncated"]:
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _has_bucket(self) -> bool:
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except boto_errors.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return True

    def _create_bucket(self) -> None:
        request: dict[str, Any] = {"Bucket": self._bucket}
        if self._settings.region != "us-east-1":  # AWS: the default must not be spelled out
            request["CreateBucketConfiguration"] = {"LocationConstraint": self._settings.region}
        try:
            self._client.create_bucket(**request)
        except self._client.exceptions.BucketAlreadyOwnedByYou:
            return
        except self._client.exceptions.BucketAlreadyExists as error:
            raise Misconfigured(
                f"{self.name} belongs to somebody else; choose another FEDFA_S3_BUCKET"
            ) from error

    def _insist(self, operation: str, key: str, attempt: Callable[[], T]) -> T:
        """Try until the answer is clear, with full jitter between tries."""

        def once() -> T:
            with self._verdicts(operation, key):
                return attempt()

        def report(state: tenacity.RetryCallState) -> None:
            reason = str(state.outcome.exception()) if state.outcome else ""
            fields = {"operation": operation, "key": key, "reason": reason}
            logger.warning("no clear answer from the store", extra=fields)

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Unclear),
            stop=tenacity.stop_after_delay(self._settings.outage_seconds),
            wait=tenacity.wait_random_exponential(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS),
            before_sleep=report,
            reraise=True,
        )
        try:
            return tries(once)
        except _Unclear as error:
            raise StoreUnavailable(
                f"{self._where(operation, key)}: no clear answer for "
                f"{self._settings.outage_seconds:g} s (FEDFA_S3_OUTAGE_SECONDS): {error}"
            ) from error

    @contextmanager
    def _verdicts(self, operation: str, key: str) -> Iterator[None]:
        """Turn boto's errors into ours: a clear answer, no clear answer, or wrong settings."""
        where = self._where(operation, key)
        try:
            yield
        except boto_errors.ClientError as error:
            raise self._verdict(where, error) from error
        except _NO_ANSWER as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Misconfigured(
                    f"{where}: {error}; name the server's CA file in AWS_CA_BUNDLE"
                ) from error
            raise _Unclear(_line(str(error))) from error
        except boto_errors.EndpointProviderError as error:
            raise Misconfigured(_line(f"{where}: {error}; correct FEDFA_S3_ENDPOINT")) from error
        except boto_errors.BotoCoreError as error:
            raise Misconfigured(_line(f"{where}: {error}; {self._credentials}")) from error

    def _verdict(self, where: str, error: boto_errors.ClientError) -> FedfaError | _Unclear:
        code = error.response["Error"]["Code"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        answer = _line(f"{code} {error.response['Error'].get('Message', '')}")
        if code == "NoSuchKey":
            return NotFound(where)
        if status == 412:
            return AlreadyExists(where)
        if code == "NoSuchBucket":
            return Misconfigured(f"{where}: no such bucket; create it, or correct FEDFA_S3_BUCKET")
        is_unreadable = code in _UNREADABLE_CODES or code.startswith("KMS.")
        if is_unreadable and error.operation_name == "GetObject":
            return InvalidInput(f"unreadable: {where}: {answer}")
        if status in _PASSING_STATUS or code in _PASSING_CODES:
            return _Unclear(f"HTTP {status} {answer}")
        if status >= 500 and status != 501:  # 501 says that the server lacks the operation
            return _Unclear(f"HTTP {status} {answer}")
        if code in _CREDENTIAL_CODES:
            return Misconfigured(f"{where}: refused with {code}; {self._credentials}")
        if code in _REGION_CODES:
            return Misconfigured(f"{where}: refused with {answer}; correct FEDFA_S3_REGION")
        if code == "RequestTimeTooSkewed":
            return Misconfigured(f"{where}: refused with {answer}; set this machine's clock")
        if status == 403:
            operation = error.operation_name
            permission = _PERMISSIONS.get(operation, f"s3:{operation}")
            too = "" if permission == LIST else f" (and {LIST}, to learn that an object is missing)"
            return Misconfigured(
                f"{where}: refused with {answer}; allow {permission} there{too}; "
                f"{self._credentials}"
            )
        return Misconfigured(f"{where}: refused with HTTP {status} {answer}")

    @property
    def _credentials(self) -> str:
        if self._settings.access_key is None:
            return (
                "FEDFA_S3_ACCESS_KEY is not set: check the AWS credential chain, or set it; "
                "`fedfa local up` prints what to set for its own servers"
            )
        return "check FEDFA_S3_ACCESS_KEY and FEDFA_S3_SECRET_KEY"

    def _where(self, operation: str, key: str) -> str:
        return f"{operation} {key!r} in {self.name}" if key else f"{operation}: {self.name}"


def _session(settings: StoreSettings) -> Session:
    if (settings.access_key is None) != (settings.secret_key is None):
        raise Misconfigured("set both FEDFA_S3_ACCESS_KEY and FEDFA_S3_SECRET_KEY, or neither")
    session = get_session()
    if settings.access_key is not None and settings.secret_key is not None:
        session.set_credentials(
            settings.access_key.get_secret_value(), settings.secret_key.get_secret_value()
        )
    return session


def _client(settings: StoreSettings, session: Session) -> "S3Client":
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if settings.path_style else "virtual"},
        # The default checksums corrupt objects on some servers; we keep digests of our own.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        # One try each: a retry inside botocore would hide that a create was tried before.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=settings.connect_timeout_seconds,
        read_timeout=settings.read_timeout_seconds,
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
    )
    try:
        return boto3.session.Session(botocore_session=session).client(
            "s3", endpoint_url=settings.endpoint, region_name=settings.region, config=config
        )
    except (ValueError, boto_errors.BotoCoreError) as error:
        raise Misconfigured(
            f"FEDFA_S3_ENDPOINT={settings.endpoint} FEDFA_S3_REGION={settings.region}: {error}"
        ) from error


def _line(text: str) -> str:
    return " ".join(text.split())
