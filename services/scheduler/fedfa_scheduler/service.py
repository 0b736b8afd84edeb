"""The scheduler's loop: hear, look, do what the fleet says is due, acknowledge.

All decisions are the fleet's, and all reading is the lookout's; what is written and published is
written and published here.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from fedfa import keys
from fedfa.broker import Consumer, Delivery, Publisher
from fedfa.errors import (
    AlreadyExists,
    BrokerUnavailable,
    InvalidMessage,
    StoreUnavailable,
    Unavailable,
)
from fedfa.failpoints import reach
from fedfa.messages import (
    AbandonJob,
    AnyMessage,
    EvalReady,
    JobFacts,
    JobFailed,
    JobReleased,
    ModelReady,
    Order,
    RollCall,
    StartFederation,
)
from fedfa.observability import Answer, Pulse
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.topology import (
    BROADCAST,
    DEAD,
    DEAD_QUEUE,
    EVENTS_QUEUE,
    Route,
    buried_because,
    jobs_queue,
)
from fedfa_scheduler import bucket, metrics, status
from fedfa_scheduler.actions import Action, FindModel, Look, RecordFailure, Send
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.looking import Lookout
from fedfa_scheduler.settings import SchedulerSettings

logger = logging.getLogger(__name__)

PREFETCH = 200
PUBLISH_SECONDS = 10.0  # how long one confirm is waited for
REST_SECONDS = 5.0  # after an outage: only listen
IDENTITY = (
    *("kind", "federation", "slot", "generation", "version", "attempt", "client", "trainer"),
    *("pool", "outcome"),
)
BUSY_SECONDS = 1.0  # then listen again, and go on in the next turn
LOOK_SECONDS = 0.05  # the same of a look at every federation; with a message, after one of them


def run(consumer: Consumer, scheduler: "Scheduler", pulse: Pulse) -> None:
    """Serve until the consumer is stopped."""
    for delivery in consumer:
        pulse.beat()
        scheduler.turn(delivery, epoch=consumer.epoch, is_active=consumer.is_consuming)


class Scheduler:
    """Holds nothing that cannot be read or heard again.

    beat is told of every look: the first one at a bucket of many runs takes longer than a turn
    may. clock gives monotonic seconds, for leases; unix_clock is for wall-time limits only.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: ObjectStore,
        publisher: Publisher,
        settings: SchedulerSettings,
        *,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._lookout = Lookout(
            store,
            fleet,
            discover_interval_seconds=settings.discover_interval_seconds,
            beat=beat,
            clock=clock,
        )
        self._store = store
        self._publisher = publisher
        self._settings = settings
        self._clock = clock
        self._unix_clock = unix_clock
        self._epoch: int | None = None  # None: not acting
        self._has_gap = True  # messages may have been missed
        self._num_unheard = 0  # messages that may have waited while the loop stood still
        self._last_turn = clock()
        self._pause_seconds = settings.lease_ttl_seconds / 2  # silent for longer: it was paused
        self._reconcile_at = self._rest_until = float("-inf")
        self._shown: tuple[Any, Any] | None = None  # what HTTP threads see
        self._noticed: SimpleQueue[str] = SimpleQueue()  # what HTTP threads changed

    def turn(self, delivery: Delivery | None, *, epoch: int, is_active: bool) -> None:
        """One delivery, or none for a while, and everything that is due.

        Without the exclusive event queue this is a standby, or has no broker: it does nothing.
        """
        now, last = self._clock(), self._last_turn
        self._last_turn = now
        if not is_active:
            if self._shown is not None:
                metrics.hide()
            self._epoch = self._shown = None
            return
        if epoch != self._epoch:
            self._epoch, self._has_gap = epoch, True
        try:
            if now - last > self._pause_seconds:
                self._num_unheard = PREFETCH + self._publisher.counts(EVENTS_QUEUE.name)[0]
                self._fleet.fell_behind()
            elif self._num_unheard > 0:
                self._num_unheard = 0 if delivery is None else self._num_unheard - 1
            if self._num_unheard == 0:
                self._fleet.caught_up(now)
            if self._has_gap and not self._is_resting:
                self._resume()
            elif delivery is None:
                self._fleet.drained(now)
            if delivery is not None:
                self._receive(delivery)
            while not self._noticed.empty() and not self._is_resting:
                self._lookout.meet(self._noticed.get())
            if now >= self._reconcile_at and not self._is_resting:
                self._reconcile(is_idle=delivery is None)
            self._do_what_is_due()
        except Unavailable as error:
            self._rest(error)
        if delivery is None and self._shown is not None:
            self._show()

    # -- hear -----------------------------------------------------------------------------------

    def _receive(self, delivery: Delivery) -> None:
        """Acknowledges in any case: what an outage keeps undone, the fleet remembers as due."""
        reach("scheduler.received")
        try:
            message = delivery.message()
        except InvalidMessage as error:
            self._bury(delivery, error)
            return
        try:
            if delivery.queue == EVENTS_QUEUE.name:
                self._on_event(message)
            elif isinstance(message, ModelReady) and not self._is_resting:
                self._lookout.follow(message)
            self._do_what_is_due()
            reach("scheduler.before_ack")
        finally:
            delivery.ack()

    def _bury(self, delivery: Delivery, error: InvalidMessage) -> None:
        logger.warning("dead-lettered", extra={"reason": str(error)})
        self._publisher.publish(
            delivery.body, DEAD, headers=buried_because(str(error)), timeout_seconds=PUBLISH_SECONDS
        )
        reach("scheduler.buried")
        delivery.ack()

    def _on_event(self, message: AnyMessage) -> None:
        match message:
            case StartFederation():
                self._lookout.search_soon()  # in case the store is out
                if not self._is_resting:
                    self._lookout.meet(message.federation)
            case EvalReady():
                if not self._is_resting:
                    self._lookout.follow_evaluation(message)
            case JobFacts():
                self._on_fact(message)
            case _:
                logger.warning("unexpected message", extra={"kind": message.kind})

    def _on_fact(self, fact: JobFacts) -> None:
        if self._fleet.is_ahead(fact) and not self._is_resting:
            self._lookout.meet(fact.federation)
        if self._fleet.heard(fact, self._clock()):
            if isinstance(fact, JobFailed):
                metrics.jobs_failed.inc()
                extra = {**_fields(fact), "error": fact.error}
                logger.warning("a trainer reported a failure", extra=extra)
            elif isinstance(fact, JobReleased):
                metrics.jobs_released.inc()
                logger.info("a job was handed back", extra={**_fields(fact), "why": fact.reason})

    # -- look -----------------------------------------------------------------------------------

    def _resume(self) -> None:
        """A start, or a gap in what was heard: ask every trainer what it holds, look everywhere."""
        logger.info("acting", extra={"epoch": self._epoch})
        self._fleet.gap()
        self._publish(RollCall(), BROADCAST)
        self._has_gap = False
        self._lookout.start_over()
        self._reconcile_at = float("-inf")

    def _reconcile(self, *, is_idle: bool) -> None:
        """Look at every federation and queue; over several turns, so that nobody waits for it."""
        if not self._lookout.go_round(seconds=LOOK_SECONDS if is_idle else 0.0):
            return
        counts = {pool: self._publisher.counts(jobs_queue(pool).name) for pool in self._fleet.pools}
        self._fleet.counted(counts, self._clock())
        metrics.dead_letters_waiting.set(self._publisher.counts(DEAD_QUEUE.name)[0])
        if self._publisher.counts(EVENTS_QUEUE.name)[0] == 0:
            self._fleet.drained(self._clock())
        # From its end on: one that takes long must leave time for the messages.
        self._reconcile_at = self._clock() + self._settings.reconcile_interval_seconds
        self._show()

    # -- do -------------------------------------------------------------------------------------

    def _do_what_is_due(self) -> None:
        started = self._clock()
        while not self._is_resting:
            now = self._clock()
            if now - self._last_turn > self._pause_seconds:
                return  # in the middle of a turn: the next one sees the gap
            actions = self._fleet.due(now, unix=self._unix_clock())
            if not actions:
                return
            for action in actions:
                try:
                    self._do(action, now)
                except StoreUnavailable as error:
                    assert not isinstance(action, Send), "it asks the broker alone"
                    self._lookout.no_answer(action.federation, error)
                    self._fleet.put_off(action, self._clock())
                if self._clock() - started > BUSY_SECONDS:
                    return

    def _do(self, action: Action, now: float) -> None:
        """now: when it was decided, for what a pause since then must not change."""
        match action:
            case Send():
                if isinstance(action.message, AbandonJob):
                    reach("scheduler.before_abandon")
                self._publish(action.message, action.route)
                reach("scheduler.published")
                self._fleet.done(action, self._clock())
                if isinstance(action.message, Order):
                    metrics.jobs_published.inc()
                logger.info("sent", extra=_fields(action.message))
            case Look(federation, work):
                if self._lookout.look(action, now):
                    metrics.lease_expired.inc()
                    extra = {"federation": federation, **work._asdict()}
                    logger.warning("a lease expired", extra=extra)
            case FindModel():
                self._lookout.find_model(action)
            case RecordFailure(federation, work, error):
                reach("scheduler.before_evaluation_failure")
                body = bucket.evaluation_failure(work.version, error, at=self._unix_clock())
                with suppress(AlreadyExists):  # a trainer did it after all
                    self._store.create(keys.evaluation(federation, work.version), body)
                self._lookout.look_for_evaluation(federation, work.version)

    def _publish(self, message: AnyMessage, route: Route) -> None:
        self._publisher.publish(message, route, timeout_seconds=PUBLISH_SECONDS)

    # -- outages, and what is shown -------------------------------------------------------------

    @property
    def _is_resting(self) -> bool:
        return self._clock() < self._rest_until

    def _rest(self, error: Unavailable) -> None:
        """Only listen for a while, so that no delivery is held long; then try again."""
        logger.warning("an outage", extra={"reason": str(error)})
        self._rest_until = self._clock() + REST_SECONDS
        if isinstance(error, BrokerUnavailable):  # trainers may be held back just as we are
            self._has_gap = True

    def _show(self) -> None:
        metrics.show(self._fleet)
        listed = status.federations(self._fleet, self._clock(), troubles=self._lookout.troubles)
        self._shown = (status.open_jobs(self._fleet), listed)

    def notice(self, submitted: Submission) -> None:
        """From any thread: look soon at what was submitted or asked to stop."""
        self._noticed.put(submitted.federation)

    def shown_federations(self) -> list[dict[str, Any]]:
        """What federations() shows, and nothing while this is a standby."""
        shown = self._shown
        return [] if shown is None else list(shown[1])

    def open_jobs(self) -> Answer:
        """For autoscaling. 503 while it is a standby or did not look yet: nobody scales by that."""
        shown = self._shown
        return (503, {"acting": False}) if shown is None else (200, shown[0])

    def federations(self) -> Answer:
        shown = self._shown
        return (503, {"acting": False}) if shown is None else (200, shown[1])


def _fields(message: Any) -> dict[str, Any]:
    """What identifies a message, for the log."""
    return {name: getattr(message, name) for name in IDENTITY if hasattr(message, name)}
