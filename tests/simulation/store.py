"""The bucket in memory, and each process's faulty way to it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from fedfa.canonical import sha256
from fedfa.errors import AlreadyExists, NotFound, StoreUnavailable
from fedfa.keys import ObjectInfo
from fedfa.memory import Bytes
from fedfa.store import Download, check_key, check_size
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults
from tests.simulation.world import UNIX_EPOCH, Life

T = TypeVar("T")
LATE_SECONDS = 2.0  # at most, until a request lands whose sender has given up


class WholeObjects:
    """Large objects moved like small ones."""

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        raise NotImplementedError

    def put(self, key: str, body: bytes) -> None:
        raise NotImplementedError

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        body = self.get(key, max_bytes=max_bytes)
        return Download(memoryview(body), sha256(body))

    def upload(self, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        self.put(key, b"".join(parts))


class MemoryStore(WholeObjects):
    """An ObjectStore without faults. The checker sees every write."""

    def __init__(self, checker: Checker) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self.checker = checker

    @property
    def name(self) -> str:
        return "memory"

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        if key not in self.objects:
            raise NotFound(f"get {key}")
        check_size(key, len(self.objects[key]), max_bytes)
        return self.objects[key]

    def get_start(self, key: str, num_bytes: int) -> bytes:
        return self.get(key)[:num_bytes]

    def put(self, key: str, body: bytes) -> None:
        self._write(check_key(key), body)

    def create(self, key: str, body: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(f"create {key}")
        self._write(check_key(key), body)

    def exists(self, key: str) -> bool:
        return key in self.objects

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(each for each in self.objects if each.startswith(prefix)):
            yield ObjectInfo(key, len(self.objects[key]), UNIX_EPOCH + self.written[key])

    def folders(self) -> Iterator[str]:
        yield from dict.fromkeys(key.split("/")[0] for key in self.objects)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def _write(self, key: str, body: bytes) -> None:
        self.checker.writes(key, body, self.objects.get(key))
        self.objects[key] = body
        self.written[key] = self.checker.now
        self.checker.wrote(key, body)


class FaultyStore(WholeObjects):
    """One process's client of the bucket: every call is an effect.

    Its state says when, counted in effects, it could not read an object: `unread_at`.
    """

    def __init__(self, life: Life, memory: MemoryStore, faults: Faults) -> None:
        self._life, self._memory, self._faults = life, memory, faults
        self.spoils: dict[str, Callable[[bytes], bytes | None]] = {}  # uploads, by their folder

    @property
    def name(self) -> str:
        return self._memory.name

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        return self._do("get", key, lambda: self._memory.get(key, max_bytes=max_bytes))

    def get_start(self, key: str, num_bytes: int) -> bytes:
        return self._do("get", key, lambda: self._memory.get_start(key, num_bytes))

    def put(self, key: str, body: bytes) -> None:
        spoiled: bytes | None = body
        spoil = self.spoils.get(key.rpartition("/")[0] + "/")
        if spoil is not None:
            self._memory.checker.spoiled.add(key)
            spoiled = spoil(body)
        if spoiled is not None:
            kept = spoiled
            self._do("put", key, lambda: self._memory.put(key, kept))

    def create(self, key: str, body: bytes) -> None:
        self._do("create", key, lambda: self._memory.create(key, body))

    def exists(self, key: str) -> bool:
        return self._do("exists", key, lambda: self._memory.exists(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._do("list", prefix, lambda: list(self._memory.list(prefix))))

    def folders(self) -> Iterator[str]:
        return iter(self._do("folders", "", lambda: list(self._memory.folders())))

    def delete(self, key: str) -> None:
        def effect() -> None:
            self._memory.checker.deletes(key)
            self._memory.delete(key)

        self._do("delete", key, effect)

    def _do(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        """One request: slow, refused, without an answer, sent twice, or late; and the answer."""
        life, faults, world = self._life, self._faults, self._life.world

        def unseen() -> None:
            with suppress(NotFound, AlreadyExists):
                effect()

        life.check()
        life.burn()
        world.sleep(faults.latency())
        how = "fine"
        is_unreadable = operation == "get" and faults.is_unreadable(key)
        if world.now < faults.store_down_until or is_unreadable:
            how = "refused"
        elif faults.happens(faults.mix.store_fails):
            how = world.random.choice(("refused", "answer lost", "sent twice", "late"))
        if operation == "get" and how not in ("fine", "sent twice"):
            life.state["unread_at"] = world.num_effects
        if how == "late" and operation == "create":
            world.call_at(world.now + world.random.random() * LATE_SECONDS, unseen)
        if how in ("refused", "late"):
            world.note(life.name, f"{operation} {key}: no answer, {how}")
            raise StoreUnavailable(f"{operation} {key}: simulated")
        try:
            if how == "sent twice":  # by the client, as no answer came to its first request
                unseen()
            answer = effect()
        except (NotFound, AlreadyExists) as error:
            world.note(life.name, f"{operation} {key}: {type(error).__name__}, {how}")
            if how != "answer lost":
                raise
        else:
            world.note(life.name, f"{operation} {key}: {how}")
            if how != "answer lost":
                return answer
        raise StoreUnavailable(f"{operation} {key}: simulated, after the effect")
