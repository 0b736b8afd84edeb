"""How long a trainer's work waits for the bucket."""

from pathlib import Path
from threading import Lock

import pytest

from fedfa.errors import StoreUnavailable
from fedfa.messages import TrainJob
from fedfa.store import DirectoryStore
from fedfa_trainer.bucket import Bucket
from fedfa_trainer.held import Held
from fedfa_trainer.runtime import Runtime
from tests.unit.builders import ATTEMPT, UID

LEASE_TTL_SECONDS = 60.0
TRY_SECONDS = 30.0  # how long one request insists
HOUR = 3600.0
JOB = TrainJob(
    federation="fed",
    uid=UID,
    attempt=ATTEMPT,
    lease_ttl_seconds=LEASE_TTL_SECONDS,
    slot=1,
    generation=4,
    client="client-0001",
    opened_at=3,
    delay_seconds=0.0,
)


class Time:
    """A clock that only waiting moves, and the signal to wait for."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False

    def set(self) -> None: ...

    def is_set(self) -> bool:
        return False

    @property
    def runtime(self) -> Runtime:
        return Runtime(
            clock=lambda: self.now,
            unix=lambda: self.now,
            signal=lambda: self,
            lock=Lock,
            start=lambda name, body: body(),
        )


class Failing(DirectoryStore):
    """Gives no answer until `until`: for the key `model`, or for any."""

    def __init__(self, root: Path, time: Time, *, until: float, is_whole: bool) -> None:
        super().__init__(root)
        self._time, self._until, self._is_whole = time, until, is_whole
        self.put("model", b"weights")

    def exists(self, key: str) -> bool:
        self._answer(key)
        return super().exists(key)

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self._answer(key)
        return super().get(key, max_bytes=max_bytes)

    def _answer(self, key: str) -> None:
        if self._time.now < self._until and (self._is_whole or key == "model"):
            self._time.now += TRY_SECONDS
            raise StoreUnavailable(key)


@pytest.fixture
def time() -> Time:
    return Time()


def read(bucket: Bucket, held: Held) -> bytes:
    return bucket.insist(held, "get", lambda: bucket.store.get("model"))


def test_work_that_has_not_begun_waits_about_a_lease_for_one_object_alone(
    tmp_path: Path, time: Time
) -> None:
    bucket = Bucket(Failing(tmp_path, time, until=time.now + HOUR, is_whole=False))
    began = time.now
    with pytest.raises(StoreUnavailable, match="model"):
        read(bucket, Held(JOB, trainer="me", runtime=time.runtime))
    assert LEASE_TTL_SECONDS < time.now - began < 3 * LEASE_TTL_SECONDS


def test_an_outage_of_the_whole_store_fails_no_work(tmp_path: Path, time: Time) -> None:
    for seconds in range(0, 600, 7):  # it ends at any point of a try, or between two
        store = Failing(tmp_path, time, until=time.now + seconds, is_whole=True)
        assert read(Bucket(store), Held(JOB, trainer="me", runtime=time.runtime)) == b"weights"


def test_finished_work_waits_for_one_object_as_long_as_it_takes(tmp_path: Path, time: Time) -> None:
    bucket = Bucket(Failing(tmp_path, time, until=time.now + HOUR, is_whole=False))
    held = Held(JOB, trainer="me", runtime=time.runtime)
    held.enter("delivering")
    assert read(bucket, held) == b"weights"
    assert time.now >= 1000.0 + HOUR
