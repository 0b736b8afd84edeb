"""Does this store create each object at most once? An aggregator asks before it starts.

Fencing rests on `ObjectStore.create` alone, and several S3 servers accept a conditional create
and ignore the condition, or check it without a lock. The answer is kept in the store for a day.
"""

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from fedfa.errors import AlreadyExists, Misconfigured, NotFound
from fedfa.store import ObjectStore

FOLDER = "_conformance"  # no federation: their ids start with a letter or a digit
PASSED = f"{FOLDER}/passed.json"
VALID_SECONDS = 86_400
NUM_KEYS = 8
RACERS = ("first", "second")  # two: with more, some honest servers make the losers wait seconds
REMEDY = (
    "use a store whose conditional create (If-None-Match: *) is atomic: AWS S3, "
    "SeaweedFS >= 4.29, or a recent MinIO or Ceph (>= 20.2.1); if this is one of them, look for a "
    "proxy or gateway that drops the header"
)


@dataclass(frozen=True, slots=True)
class _Passed:
    store: str
    passed_at: float  # unix seconds


_passed: TypeAdapter[_Passed] = TypeAdapter(_Passed)


def probe(store: ObjectStore, *, now: Callable[[], float], afresh: bool = False) -> None:
    """Race for a few fresh keys. Raises Misconfigured unless each has exactly one winner.

    `now` is in unix seconds. Costs one read if this store passed during the last day, unless it
    is asked for afresh.
    """
    if not afresh and _passed_lately(store, now()):
        return
    empty, *keys = [f"{FOLDER}/{secrets.token_hex(16)}" for _ in range(NUM_KEYS + 1)]
    try:
        for key in keys:
            _check_create(store, key)
        _check_empty(store, empty)
        _check_put(store, keys[0])
    finally:
        for key in (empty, *keys):
            store.delete(key)
    store.put(PASSED, _passed.dump_json(_Passed(store.name, now())))


def _passed_lately(store: ObjectStore, now: float) -> bool:
    try:
        passed = _passed.validate_json(store.get(PASSED))
    except (NotFound, ValidationError):
        return False
    return passed.store == store.name and 0 <= now - passed.passed_at < VALID_SECONDS


def _check_create(store: ObjectStore, key: str) -> None:
    winners = _race(store, key)
    if len(winners) != 1:
        _refuse(store, f"{len(winners)} of {len(RACERS)} simultaneous creates of one key succeeded")
    if _create(store, key, "late"):
        _refuse(store, "a create of an existing key succeeded")
    if store.get(key) != winners[0].encode():
        _refuse(store, "the bytes of the one successful create were replaced")


def _check_empty(store: ObjectStore, key: str) -> None:
    """A store that never replaces an empty object is fine: the ones that leave some do."""
    store.put(key, b"")
    try:
        winners = _race(store, key)
    except Misconfigured:  # it knows no If-Match
        return
    if len(winners) > 1:
        _refuse(store, "simultaneous creates over one empty object succeeded (If-Match)")


def _race(store: ObjectStore, key: str) -> list[str]:
    """Those whose create succeeded."""
    together = threading.Barrier(len(RACERS))

    def create(racer: str) -> bool:
        together.wait()
        return _create(store, key, racer)

    with ThreadPoolExecutor(len(RACERS)) as racers:
        won = dict(zip(RACERS, racers.map(create, RACERS), strict=True))
    return [racer for racer in RACERS if won[racer]]


def _check_put(store: ObjectStore, key: str) -> None:
    store.put(key, b"put")
    if store.get(key) != b"put":
        _refuse(store, "a read after an acknowledged put returned older bytes")


def _create(store: ObjectStore, key: str, racer: str) -> bool:
    try:
        store.create(key, racer.encode())
    except AlreadyExists:
        return False
    return True


def _refuse(store: ObjectStore, what: str) -> None:
    raise Misconfigured(f"{store.name} cannot hold federations: {what}; {REMEDY}")
