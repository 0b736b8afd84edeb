"""The scheduler's loop: hear, look, do what the fleet says is due, acknowledge.

All decisions are the fleet's; what is read, written and published here are its effects.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from fedfa import history, keys, manifests
from fedfa.broker import Consumer, Delivery, Publisher
from fedfa.errors import (
    AlreadyExists,
    BrokerUnavailable,
    FedfaError,
    InvalidInput,
    InvalidMessage,
    NotFound,
    Unavailable,
)
from fedfa.failpoints import reach
from fedfa.manifests import Manifest
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
from fedfa.spec import Submitted
from fedfa.store import ObjectStore
from fedfa.submission import ID
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
from fedfa_scheduler.known import Known
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
        self._beat = beat
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
        self._reconcile_at = self._discover_at = self._rest_until = float("-inf")
        self._unseen: deque[Callable[[], None]] | None = None  # of the reconcile under way
        self._must_see_all = True  # after a gap: in one go, before anything is done
        self._troubles: dict[str, str] = {}  # federation -> what is wrong with its objects
        self._gone: set[str] = set()  # uids whose manifests were deleted, and whose spec is there
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
                self._meet(self._noticed.get())
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
            elif isinstance(message, ModelReady):
                self._on_model_ready(message)
            self._do_what_is_due()
            reach("scheduler.before_ack")
        finally:
            delivery.ack()

    def _bury(self, delivery: Delivery, error: InvalidMessage) -> None:
        logger.warning("dead-lettered", extra={"reason": str(error)})
        self._publisher.publish(
            delivery.body, DEAD, headers=buried_because(str(error)), timeout_seconds=PUBLISH_SECONDS
        )
        delivery.ack()

    def _on_event(self, message: AnyMessage) -> None:
        match message:
            case StartFederation():
                self._discover_at = float("-inf")  # in case the store is out
                if not self._is_resting:
                    self._meet(message.federation)
            case EvalReady():
                self._look_for_evaluation(message.federation, message.version)
            case JobFacts():
                self._on_fact(message)
            case _:
                logger.warning("unexpected message", extra={"kind": message.kind})

    def _on_fact(self, fact: JobFacts) -> None:
        if self._fleet.is_ahead(fact) and not self._is_resting:
            self._meet(fact.federation)
        if self._fleet.heard(fact, self._clock()):
            if isinstance(fact, JobFailed):
                metrics.jobs_failed.inc()
                extra = {**_fields(fact), "error": fact.error}
                logger.warning("a trainer reported a failure", extra=extra)
            elif isinstance(fact, JobReleased):
                metrics.jobs_released.inc()
                logger.info("a job was handed back", extra={**_fields(fact), "why": fact.reason})

    def _on_model_ready(self, hint: ModelReady) -> None:
        """Read what it names and nothing else: trainers are waiting for the next jobs."""
        known = self._fleet.federations.get(hint.federation)
        if known is None or not known.is_current or hint.n <= known.n or self._is_resting:
            return
        try:
            self._accept(known, manifests.read(self._store, hint.federation, hint.n).manifest)
        except (NotFound, InvalidInput) as error:
            self._trouble(hint.federation, error)  # the next reconcile will see what there is

    # -- look -----------------------------------------------------------------------------------

    def _resume(self) -> None:
        """A start, or a gap in what was heard: ask every trainer what it holds, look everywhere."""
        logger.info("acting", extra={"epoch": self._epoch})
        self._fleet.gap()
        self._publish(RollCall(), BROADCAST)
        self._has_gap, self._unseen, self._must_see_all = False, None, True
        self._reconcile_at = self._discover_at = float("-inf")

    def _reconcile(self, *, is_idle: bool) -> None:
        """Look at every federation and queue; over several turns, so that nobody waits for it."""
        if self._unseen is None:
            self._unseen = deque(self._looks())
        until = self._clock() + (LOOK_SECONDS if is_idle else 0.0)
        while self._unseen:
            self._beat()
            self._unseen[0]()
            self._unseen.popleft()  # after an outage the same one is tried again
            if self._unseen and self._clock() >= until and not self._must_see_all:
                return
        self._unseen, self._must_see_all = None, False
        counts = {pool: self._publisher.counts(jobs_queue(pool).name) for pool in self._fleet.pools}
        self._fleet.counted(counts, self._clock())
        metrics.dead_letters_waiting.set(self._publisher.counts(DEAD_QUEUE.name)[0])
        if self._publisher.counts(EVENTS_QUEUE.name)[0] == 0:
            self._fleet.drained(self._clock())
        # From its end on: one that takes long must leave time for the messages.
        self._reconcile_at = self._clock() + self._settings.reconcile_interval_seconds
        self._show()

    def _looks(self) -> Iterator[Callable[[], None]]:
        """At new federations, where that is due, and at those that are known."""
        if self._clock() >= self._discover_at:
            folders = set(filter(ID.fullmatch, self._store.folders()))
            self._discover_at = self._clock() + self._settings.discover_interval_seconds
            for federation in self._troubles.keys() - folders:
                del self._troubles[federation]
            for federation in sorted(folders):
                yield partial(self._discover, federation)
        for known in self._fleet.federations.values():
            if not known.needs_nothing:
                yield partial(self._observe_again, known)

    def _discover(self, federation: str) -> None:
        """Meet it if it is new, or was deleted and submitted again under the same id."""
        known, submission = self._fleet.federations.get(federation), self._spec_of(federation)
        if submission and (known is None or known.submission.uid != submission.uid):
            self._begin(submission)

    def _observe_again(self, known: Known) -> None:
        if self._fleet.federations.get(known.id) is known:
            self._observe(known)

    def _meet(self, federation: str) -> None:
        """Read a federation's spec.json, and what became of it so far."""
        submission = self._spec_of(federation)
        if submission is not None:
            self._begin(submission)

    def _begin(self, submission: Submitted) -> None:
        federation = submission.federation
        if submission.uid in self._gone and manifests.newest(self._store, federation) is None:
            return  # somebody deletes it, and would not want it to be born again
        self._gone.discard(submission.uid)
        self._fleet.submitted(submission)
        self._observe(self._fleet.federations[federation])

    def _spec_of(self, federation: str) -> Submitted | None:
        try:
            submission = manifests.submitted(self._store, federation)
            if submission.federation != federation:
                raise InvalidInput(f"{keys.spec(federation)}: it names {submission.federation}")
        except NotFound:
            self._troubles.pop(federation, None)  # whatever it was, it is deleted
            return None
        except InvalidInput as error:
            self._trouble(federation, error)
            return None
        return submission

    def _observe(self, known: Known) -> None:
        try:
            if not known.is_current:
                found = bucket.evaluations(self._store, known.id, known=known.evaluations)
                for evaluation in found:
                    self._beat()
                    self._fleet.evaluated(known.id, evaluation)
            if known.stop_request is None and known.is_alive:
                reason = bucket.stop_reason(self._store, known.id)
                if reason is not None:
                    self._fleet.stop_requested(known.id, reason)
            newest = manifests.newest(self._store, known.id, known=max(known.n, manifests.FIRST))
            if newest is not None:
                self._accept(known, newest.manifest)
            elif known.value is not None or self._spec_of(known.id) is None:
                self._lose(known)
                return
            else:
                self._fleet.unborn(known.id, self._clock())
            self._troubles.pop(known.id, None)
        except (InvalidInput, NotFound) as error:
            self._trouble(known.id, error)

    def _lose(self, known: Known) -> None:
        """Its folder was deleted, or is being so: nothing of it can be decided any more."""
        self._fleet.gone(known.id)
        submission = self._spec_of(known.id)
        if submission is not None and submission.uid == known.submission.uid:
            self._gone.add(known.submission.uid)
            self._trouble(known.id, NotFound(f"{known.id}: it has a spec.json and no manifests"))
        else:
            logger.warning("a federation was deleted", extra={"federation": known.id})

    def _accept(self, known: Known, manifest: Manifest) -> None:
        if manifest.uid != known.submission.uid:
            raise InvalidInput(f"{known.id}: manifest {manifest.n} belongs to uid {manifest.uid}")
        value = bucket.value_of(self._store, known.submission, known.value, manifest)
        self._fleet.manifest(value, manifest, self._clock())

    def _look_for_evaluation(self, federation: str, version: int) -> bool:
        if federation not in self._fleet.federations or self._is_resting:
            return False
        evaluation = bucket.evaluation(self._store, federation, version)
        if evaluation is None:
            return False
        self._fleet.evaluated(federation, evaluation)
        return True

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
                self._do(action, now)
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
            case Look():
                self._look(action, now)
            case FindModel(federation, (_, _, version, _)):
                try:
                    model = history.find_model(self._store, federation, version)
                    self._fleet.model_found(action, model)
                except (NotFound, InvalidInput) as error:
                    self._trouble(federation, error)
                    self._fleet.model_found(action, None)
            case RecordFailure(federation, version, error):
                reach("scheduler.before_evaluation_failure")
                body = bucket.evaluation_failure(version, error, at=self._unix_clock())
                with suppress(AlreadyExists):  # a trainer did it after all
                    self._store.create(keys.evaluation(federation, version), body)
                self._look_for_evaluation(federation, version)

    def _look(self, look: Look, now: float) -> None:
        """See in the bucket whether the work is finished, before anything is said about it."""
        submission = self._fleet.federations[look.federation].submission
        _, task, first, generation = look.work
        update, has_initial_model = None, False
        if task == "evaluate" and self._look_for_evaluation(look.federation, first):
            return
        if task == "train":
            update = bucket.delivered_update(self._store, submission, first, generation)
        elif task == "init":
            has_initial_model = bucket.has_initial_model(self._store, look.federation)
        reach("scheduler.looked")
        has_expired = self._fleet.looked(
            look, now, update=update, has_initial_model=has_initial_model
        )
        if has_expired:
            metrics.lease_expired.inc()
            extra = {"federation": look.federation, "task": task, "job": f"{first}-{generation}"}
            logger.warning("a lease expired", extra=extra)

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

    def _trouble(self, federation: str, error: FedfaError) -> None:
        if self._troubles.get(federation) != str(error):
            self._troubles[federation] = str(error)
            logger.error("trouble with the bucket", extra={"reason": str(error)})

    def _show(self) -> None:
        metrics.show(self._fleet)
        listed = status.federations(self._fleet, self._clock(), troubles=self._troubles)
        self._shown = (status.open_jobs(self._fleet), listed)

    def notice(self, submitted: Submitted) -> None:
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
