"""The log of manifests: the federation itself. One create-once object is one commit.

A manifest holds every decision of its batch in order and the state after them, and names its
predecessor by digest. Nothing else is authoritative: HEAD.json is a hint that may lag.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from fedfa import keys
from fedfa.canonical import canonical_json, sha256
from fedfa.complaints import describe
from fedfa.errors import AlreadyExists, Fenced, InvalidInput, NotFound
from fedfa.failpoints import reach
from fedfa.federation import Clients, Federation, State
from fedfa.log import Birth, Committed, Manifest
from fedfa.spec import Submission
from fedfa.store import ObjectStore

FIRST = 0
HEAD_EVERY = 8  # manifests, from one that HEAD.json names to the next


@dataclass(frozen=True, slots=True)
class _Head:
    """HEAD.json."""

    n: int


_adapter: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_head: TypeAdapter[_Head] = TypeAdapter(_Head)


def encode(manifest: Manifest) -> bytes:
    return canonical_json(_adapter.dump_python(manifest, mode="json")).encode()


def decode(body: bytes, *, key: str = "manifest") -> Committed:
    try:
        manifest = _adapter.validate_python(json.loads(body), strict=False)
    except ValidationError as error:
        raise InvalidInput(f"{key}: {describe(error)}") from error
    except ValueError as error:
        raise InvalidInput(f"{key}: not JSON: {error}") from error
    return Committed(manifest, sha256(body))


def read(store: ObjectStore, federation: str, n: int) -> Committed:
    """Manifest n, or NotFound. Raises InvalidInput where it is malformed, or of another folder."""
    key = keys.manifest(federation, n)
    committed = decode(store.get(key), key=key)
    manifest = committed.manifest
    if (manifest.federation, manifest.n) != (federation, n):
        raise InvalidInput(f"{key}: this is manifest {manifest.n} of {manifest.federation}")
    return committed


def newest(store: ObjectStore, federation: str, *, known: int = FIRST) -> Committed | None:
    """The newest manifest, or None before the birth.

    From the greater of HEAD and a number known to exist, double until one is missing, then
    bisect: the log has no gaps. With an up-to-date hint that is one read and one miss.
    """
    low = max(known, _hint(store, federation))
    best = _read_or_none(store, federation, low)
    if best is None:
        low = FIRST  # a hint that is ahead of the log (a restored bucket) says nothing
        best = _read_or_none(store, federation, low)
        if best is None:
            return None
    stride, missing = 1, None
    while missing is None:
        found = _read_or_none(store, federation, low + stride)
        if found is None:
            missing = low + stride
        else:
            best, low, stride = found, low + stride, stride * 2
    while missing - low > 1:
        middle = (low + missing) // 2
        found = _read_or_none(store, federation, middle)
        if found is None:
            missing = middle
        else:
            best, low = found, middle
    return best


def log(store: ObjectStore, federation: str, *, start: int = FIRST) -> Iterator[Committed]:
    """All manifests in order, from number `start` to the newest."""
    n = start
    while (committed := _read_or_none(store, federation, n)) is not None:
        yield committed
        n += 1


def backwards(store: ObjectStore, head: Committed) -> Iterator[Manifest]:
    """The manifests from a known one down to the first; each is read when it is asked for."""
    yield head.manifest
    for n in range(head.manifest.n - 1, FIRST - 1, -1):
        yield read(store, head.manifest.federation, n).manifest


def commit(store: ObjectStore, manifest: Manifest) -> Committed:
    """Create the manifest: the only moment that counts.

    Returns when it is committed by this writer, also when a retried request met its own success.
    Raises Fenced when another manifest has this number, StoreUnavailable when the outcome is
    unknown.
    """
    body = encode(manifest)
    reach("commit.before_manifest")
    try:
        store.create(keys.manifest(manifest.federation, manifest.n), body)
    except AlreadyExists:
        there = store.get(keys.manifest(manifest.federation, manifest.n))
        if there != body:
            winner = decode(there).manifest.writer
            raise Fenced(
                f"{manifest.federation}: manifest {manifest.n} was committed by {winner}"
            ) from None
    reach("commit.after_manifest")
    return Committed(manifest, sha256(body))


def move_head(store: ObjectStore, manifest: Manifest) -> None:
    """Point HEAD.json at a committed manifest: sometimes, and at the end.

    Nobody waits for a hint, and trainers wait for its writer: do it last, and seldom. One that
    lags by less than HEAD_EVERY costs a reader at most six more reads.
    """
    if manifest.n % HEAD_EVERY == 0 or manifest.state.status != "running":
        store.put(keys.head(manifest.federation), _head.dump_json(_Head(manifest.n)))
        reach("aggregator.head_put")


def read_submission(store: ObjectStore, federation: str) -> Submission:
    """spec.json of a federation. NotFound when there is none."""
    key = keys.spec(federation)
    body = store.get(key)
    try:
        return Submission.model_validate_json(body)
    except ValidationError as error:
        raise InvalidInput(f"{key}: {describe(error)}") from error


def federation_of(submission: Submission, birth: Birth, state: State) -> Federation:
    """The federation's value at the state that a manifest records."""
    return Federation(submission.spec, Clients(birth.clients), state)


def birth_of(store: ObjectStore, federation: str) -> Birth:
    """What manifest 0 fixed. NotFound before the birth."""
    birth = read(store, federation, FIRST).manifest.birth
    if birth is None:
        raise InvalidInput(f"{federation}: it ended before its first model")
    return birth


def _hint(store: ObjectStore, federation: str) -> int:
    try:
        return _head.validate_json(store.get(keys.head(federation))).n
    except (NotFound, ValidationError):
        return FIRST  # HEAD may be missing or torn: it is only a hint


def _read_or_none(store: ObjectStore, federation: str, n: int) -> Committed | None:
    try:
        return read(store, federation, n)
    except NotFound:
        return None
