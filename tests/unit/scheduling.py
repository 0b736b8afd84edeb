"""The scheduler's loop in a test: a virtual clock, slow folders, and a broker that only listens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from fedfa import keys
from fedfa.broker import Publisher
from fedfa.messages import AnyMessage
from fedfa.store import DirectoryStore, ObjectStore
from fedfa.topology import Route
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.leases import Attempts
from fedfa_scheduler.service import Scheduler
from fedfa_scheduler.settings import SchedulerSettings
from tests.unit.builders import submitted


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowStore(DirectoryStore):
    """Every read takes a while, by the virtual clock."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root)
        self._clock = clock

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self._clock.now += 0.1
        return super().get(key, max_bytes=max_bytes)


class Sent(list[AnyMessage]):
    """A broker's end of the wire: it keeps what is published, in empty queues."""

    def publish(self, message: AnyMessage, route: Route, **_: Any) -> None:
        self.append(message)

    def counts(self, queue_name: str) -> tuple[int, int]:
        return 0, 0


class Loop:
    """A scheduler under a virtual clock, the fleet that it knows, and what it sent."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        clock: Clock | None = None,
        unix: float = 1000.0,
        beat: Callable[[], None] = lambda: None,
        **settings: float,
    ) -> None:
        """settings: other than a lease of 3 s, a look at every federation each second."""
        chosen = {"lease_ttl_seconds": 3.0, "reconcile_interval_seconds": 1.0} | settings
        self.clock = clock or Clock()
        self.sent = Sent()
        self.fleet = Fleet(
            lease_ttl_seconds=chosen["lease_ttl_seconds"], attempts=Attempts(start_ms=1, random=1)
        )
        self.scheduler = Scheduler(
            self.fleet,
            store,
            cast(Publisher, self.sent),
            SchedulerSettings.model_validate(chosen),
            beat=beat,
            clock=self.clock,
            unix_clock=lambda: unix,
        )

    def turns(self, number: int, *, seconds: float = 0.5) -> None:
        for _ in range(number):
            self.clock.now += seconds
            self.scheduler.turn(None, epoch=1, is_active=True)


def submit_many(store: ObjectStore, number: int) -> None:
    """fed-0, fed-1 and so on."""
    for each in range(number):
        submission = submitted(f"fed-{each}").model_copy(update={"uid": f"{each:032x}"})
        store.create(keys.spec(f"fed-{each}"), submission.model_dump_json(by_alias=True).encode())
