"""Which of the jobs that should wait in a queue are lost. PURE."""

from collections.abc import Callable, Sequence

from fedfa.messages import Work
from fedfa_scheduler.leases import Lease


class Shortages:
    """What waited in each queue when it last held too few messages."""

    def __init__(self) -> None:
        self._waited: dict[str, dict[Work, str]] = {}  # pool -> {work: attempt}

    def forget(self) -> None:
        self._waited.clear()

    def lost(
        self,
        pool: str,
        queued: Sequence[Lease],
        num_ready: int,
        *,
        may_be_lost: Callable[[Lease], bool],
    ) -> list[Lease]:
        """The leases whose messages are missing.

        Only those that waited through two low counts in a row, and no more than are missing. The
        queue is first in, first out: whoever waited longest is the likeliest to be lost.
        """
        before = self._waited.pop(pool, {})
        num_missing = len(queued) - num_ready
        if num_missing <= 0:
            return []
        self._waited[pool] = {lease.work: lease.attempt for lease in queued}
        longest_first = sorted(queued, key=lambda lease: lease.since)
        twice = [each for each in longest_first if before.get(each.work) == each.attempt]
        return list(filter(may_be_lost, twice))[:num_missing]
