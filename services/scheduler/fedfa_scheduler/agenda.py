"""What to look at now: whatever was touched, and whatever's time has come. PURE.

So what a message costs does not grow with the number of leases.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Keys that are due: now, or at a time that each may have."""

    def __init__(self) -> None:
        self._touched: dict[K, None] = {}  # in order
        self._alarms: dict[K, float] = {}  # the next one of each key; others in the heap are void
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = count()  # keys need not compare

    def touch(self, key: K) -> None:
        """Look at it now, and until `put_off`."""
        self._touched[key] = None

    def put_off(self, key: K, until: float | None) -> None:
        """Nothing is to be done now; None: nor ever, unless it is touched."""
        self._touched.pop(key, None)
        if until is not None and until < self._alarms.get(key, float("inf")):
            self._alarms[key] = until
            heappush(self._heap, (until, next(self._numbers), key))

    def due(self, now: float) -> list[K]:
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heappop(self._heap)
            if self._alarms.get(key) == at:
                del self._alarms[key]
                self._touched[key] = None
        return list(self._touched)
