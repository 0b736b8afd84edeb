"""One lease for each piece of work (a training job, an evaluation, an initialisation).

PURE: no clock, no I/O. `now` is monotonic seconds. A lease knows only what was published and
heard; whether the work is finished, the bucket alone says.

    owed ------> queued ------> claimed        sent; a trainer has it
      ^            |              |
      +------------+--------------+            lost, released, failed or expired
                   |              |
                   +--> given_up  +--> delivered
"""

from dataclasses import dataclass
from typing import Literal

from fedfa.log import ModelRef
from fedfa.messages import JobFacts, JobFailed, JobReleased, UpdateReady, Work

Stage = Literal["owed", "queued", "claimed", "delivered", "given_up"]

MISSING_TASK_DELAY_SECONDS = 5.0
MAX_COUNT = 999_999  # of an attempt id, which compares as text
LAST_START_MS = 9_999_999_999_000  # still 13 digits for a while
MAX_ERROR_CHARACTERS = 3000
UNKNOWN_ATTEMPT = ""  # less than every attempt


class Attempts:
    """Ids of the hand-outs of one scheduler start, each greater than all before it."""

    def __init__(self, *, start_ms: int, random: int) -> None:
        self._start_ms = start_ms
        self._random = random
        self._count = 0

    def next(self) -> str:
        if self._count == MAX_COUNT:
            self._start_ms, self._count = self._start_ms + 1, 0
        self._count += 1
        return f"{self._start_ms:013d}-{self._random:08x}-{self._count:06d}"

    def outrank(self, attempt: str) -> None:
        """Another start's clock was ahead of ours: count from above it."""
        start_ms, random, _ = attempt.split("-")
        theirs = (int(start_ms), int(random, 16))
        if (self._start_ms, self._random) < theirs < (LAST_START_MS, 0):
            self._start_ms, self._count = int(start_ms) + 1, 0


@dataclass(slots=True)
class Lease:
    """since: when the stage began or, claimed, when its trainer was last heard.

    must_look: the bucket has to be looked at before this lease causes anything.
    attempt: the greatest published or heard; "" if another scheduler's may be on its way.
    ended: the greatest attempt that a trainer failed or handed back; nobody holds it any more.
    """

    federation: str
    work: Work
    pool: str
    client: str  # "" unless it is a training job
    opened_at: int  # the version when a training job's slot opened
    max_attempts: int
    stage: Stage
    since: float
    must_look: bool
    attempt: str = UNKNOWN_ATTEMPT
    ended: str = UNKNOWN_ATTEMPT
    trainer: str = ""
    failures: int = 0
    error: str = ""
    reason: str = ""  # of giving up
    not_before: float = 0.0
    model: ModelRef | None = None  # what to evaluate, once it was found
    update: UpdateReady | None = None  # what is delivered
    sent_at: float | None = None  # the last announcement, or AbandonJob

    @property
    def is_open(self) -> bool:
        """Whether it still needs a trainer."""
        return self.stage in ("owed", "queued", "claimed")

    @property
    def is_unclaimed(self) -> bool:
        return self.stage in ("owed", "queued")

    def published(self, attempt: str, now: float) -> None:
        self.stage, self.attempt, self.since, self.trainer = "queued", attempt, now, ""

    def heard(self, fact: JobFacts, now: float) -> bool:
        """A trainer holds this work, failed at it or hands it back. Says whether it was news."""
        if isinstance(fact, JobFailed):
            return self._failed(fact, now)
        if isinstance(fact, JobReleased):
            return self._released(fact, now)
        if not self.is_open or fact.attempt < self.attempt or fact.attempt <= self.ended:
            return False
        self.stage, self.attempt, self.since = "claimed", fact.attempt, now
        self.trainer = fact.trainer
        return True

    def looked(
        self,
        now: float,
        *,
        update: UpdateReady | None,
        has_initial_model: bool,
        has_expired: bool,
    ) -> bool:
        """What the bucket holds for it. Says whether the lease expired by that."""
        if update is not None:
            self.delivered(update, now)
        elif has_expired and has_initial_model:
            self.owe(now)  # initialised, but not committed: say it again, nobody failed
        elif has_expired:
            self.fail(f"trainer {self.trainer} was silent for {now - self.since:.0f} s", now)
        self.must_look = False
        return has_expired and update is None and not has_initial_model

    def fail(self, error: str, now: float, *, hand_out: bool = True) -> None:
        """Count a failure; then hand the work out again, or give up.

        Without hand_out its place in the queue is unknown: a scheduler before us may have handed
        it out again already, which the queue's count will tell.
        """
        self.failures += 1
        self.error = error[:MAX_ERROR_CHARACTERS]
        if self.failures >= self.max_attempts:
            times = "once" if self.failures == 1 else f"{self.failures} times"
            self.give_up(f"failed {times}, at last: {self.error}", now)
        elif hand_out:
            self.owe(now)

    def give_up(self, reason: str, now: float) -> None:
        """Close it, once the bucket shows that it is not finished."""
        self.stage, self.since, self.sent_at, self.must_look = "given_up", now, None, True
        self.reason = reason

    def owe(self, now: float) -> None:
        """Hand it out (again), once the bucket shows that it is not finished."""
        self.stage, self.since, self.must_look, self.not_before = "owed", now, True, now

    def delivered(self, update: UpdateReady, now: float) -> None:
        if self.stage != "delivered":
            self.since, self.sent_at = now, None
        self.stage, self.update, self.must_look = "delivered", update, False

    def sent(self, now: float) -> None:
        """Announced or abandoned; the next time, the bucket is looked at again first."""
        self.sent_at = now
        self.must_look = self.stage == "given_up"

    def after_gap(self) -> None:
        """Messages may be lost, and another scheduler may have acted: look again, say it again."""
        self.sent_at = None
        self.must_look = self.stage != "delivered"

    def _failed(self, fact: JobFailed, now: float) -> bool:
        if not self._ends(fact):
            return False
        self.fail(fact.error, now, hand_out=self.attempt != UNKNOWN_ATTEMPT)
        return True

    def _released(self, fact: JobReleased, now: float) -> bool:
        """Handed back: not a failure."""
        if not self._ends(fact):
            return False
        if self.attempt != UNKNOWN_ATTEMPT:
            self.owe(now)
            self.not_before = now + (MISSING_TASK_DELAY_SECONDS if fact.missing else 0.0)
        return True

    def _ends(self, fact: JobFacts) -> bool:
        """Whether nobody holds the work any more, as far as was heard."""
        if self.stage not in ("queued", "claimed") or fact.attempt <= self.ended:
            return False
        if fact.attempt < self.attempt:
            return False
        self.ended = fact.attempt
        return True
