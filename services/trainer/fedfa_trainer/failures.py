"""Failures of jobs: what many of them tell about this process."""

from dataclasses import dataclass, field

from fedfa.errors import FedfaError, InvalidTensors
from fedfa.messages import ModelReady

BROKEN_AFTER = 5  # clients in a row


class Broken(FedfaError):
    """Raised when a trainer fails at what others, or it itself before, could do, or hangs."""


class Diverged(InvalidTensors):
    """Raised when a training ends in numbers that are not finite; says nothing of the process."""


@dataclass(slots=True)
class Streak:
    """Failures of one federation since its last success here. version: the first one heard."""

    clients: set[str] = field(default_factory=set)
    version: int | None = None
    others_succeed: bool = False


class Failures:
    """Tells a broken process (a device in a bad state, a half-loaded library) from a broken task.

    A broken task fails everywhere and from its first job on; nothing is gained by a new process.
    """

    def __init__(self) -> None:
        self._has_worked: set[str] = set()  # uids
        self._streaks: dict[str, Streak] = {}

    def delivered(self, uid: str) -> None:
        self._has_worked.add(uid)
        self._streaks.pop(uid, None)

    def heard(self, ready: ModelReady) -> None:
        """Versions that rise during a streak are made from the updates of others."""
        streak = self._streaks.get(ready.uid)
        if streak is None:
            return
        if streak.version is None:
            streak.version = ready.version
        streak.others_succeed |= ready.version > streak.version
        if ready.status != "running":
            del self._streaks[ready.uid]
            self._has_worked.discard(ready.uid)

    def failed(self, uid: str, client: str) -> bool:
        """Count a failure; says whether this process seems to be the reason."""
        streak = self._streaks.setdefault(uid, Streak())
        streak.clients.add(client)
        succeeds = streak.others_succeed or uid in self._has_worked
        return succeeds and len(streak.clients) >= BROKEN_AFTER
