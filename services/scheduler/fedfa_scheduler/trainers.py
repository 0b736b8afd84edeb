"""The trainers that were heard recently, and the tasks that they lack. PURE."""

from collections.abc import Iterator

from fedfa.messages import JobFacts, JobReleased
from fedfa_scheduler.known import Known


class Trainers:
    """recent_seconds: whoever was silent for longer may be gone."""

    def __init__(self, *, recent_seconds: float) -> None:
        self._recent_seconds = recent_seconds
        self._heard: dict[str, tuple[float, tuple[str, ...]]] = {}  # the longest ago first

    def heard(self, fact: JobFacts, now: float) -> None:
        self._heard.pop(fact.trainer, None)
        self._heard[fact.trainer] = now, fact.pools
        longest_silent = next(iter(self._heard))
        if self._heard[longest_silent][0] < now - self._recent_seconds:
            del self._heard[longest_silent]

    def missing_tasks(self, known: Known, now: float) -> Iterator[tuple[str, str]]:
        """(pool, task) of the federation's work in a pool whose trainers all lack its task."""
        for pool in sorted({lease.pool for lease in known.leases.values()}):
            recent = {
                name
                for name, (at, pools) in self._heard.items()
                if pool in pools and at >= now - self._recent_seconds
            }
            if recent and recent <= known.lacking.keys():
                yield pool, known.lacking[min(recent)]


def note_lack(known: Known, fact: JobFacts) -> None:
    """Whether the trainer of this fact has the federation's task."""
    if isinstance(fact, JobReleased):
        if fact.missing is not None:
            known.lacking[fact.trainer] = fact.missing
    else:
        known.lacking.pop(fact.trainer, None)
