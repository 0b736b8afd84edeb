"""The one place where something computes: who has it, and for how long in all."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedfa_trainer import metrics
from fedfa_trainer.held import Held
from fedfa_trainer.runtime import Runtime

LOOK_SECONDS = 0.2  # how often work that waits for its turn looks for a reason to stop


class Computing:
    """Gives one piece of work at a time its turn, and counts the seconds that were computed."""

    def __init__(self, runtime: Runtime) -> None:
        self._place = runtime.lock()
        self._clock = runtime.clock
        self._counting = threading.Lock()
        self._counted_until: float | None = None  # None while nothing computes

    @contextmanager
    def turn(self, held: Held) -> Iterator[None]:
        """Wait for the place and hold it. Raises Cancelled when the work should stop."""
        while not self._place.acquire(timeout=LOOK_SECONDS):
            held.check()
        try:
            held.check()
            yield
        finally:
            self._place.release()

    @contextmanager
    def timed(self, held: Held) -> Iterator[None]:
        """The part of a turn in which it really computes."""
        held.enter("training")
        with self._counting:
            self._counted_until = self._clock()
        try:
            yield
        finally:
            self.count()
            with self._counting:
                self._counted_until = None

    def count(self) -> None:
        """Bring the metric up to date: a training may take hours."""
        with self._counting:
            if self._counted_until is not None:
                now = self._clock()
                metrics.computing_seconds.inc(now - self._counted_until)
                self._counted_until = now
