"""The trainers that were heard recently, and the tasks that they lack. PURE."""

from fedfa.messages import JobFacts, JobReleased
from fedfa_scheduler.known import Known


class Trainers:
    """recent_seconds: whoever was silent for longer may be gone."""

    def __init__(self, *, recent_seconds: float) -> None:
        self._recent_seconds = recent_seconds
        self._heard_at: dict[str, float] = {}  # the longest ago first

    def heard(self, trainer: str, now: float) -> None:
        self._heard_at.pop(trainer, None)
        self._heard_at[trainer] = now
        longest_silent = next(iter(self._heard_at))
        if self._heard_at[longest_silent] < now - self._recent_seconds:
            del self._heard_at[longest_silent]

    def missing_task(self, known: Known, now: float) -> str | None:
        """The task that every one of them lacks."""
        recent = {name for name, at in self._heard_at.items() if at >= now - self._recent_seconds}
        lacking = sorted(recent & known.lacking.keys())
        return known.lacking[lacking[0]] if lacking and len(lacking) == len(recent) else None


def note_lack(known: Known, fact: JobFacts) -> None:
    """Whether the trainer of this fact has the federation's task."""
    if isinstance(fact, JobReleased):
        if fact.missing is not None:
            known.lacking[fact.trainer] = fact.missing
    else:
        known.lacking.pop(fact.trainer, None)
