"""The trainer's loop: accept work, keep its leases, hear what became needless, end in time.

The main thread alone reads messages and never computes or waits for the store. Each piece of
held work has a thread of its own; the worker lets one of them compute at a time.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable

from fedfa.broker import Consumer, Delivery, Publisher
from fedfa.errors import (
    BrokerUnavailable,
    Cancelled,
    FedfaError,
    InvalidMessage,
    Misconfigured,
    StoreUnavailable,
)
from fedfa.failpoints import reach
from fedfa.messages import (
    EvalJob,
    InitModel,
    JobFailed,
    JobHeartbeat,
    JobStarted,
    ModelReady,
    Order,
    RollCall,
    TrainJob,
    Work,
)
from fedfa.observability import Answer, Pulse
from fedfa.topology import BROADCAST_QUEUE, DEAD, EVENTS, Queue, buried_because, jobs_queue
from fedfa_trainer import metrics
from fedfa_trainer.bucket import Bucket
from fedfa_trainer.failures import BROKEN_AFTER, Broken, Failures
from fedfa_trainer.held import PHASES, Held, Phase
from fedfa_trainer.outcome import RELEASE_TIMEOUT_SECONDS, carry_out, claim, hand_back
from fedfa_trainer.runtime import THREADS, Runtime
from fedfa_trainer.settings import TrainerSettings
from fedfa_trainer.work import Worker

logger = logging.getLogger(__name__)

BROADCAST_PREFETCH = 100
HEARTBEAT_TIMEOUT_SECONDS = 2.0
# Work that was told to stop is waited for, and then reported even if it still computes.
STOP_SECONDS = 2.0
# Longer for a step: ending the process for one that is only slow costs all that it holds.
HANG_SECONDS = 10.0


def queues(pools: tuple[str, ...]) -> list[tuple[Queue, int]]:
    """What a trainer consumes, each with its prefetch."""
    return [*((jobs_queue(pool), 1) for pool in pools), (BROADCAST_QUEUE, BROADCAST_PREFETCH)]


class Trainer:
    def __init__(
        self,
        settings: TrainerSettings,
        consumer: Consumer,
        publisher: Publisher,
        bucket: Bucket,
        worker: Worker,
        *,
        runtime: Runtime = THREADS,
        show_busy: Callable[[bool], object] = bool,
    ) -> None:
        """show_busy hears on every turn whether work is held, and returns at once."""
        self.pulse = Pulse()
        self._settings = settings
        self._consumer = consumer
        self._publisher = publisher
        self._bucket = bucket
        self._worker = worker
        self._runtime = runtime
        self._show_busy = show_busy
        self._job_queues = [jobs_queue(pool).name for pool in settings.pools]
        self._lock = threading.Lock()  # of _held, and of pausing by its size
        self._held: dict[Work, Held] = {}
        self._epoch = consumer.epoch
        self._shown_phases: Counter[Phase] | None = None
        self.is_stopping = False
        self._deadline: float | None = None  # once stopping was noticed
        self._failures = Failures()
        self._fatal: FedfaError | None = None

    def run(self) -> None:
        """Serve until stop(), and then until what can be finished is.

        Raises Misconfigured or Broken, once everything is handed back.
        """
        for delivery in self._consumer:
            self.pulse.beat()
            if delivery is not None:
                self._receive(delivery)
            self._check_again_after_a_gap()
            self._send_heartbeats()
            self._end_overdue()
            self._measure()
            if self.is_stopping and self._is_wound_up():
                break
        if self._fatal is not None:
            raise self._fatal

    def stop(self) -> None:
        """Take no more work and end. Only sets a flag, so that a signal handler may call it."""
        self.is_stopping = True

    def jobs(self) -> Answer:
        """The HTTP answer about what is held."""
        now = self._runtime.clock()
        return 200, [
            {
                "federation": held.order.federation,
                "work": held.work._asdict(),
                "attempt": held.attempt,
                "phase": held.phase,
                "phase_seconds": round(now - held.phase_began_at, 3),
                "age_seconds": round(now - held.accepted_at, 3),
            }
            for held in self._snapshot()
        ]

    # -- messages ---------------------------------------------------------------------------------

    def _receive(self, delivery: Delivery) -> None:
        is_broadcast = delivery.queue == BROADCAST_QUEUE.name
        try:
            message = delivery.message()
        except InvalidMessage as error:
            self._refuse(delivery, str(error))
            return
        match message:
            case TrainJob() | EvalJob() | InitModel() if not is_broadcast:
                self._accept(message, delivery)
                return
            case ModelReady() if is_broadcast:
                self._bucket.hear_model(message)
                with self._lock:
                    self._failures.heard(message)
                for held in self._snapshot():
                    held.hear_model(message)
            case JobStarted() if is_broadcast:
                for held in self._snapshot():
                    held.hear_started(message)
            case RollCall() if is_broadcast:
                for held in self._snapshot():
                    held.next_heartbeat_at = 0.0
            case _:
                self._refuse(delivery, f"{message.kind}: not for a trainer")
                return
        delivery.ack()

    def _refuse(self, delivery: Delivery, reason: str) -> None:
        """To the dead-letter queue, except what went to every trainer: one may be older."""
        logger.warning("message refused", extra={"queue": delivery.queue, "reason": reason})
        if delivery.queue == BROADCAST_QUEUE.name:
            delivery.ack()
        else:
            self._start("refuse", self._bury, delivery, reason)

    def _bury(self, delivery: Delivery, reason: str) -> None:
        self._publisher.publish(delivery.body, DEAD, headers=buried_because(reason))
        reach("trainer.buried")
        delivery.ack()

    def _accept(self, order: Order, delivery: Delivery) -> None:
        held = Held(
            order,
            trainer=self._settings.trainer_name,
            pools=self._settings.pools,
            runtime=self._runtime,
        )
        with self._lock:
            if self.is_stopping:
                return  # not acknowledged: it goes back to the queue
            known = self._held.get(held.work)
            if known is None or known.should_stop():  # what is ending anyway makes room for it
                known = None
                self._held[held.work] = held
                if len(self._held) >= self._settings.most_held:
                    self._pause()  # before the ack, which would make the broker send another
        if known is None:
            self._start("work", self._hold, held, delivery)
        else:
            known.adopt(order.attempt)
            self._start("claim", claim, known, delivery, self._publisher)

    def _pause(self) -> None:
        for name in self._job_queues:
            self._consumer.pause(name)

    # -- one piece of work, in its own thread -----------------------------------------------------

    def _start(self, what: str, body: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                body(*arguments)
            except BrokerUnavailable:
                logger.debug("ended with the broker connection", extra={"thread": what})
            except Misconfigured as error:
                self._fatal = error
                self.is_stopping = True

        self._runtime.start(what, run)

    def _hold(self, held: Held, delivery: Delivery) -> None:
        try:
            claim(held, delivery, self._publisher)
            outcome, reason = carry_out(held, self._worker, self._publisher)
        finally:
            self._let_go(held)
        metrics.jobs.labels(outcome=outcome).inc()
        self._judge(held.order, outcome, reason)
        fields = {
            "federation": held.order.federation,
            **held.work._asdict(),
            "attempt": held.attempt,
            "outcome": outcome,
            "reason": reason,
        }
        logger.info("work ended", extra=fields)

    def _judge(self, order: Order, outcome: str, reason: str) -> None:
        """End when it is this process that fails: it would spoil job after job."""
        if not isinstance(order, TrainJob):
            return
        with self._lock:
            if outcome == "delivered":
                self._failures.delivered(order.uid)
            elif outcome == "failed" and self._failures.failed(order.uid, order.client):
                self._fatal = self._fatal or Broken(
                    f"{order.federation}: {BROKEN_AFTER} clients in a row failed on this trainer, "
                    f"and it is not the task; at last {order.client}: {reason}"
                )
                self.is_stopping = True

    def _let_go(self, held: Held) -> None:
        with self._lock:
            if self._held.get(held.work) is held:
                del self._held[held.work]
            if len(self._held) < self._settings.most_held and not self.is_stopping:
                for name in self._job_queues:
                    self._consumer.resume(name)

    # -- what each turn of the loop looks after ---------------------------------------------------

    def _snapshot(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def _send_heartbeats(self) -> None:
        for held in self._snapshot():
            now = self._runtime.clock()
            if now < held.next_heartbeat_at:
                continue
            try:
                heartbeat = held.fact(JobHeartbeat)
                self._publisher.publish(
                    heartbeat, EVENTS, timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS
                )
            except BrokerUnavailable as error:  # no lease can be kept now; the work goes on
                logger.warning("no heartbeat", extra={"reason": str(error)})
                return
            held.next_heartbeat_at = now + held.heartbeat_seconds

    def _end_overdue(self) -> None:
        """Stop what computes for too long between two of its steps; failing that, this process.

        A thread cannot be stopped from outside, and nothing else could ever compute here.
        """
        now = self._runtime.clock()
        for held in self._snapshot():
            if reason := held.overdue(now):
                if held.expired_at is None:
                    held.expire(reason)
                elif now > held.expired_at + HANG_SECONDS:
                    self._end_with(held, reason)

    def _end_with(self, held: Held, reason: str) -> None:
        """Report the failure and end; what the thread still says afterwards is a late answer."""
        failed = held.fact(JobFailed, error=reason)
        try:
            self._publisher.publish(failed, EVENTS, timeout_seconds=RELEASE_TIMEOUT_SECONDS)
        except BrokerUnavailable as error:  # said in the next turn, or its lease would have to end
            logger.warning("no failure reported", extra={"reason": str(error)})
            return
        with self._lock:
            self._held.pop(held.work, None)
        metrics.jobs.labels(outcome="failed").inc()
        self._fatal = self._fatal or Broken(f"{held.order.federation}: {reason}, and does not stop")
        self.is_stopping = True

    def _check_again_after_a_gap(self) -> None:
        """A commit may have closed a held job while this trainer could not hear of it."""
        epoch = self._consumer.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            for held in self._snapshot():
                self._start("check", self._check, held)

    def _check(self, held: Held) -> None:
        try:
            manifest = self._bucket.newest(held)
        except (Cancelled, StoreUnavailable):
            return
        if manifest is not None:
            held.hear_manifest(manifest)

    def _measure(self) -> None:
        self._worker.computing.count()
        phases = Counter(held.phase for held in self._snapshot())
        self._show_busy(phases.total() > 0)
        if phases != self._shown_phases:
            self._shown_phases = phases
            for phase in PHASES:
                metrics.jobs_held.labels(phase=phase).set(phases[phase])

    def _is_wound_up(self) -> bool:
        """Let go of what does not fit into the grace; True once nothing is held any more."""
        now = self._runtime.clock()
        if self._deadline is None:
            self._deadline = now + self._settings.trainer_grace_seconds
            with self._lock:
                self._pause()
        for held in self._snapshot():
            estimate = self._worker.train_seconds.get(held.order.uid)
            remaining = held.remaining_seconds(train_seconds=estimate)
            if held.released_at is not None:
                if now > held.released_at + STOP_SECONDS:
                    self._disown(held)
            elif remaining is None or now + remaining > self._deadline:
                held.release("the trainer is shutting down")
        return not self._snapshot()

    def _disown(self, held: Held) -> None:
        """Hand back what does not stop; it ends with the process."""
        try:
            hand_back(held, self._publisher, timeout_seconds=RELEASE_TIMEOUT_SECONDS)
        except BrokerUnavailable as error:
            logger.warning("not handed back", extra={"reason": str(error)})
        with self._lock:
            self._held.pop(held.work, None)
