"""The object store: one small contract (`ObjectStore`) over an S3 bucket or a local folder.

Everything a federation remembers lies behind these calls. `fedfa.s3` has the bucket;
`DirectoryStore` serves the simulator, copied runs and tests.
"""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedfa.errors import (
    AlreadyExists,
    InvalidInput,
    Misconfigured,
    NotFound,
    StoreUnavailable,
    TooLarge,
)
from fedfa.keys import ObjectInfo
from fedfa.memory import Bytes, recycled
from fedfa.settings import StoreSettings

if TYPE_CHECKING:
    from fedfa.s3 import S3Store

CHUNK_BYTES = 1 << 18
PARTIAL_FOLDER = ".partial"  # where a DirectoryStore writes what is not complete yet


@dataclass(frozen=True, slots=True)
class Download:
    """A large object: its bytes, writable and nobody else's, and their SHA-256 digest."""

    body: memoryview
    digest: str


class ObjectStore(Protocol):
    """Bytes under keys. Every call may come from any thread and may be repeated."""

    @property
    def name(self) -> str:
        """Which store this is, for messages to people."""

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """The whole object. Raises NotFound, or TooLarge before its body is read."""

    def get_start(self, key: str, num_bytes: int) -> bytes:
        """The first `num_bytes` of an object, all of it if it is shorter. Raises NotFound."""

    def put(self, key: str, body: bytes) -> None:
        """Write an object, whole or not at all, over whatever is there."""

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        """`get` for large objects: into recycled memory, hashed while it arrives."""

    def upload(self, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        """`put` for large objects, given in parts that are not copied.

        digest: SHA-256 of the whole, in hexadecimal; a store may refuse another body.
        """

    def create(self, key: str, body: bytes) -> None:
        """Write an object that must not exist; of several writers, exactly one succeeds.

        Raises AlreadyExists. StoreUnavailable leaves open whether the object was written.
        """

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects whose keys start with `prefix`, in key order within each folder."""

    def folders(self) -> Iterator[str]:
        """The first components of the keys; one whose last object went may linger."""

    def delete(self, key: str) -> None:
        """Remove an object; fine if it does not exist."""


def from_settings(settings: StoreSettings) -> "S3Store":
    """The configured bucket. Connects to nothing yet. Raises Misconfigured."""
    from fedfa.s3 import S3Store  # boto3 is slow to import, and most commands need none of it

    return S3Store(settings)


def require_answer(store: ObjectStore) -> None:
    """Raise StoreUnavailable where the whole store is out, and not one object alone."""
    store.exists("HEAD.json")  # no federation's


class DirectoryStore:
    """An `ObjectStore` in a local folder, safe for several processes on one file system.

    A crash of a process leaves every object whole; a crash of the machine may lose the last ones.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return f"folder {self._root}"

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        with self._errors("get", key), self._open(key) as file:
            check_size(key, os.fstat(file.fileno()).st_size, max_bytes)
            return file.read()

    def get_start(self, key: str, num_bytes: int) -> bytes:
        with self._errors("get", key), self._open(key) as file:
            return file.read(num_bytes)

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        with self._errors("get", key), self._open(key) as file:
            size = os.fstat(file.fileno()).st_size
            check_size(key, size, max_bytes)
            return download_from(file.readinto, size)

    def put(self, key: str, body: bytes) -> None:
        self._put(key, [body])

    def upload(self, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        self._put(key, parts)

    def _put(self, key: str, parts: Sequence[Bytes]) -> None:
        with self._errors("put", key), self._complete(key, parts) as (complete, target):
            complete.replace(target)

    def create(self, key: str, body: bytes) -> None:
        with self._errors("create", key), self._complete(key, [body]) as (complete, target):
            try:
                target.hardlink_to(complete)
            except FileExistsError as error:
                raise AlreadyExists(f"create {key!r} in {self.name}") from error

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        for path in sorted((self._path(folder) if folder else self._root).rglob("*")):
            key = path.relative_to(self._root).as_posix()
            if key.startswith(prefix) and not key.startswith(PARTIAL_FOLDER) and path.is_file():
                with suppress(FileNotFoundError):  # deleted since it was found
                    yield ObjectInfo(key, path.stat().st_size, path.stat().st_mtime)

    def folders(self) -> Iterator[str]:
        for path in sorted(self._root.glob("*")):
            if path.is_dir() and path.name != PARTIAL_FOLDER:
                yield path.name

    def delete(self, key: str) -> None:
        with self._errors("delete", key):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _open(self, key: str) -> BufferedReader:
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise NotFound(f"get {key!r} in {self.name}") from error

    @contextmanager
    def _complete(self, key: str, parts: Sequence[Bytes]) -> Iterator[tuple[Path, Path]]:
        """Write the body to a file of its own; gives it and the path where it should go."""
        target = self._path(key)
        complete = self._root / PARTIAL_FOLDER / uuid.uuid4().hex
        complete.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with complete.open("wb", buffering=0) as file:
                for part in parts:
                    _write_all(file, part)
            yield complete, target
        finally:
            complete.unlink(missing_ok=True)

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise Misconfigured(f"{operation} {key!r} in {self.name}: {error}") from error
        except OSError as error:
            raise StoreUnavailable(f"{operation} {key!r} in {self.name}: {error}") from error


def download_from(read_into: Callable[[Any], int], size_bytes: int) -> Download:
    """Read exactly so many bytes, hashing each chunk while it is in the processor's cache.

    read_into fills the start of a buffer and gives the number of bytes read. The body ends
    early where it gives 0: then the result is shorter.
    """
    body = recycled(size_bytes).data
    digest = hashlib.sha256()
    at = 0
    while at < size_bytes and (num_read := read_into(body[at : at + CHUNK_BYTES])):
        digest.update(body[at : at + num_read])
        at += num_read
    return Download(body[:at], digest.hexdigest())


def _write_all(file: RawIOBase, part: Bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def check_key(key: str) -> str:
    """The key itself. InvalidInput for one that a folder or a URL would read differently."""
    segments = key.split("/")
    if segments[0] == PARTIAL_FOLDER or "\0" in key or any(s in {"", ".", ".."} for s in segments):
        raise InvalidInput(
            f"{key!r:.200} is no object key: non-empty segments, none of them . or .."
        )
    return key


def check_size(key: str, size_bytes: int, max_bytes: int | None) -> None:
    if max_bytes is not None and size_bytes > max_bytes:
        text = f"{key}: {size_bytes} bytes, at most {max_bytes} allowed"
        raise TooLarge(text, size_bytes=size_bytes)
