"""One piece of work that a trainer holds, and every reason for not finishing it.

Unfinished work stops when its generation is closed, when another trainer started a greater
attempt, when it took too long, or when it is handed back. Finished work is kept until it is
delivered, unless its generation is closed: then nobody waits for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from fedfa.errors import Cancelled
from fedfa.log import Manifest
from fedfa.messages import (
    EvalJob,
    InitModel,
    JobFacts,
    JobStarted,
    ModelReady,
    Order,
    TrainJob,
    Work,
)
from fedfa_trainer.runtime import THREADS, Runtime

Phase = Literal["waiting", "training", "delaying", "delivering"]
PHASES: tuple[Phase, ...] = get_args(Phase)
F = TypeVar("F", bound=JobFacts)


class Held:
    """Shared by the main thread, which hears and sets reasons to stop, and the one that works."""

    def __init__(
        self,
        order: Order,
        *,
        trainer: str,
        pools: tuple[str, ...] = (),
        runtime: Runtime = THREADS,
    ) -> None:
        self.order = order
        self.attempt = order.attempt
        self.trainer = trainer
        self.pools = pools
        self.clock = runtime.clock
        self.work: Work = self.fact(JobStarted).work
        self.accepted_at = self.clock()
        self.phase: Phase = "waiting"
        self.phase_began_at = self.accepted_at
        self.next_heartbeat_at = self.accepted_at + self.heartbeat_seconds
        self.released_at: float | None = None
        self.expired_at: float | None = None
        self.missing: str | None = None  # the task that this trainer lacks
        self._reason = ""
        self._is_superseded = False
        self._is_overdue = False
        self._due: tuple[float, float] | None = None  # until when it may compute, and for how long
        self._ended = runtime.signal()  # closed or released: wakes whoever sleeps

    @property
    def heartbeat_seconds(self) -> float:
        return self.order.lease_ttl_seconds / 4

    @property
    def reason(self) -> str:
        """Why it should stop, for the log and for JobReleased."""
        return self._reason

    @property
    def has_failed(self) -> bool:
        """It took too long, and nobody else ended it."""
        return self._is_overdue and not self._ended.is_set()

    def fact(self, kind: type[F], **fields: Any) -> F:
        """A message about this work, with the attempt that it is held under now."""
        order = self.order
        which: dict[str, Any]
        match order:
            case TrainJob():
                which = {"task": "train", "slot": order.slot, "generation": order.generation}
            case EvalJob():
                which = {"task": "evaluate", "version": order.version}
            case InitModel():
                which = {"task": "init"}
        return kind(
            federation=order.federation,
            uid=order.uid,
            attempt=self.attempt,
            trainer=self.trainer,
            pools=self.pools,
            **which,
            **fields,
        )

    # -- for the thread that works ------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        self.phase_began_at = self.clock()
        self.phase = phase

    def should_stop(self) -> bool:
        is_finished = self.phase in ("delaying", "delivering")
        is_needless = self._is_superseded or self._is_overdue
        return self._ended.is_set() or (is_needless and not is_finished)

    def check(self) -> None:
        """Raise Cancelled if there is a reason to stop."""
        if self.should_stop():
            raise Cancelled(self._reason)

    def wait(self, seconds: float) -> None:
        """Sleep, or raise Cancelled as soon as the work is closed or handed back."""
        self._ended.wait(seconds)
        self.check()

    @contextmanager
    def limited(self, seconds: float | None) -> Iterator[None]:
        """What computes, and may do so for this long; None: for ever."""
        self._due = None if seconds is None else (self.clock() + seconds, seconds)
        try:
            yield
        finally:
            self._due = None

    # -- for whoever hears of a reason ----------------------------------------------------------

    def adopt(self, attempt: str) -> None:
        """The same job was handed to this trainer again: hold it under the greater attempt."""
        self.attempt = max(self.attempt, attempt)

    def overdue(self, now: float) -> str | None:
        """Why the job is overdue: it computes for longer than it may. None if it does not."""
        due = self._due
        if due is None or now < due[0]:
            return None
        match self.order:
            case TrainJob(slot=slot, generation=generation):
                name = f"job {slot}-{generation}"
            case EvalJob(version=version):
                name = f"the evaluation of version {version}"
            case InitModel():
                name = "the initialisation"
        return f"{name} took longer than {due[1]:g} s (limits.job_seconds)"

    def expire(self, reason: str) -> None:
        """It computes for too long: the next step ends it."""
        self.expired_at = self.clock()
        if not self.should_stop():
            self._is_overdue, self._reason = True, reason

    def hear_started(self, started: JobStarted) -> None:
        is_other = started.trainer != self.trainer
        if started.work == self.work and is_other and started.attempt > self.attempt:
            self._is_superseded = True
            self._reason = self._reason or f"{started.trainer} started attempt {started.attempt}"

    def hear_model(self, ready: ModelReady) -> None:
        """A commit closes jobs; any commit shows that the federation is born."""
        if ready.uid != self.order.uid:
            return
        match self.order:
            case TrainJob(slot=slot, generation=generation):
                is_closed = any(s == slot and g >= generation for s, g in ready.closed)
                if is_closed or ready.status != "running":
                    self.close(f"manifest {ready.n} closed it")
            case InitModel():
                self.close(f"the federation is born, manifest {ready.n} exists")
            case EvalJob():  # the last version's is due after the end
                pass

    def hear_manifest(self, manifest: Manifest) -> None:
        if isinstance(self.order, TrainJob) and is_closed(manifest, self.order):
            self.close(f"manifest {manifest.n} shows it closed")

    def close(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._ended.set()

    def release(self, reason: str, *, missing: str | None = None) -> None:
        """Hand it back, uncounted."""
        self.missing = missing
        self.released_at = self.clock()
        self._reason = reason
        self._ended.set()

    def remaining_seconds(self, *, train_seconds: float | None) -> float | None:
        """How long until it can be delivered; None where nobody can tell.

        train_seconds: what the last training for this federation took.
        """
        spent = self.clock() - self.phase_began_at
        delay = self.order.delay_seconds if isinstance(self.order, TrainJob) else 0.0
        match self.phase:
            case "delivering":
                return 0.0
            case "delaying":
                return max(0.0, delay - spent)
            case "training" if isinstance(self.order, TrainJob) and train_seconds is not None:
                return max(0.0, train_seconds - spent) + delay
            case _:
                return None


def is_closed(manifest: Manifest, job: TrainJob) -> bool:
    """Whether this manifest says that nobody waits for the job any more."""
    state = manifest.state
    if manifest.uid != job.uid or state.status != "running":
        return True
    return job.slot < len(state.slots) and state.slots[job.slot].generation > job.generation


def is_ahead(manifest: Manifest, job: TrainJob) -> bool:
    """Whether the job was opened after this manifest, so that its model is too old."""
    state = manifest.state
    return (
        state.version < job.opened_at
        or job.slot >= len(state.slots)
        or state.slots[job.slot].generation < job.generation
    )
