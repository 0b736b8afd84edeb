"""The aggregator's loop: receive, decide, commit, answer, and only then acknowledge.

The manifest's conditional create is the only moment that counts. Before it, a crash leaves the
messages with the broker; after it, a redelivered message finds its job closed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fedfa import ledger as ledgers
from fedfa import manifests
from fedfa.broker import Consumer, Delivery
from fedfa.errors import (
    FedfaError,
    Fenced,
    InvalidInput,
    InvalidMessage,
    NotFound,
    StoreUnavailable,
    Unavailable,
)
from fedfa.events import Abandoned, Decision, Job, PoolChanged, Rejected, Stopped
from fedfa.failpoints import reach
from fedfa.federation import Federation, is_evaluation_due
from fedfa.history import find_model
from fedfa.ledger import Ledger
from fedfa.manifests import Birth
from fedfa.messages import (
    AbandonJob,
    AnyMessage,
    InitReady,
    MarkPool,
    ModelReady,
    StopFederation,
    UpdateReady,
)
from fedfa.observability import Pulse
from fedfa.replica import Replica, decide, merge, needs_base
from fedfa.retention import is_milestone
from fedfa.spec import Submitted
from fedfa.store import ObjectStore
from fedfa.tensors import FlatModel
from fedfa.topology import BROADCAST, DEAD, Route, buried_because
from fedfa_aggregator import metrics
from fedfa_aggregator.births import Decidable, Undecidable, birth
from fedfa_aggregator.inspection import Fetched, update_of
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.views import Views, default_memory_bytes

logger = logging.getLogger(__name__)

Publish = Callable[[AnyMessage | bytes, Route, dict[str, str]], None]
FENCED_AGAIN_SECONDS = 60.0


class Postponed(FedfaError):
    """Raised where a federation's models do not fit into this aggregator's memory."""


class Ahead(FedfaError):
    """Raised when a message knows more than this view of its federation."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A decoded message and the delivery to acknowledge."""

    message: Decidable | InitReady
    delivery: Delivery


@dataclass(slots=True)
class Batch:
    """Decisions that will share one commit, and the mail they answer."""

    replica: Replica | None
    decisions: list[Decision] = field(default_factory=list)
    answered: list[Mail] = field(default_factory=list)
    is_complete: bool = False
    is_birth: bool = False


class Aggregator:
    """Serves any number of federations. Holds nothing that the bucket does not.

    tend is told of every federation that is served, for its retention; beat, of every message.
    clock gives unix seconds, for the manifests' information only; monotonic times fencings.
    """

    def __init__(
        self,
        store: ObjectStore,
        publish: Publish,
        *,
        writer: str,
        reader: Reader | None = None,
        views: Views | None = None,
        read_all: ledgers.ReadAll = map,
        tend: Callable[[Ledger], None] = lambda _: None,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tend = tend
        self._beat = beat
        self._publish = publish
        self._writer = writer
        self._clock = clock
        self._monotonic = monotonic
        self._reader = reader or Reader(store)
        self._views = views or Views(memory_bytes=default_memory_bytes())
        self._read_all = read_all
        self._fenced_at = float("-inf")

    def serve(self, deliveries: Sequence[Delivery]) -> None:
        """Answer a backlog, federation by federation, each in order of arrival.

        Raises Unavailable in an outage, and Fenced at the second lost commit within a minute;
        what was not acknowledged then comes again.
        """
        reach("aggregator.received")
        mails: dict[str, deque[Mail]] = {}
        for delivery in deliveries:
            if mail := self._open(delivery):
                mails.setdefault(mail.message.federation, deque()).append(mail)
        for federation, queue in mails.items():
            while queue:
                self._serve_batch(federation, queue)

    def forget(self) -> None:
        """Drop every view; the bucket is read again when a message needs it."""
        self._reader.forget()
        self._views.clear()

    def rest(self) -> None:
        """There is no message; what was heard of and never came is read ahead no longer."""
        self._reader.forget()

    def _open(self, delivery: Delivery) -> Mail | None:
        try:
            message = delivery.message()
        except InvalidMessage as error:
            self._bury(delivery, str(error))
            return None
        if not isinstance(message, Decidable | InitReady):
            self._bury(delivery, f"{message.kind}: nothing that an aggregator decides")
            return None
        return Mail(message, delivery)

    def _serve_batch(self, federation: str, queue: deque[Mail]) -> None:
        """Take mail until something must be committed, commit it, answer, acknowledge."""
        try:
            ledger = self._view(federation, queue[0].message.uid)
        except Undecidable as error:
            self._bury(queue.popleft().delivery, str(error))
            return
        except Postponed as error:
            self._postpone(queue, str(error))
            return
        batch = Batch(ledger.replica if ledger else None)
        if ledger is not None:  # the batch has the vectors alone: what it replaces makes room
            self._views.drop(federation)
            ledger = replace(ledger, replica=None)
        try:
            ledger = self._fill(ledger, batch, federation, queue)
            if batch.decisions and ledger and batch.replica:
                reach("aggregator.decided")
                with metrics.commit_seconds.time():
                    ledger = ledgers.commit(
                        self._store,
                        ledger,
                        batch.replica,
                        tuple(batch.decisions),
                        writer=self._writer,
                        now=self._clock(),
                    )
            elif ledger is not None and not batch.is_birth:
                ledger = replace(ledger, replica=batch.replica)
        except (Fenced, StoreUnavailable) as error:
            self._views.drop(federation)  # whatever this view is, it may be wrong now
            queue.extendleft(reversed(batch.answered))
            if isinstance(error, StoreUnavailable):
                raise
            self._fenced(error)
            return
        if ledger is not None:
            self._keep(ledger)
            metrics.observe(batch.decisions)
            self._log(ledger, batch)
            self._tend(ledger)
            reach("aggregator.committed")
            self._announce(ledger, batch)
            reach("aggregator.published")
        for mail in batch.answered:
            mail.delivery.ack()
            reach("aggregator.acked")

    def _fill(
        self, ledger: Ledger | None, batch: Batch, federation: str, queue: deque[Mail]
    ) -> Ledger | None:
        """Decide mail into the batch. Returns the ledger to commit on (a birth commits itself)."""
        while queue and not batch.is_complete:
            self._beat()
            mail = queue.popleft()
            try:
                if ledger is None:
                    ledger = birth(
                        self._store,
                        self._submission(federation),
                        mail.message,
                        views=self._views,
                        writer=self._writer,
                        now=self._clock(),
                    )
                    batch.is_complete = batch.is_birth = True
                elif mail.message.uid == ledger.submission.uid:
                    self._decide(ledger, batch, mail.message)
            except Undecidable as error:
                self._bury(mail.delivery, str(error))
                continue
            except Ahead as error:
                if batch.decisions or batch.answered:  # first answer what is decided already
                    queue.appendleft(mail)
                    return ledger
                assert ledger is not None, "only its own view can be behind"
                if not self._lags(ledger):
                    self._bury(mail.delivery, str(error))
                    continue
                queue.appendleft(mail)
                return None  # the next batch begins with what the bucket shows
            except (Fenced, StoreUnavailable):
                queue.appendleft(mail)
                raise
            finally:
                if isinstance(mail.message, UpdateReady):
                    self._reader.passed(mail.message)
            batch.answered.append(mail)
        return ledger

    def _decide(self, ledger: Ledger, batch: Batch, message: Decidable | InitReady) -> None:
        """Decide one message into the batch; a late one or a duplicate changes nothing."""
        replica = batch.replica
        if replica is None or isinstance(message, InitReady):
            return  # over, or born already
        federation = replica.federation
        if isinstance(message, StopFederation):
            version = federation.state.version
            if message.final_version is not None and message.final_version > version:
                raise Ahead(f"final_version {message.final_version}, the newest is {version}")
            final = version if message.final_version is None else message.final_version
            decided = decide(replica, Stopped(message.status, message.reason, final))
        elif isinstance(message, MarkPool):
            num_changes = federation.num_changes(message.pool)
            if message.change <= num_changes:
                return
            if message.change > num_changes + 1:
                raise Ahead(f"change {message.change} of {message.pool}, the last is {num_changes}")
            decided = decide(replica, PoolChanged(message.pool, message.change, message.outcome))
        else:
            job = Job(message.slot, message.generation)
            standing = federation.standing(job)
            if standing == "late":
                metrics.updates.labels(outcome="late").inc()
                return
            if standing == "ahead":
                raise Ahead(f"slot {job.slot} is not open for generation {job.generation}")
            if isinstance(message, AbandonJob):
                decided = decide(replica, Abandoned(job, message.reason))
            else:
                decided = self._decide_update(ledger, replica, message)
        after, decisions = decided
        batch.replica = after
        batch.decisions.extend(decisions)
        state = after.federation.state
        batch.is_complete = (
            len(batch.decisions) >= federation.spec.limits.max_batch
            or state.status != "running"
            or (
                state.version > federation.state.version
                and _needs_its_model(after.federation, state.version)
            )
        )

    def _decide_update(
        self, ledger: Ledger, replica: Replica, message: UpdateReady
    ) -> tuple[Replica, tuple[Decision, ...]]:
        if message.base_version > replica.version:
            raise Ahead(f"base_version {message.base_version}, the newest is {replica.version}")
        client = replica.federation.state.slots[message.slot].client
        if message.client != client:
            reason = f"client: {message.client:.60}, the job is open for {client}"
            return decide(
                replica, Rejected(update_of(message, digest=message.digest or ""), reason)
            )
        with self._reader.update(message, replica.model.template) as fetched:
            reach("aggregator.fetched")
            return self._judge(ledger, replica, fetched)

    def _judge(
        self, ledger: Ledger, replica: Replica, fetched: Fetched
    ) -> tuple[Replica, tuple[Decision, ...]]:
        update, vector, reason = fetched
        if vector is None:
            return decide(replica, Rejected(update, reason))
        base = None
        if needs_base(replica, update.base_version):
            try:
                base = self._base(ledger, update.base_version)
            except NotFound as error:
                return decide(replica, Rejected(update, f"base_version: {error}"))
        with metrics.merge_seconds.time():
            return merge(replica, update, vector, base=base)

    def _base(self, ledger: Ledger, version: int) -> FlatModel:
        """The model of an older version. Raises NotFound where that version never had one."""
        assert ledger.birth is not None, "it has a replica"
        model = find_model(self._store, ledger.submission.federation, version)
        try:
            return ledgers.read_model(self._store, model, ledger.birth.template)
        except (InvalidInput, NotFound) as error:  # retention keeps it: no fault of the update
            raise Undecidable(f"{model.key}: cannot be read back: {error}") from error

    def _view(self, federation: str, uid: str) -> Ledger | None:
        """This aggregator's view of a federation, read from the bucket where it has none."""
        ledger = self._views.get(federation)
        if ledger is not None and ledger.submission.uid == uid:
            if ledger.replica is not None:
                model_bytes = ledger.replica.model.floats.nbytes
                self._views.make_room(federation, ledger.submission.spec, model_bytes)
            return ledger
        return self._reload(federation)  # unknown, or deleted and submitted again

    def _lags(self, ledger: Ledger) -> bool:
        """Whether the bucket shows more than this view, or another federation of its name."""
        head, submission = ledger.head, ledger.submission
        try:
            if self._submission(submission.federation).uid != submission.uid:
                return True
        except Undecidable:
            return True
        newest = manifests.newest(self._store, submission.federation, known=head.manifest.n)
        return newest is None or newest.digest != head.digest

    def _reload(self, federation: str) -> Ledger | None:
        self._views.drop(federation)
        submission = self._submission(federation)

        def make_room(birth: Birth) -> None:
            model_bytes = birth.template.num_floats * 4
            reason = self._views.make_room(federation, submission.spec, model_bytes)
            if reason is not None:
                raise Postponed(f"{federation}: {reason}")

        def read_all(
            read: Callable[[ledgers.Stored], FlatModel], entries: Iterable[ledgers.Stored]
        ) -> Iterable[FlatModel]:
            def alive(entry: ledgers.Stored) -> FlatModel:
                vector = read(entry)
                self._beat()  # a large window takes longer than a turn may
                return vector

            return self._read_all(alive, entries)

        try:
            ledger = ledgers.load(
                self._store, submission, read_all=read_all, before_reading=make_room
            )
        except (InvalidInput, NotFound) as error:
            raise Undecidable(f"{federation}: cannot be read back: {error}") from error
        if ledger is not None:
            self._keep(ledger)
        return ledger

    def _keep(self, ledger: Ledger) -> None:
        self._views.keep(ledger)
        if ledger.replica is not None:
            self._reader.serves(ledger.submission.uid, ledger.replica.model.template)

    def _submission(self, federation: str) -> Submitted:
        try:
            return manifests.submitted(self._store, federation)
        except NotFound:
            raise Undecidable(f"federation {federation}: no such spec.json in the bucket") from None
        except InvalidInput as error:
            raise Undecidable(str(error)) from error

    def _log(self, ledger: Ledger, batch: Batch) -> None:
        if not (batch.decisions or batch.is_birth):
            return
        manifest = ledger.head.manifest
        extra = {
            "federation": manifest.federation,
            "n": manifest.n,
            "version": manifest.state.version,
            "status": manifest.state.status,
            "outcomes": [decision.event.outcome for decision in batch.decisions],
        }
        logger.info("committed", extra=extra)

    def _announce(self, ledger: Ledger, batch: Batch) -> None:
        """Tell everybody, also on duplicates: whoever missed it the first time hears it now."""
        manifest = ledger.head.manifest
        closed = {
            (mail.message.slot, mail.message.generation)
            for mail in batch.answered
            if isinstance(mail.message, UpdateReady | AbandonJob)
            and mail.message.uid == manifest.uid
        }
        ready = ModelReady(
            federation=manifest.federation,
            uid=manifest.uid,
            n=manifest.n,
            version=manifest.state.version,
            status=manifest.state.status,
            closed=tuple(sorted(closed)),
        )
        self._publish(ready, BROADCAST, {})

    def _bury(self, delivery: Delivery, reason: str) -> None:
        logger.warning("dead-lettered", extra={"reason": reason})
        metrics.dead_letters.inc()
        self._publish(delivery.body, DEAD, buried_because(reason))
        delivery.ack()

    def _postpone(self, queue: deque[Mail], reason: str) -> None:
        """Let them go: nothing is lost, for the scheduler sends what is undecided every lease."""
        logger.error("a federation does not fit", extra={"reason": reason, "messages": len(queue)})
        while queue:
            metrics.postponed.inc()
            queue.popleft().delivery.ack()

    def _fenced(self, error: Fenced) -> None:
        metrics.fenced.inc()
        now = self._monotonic()
        logger.warning("fenced", extra={"reason": str(error)})
        if now - self._fenced_at < FENCED_AGAIN_SECONDS:
            raise error
        self._fenced_at = now


def _needs_its_model(federation: Federation, version: int) -> bool:
    """Whether a version may not share its commit, because its very model will be asked for."""
    is_due = is_evaluation_due(federation, version)
    return is_due or is_milestone(federation.spec.retention, version)


def run(
    consumer: Consumer,
    aggregator: Aggregator,
    store: ObjectStore,
    pulse: Pulse,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Serve until the consumer is stopped. No delivery is held during an outage."""
    for delivery in consumer:
        pulse.beat()
        if delivery is None:
            aggregator.rest()
            continue
        try:
            aggregator.serve([delivery, *consumer.ready()])
        except Unavailable as error:
            logger.warning("an outage", extra={"reason": str(error)})
            consumer.suspend()
            aggregator.forget()
            _await_store(consumer, store, pulse, sleep)
            consumer.unsuspend()


def _await_store(
    consumer: Consumer, store: ObjectStore, pulse: Pulse, sleep: Callable[[float], None]
) -> None:
    while not consumer.is_stopped:
        pulse.beat()
        try:
            store.exists("HEAD.json")
            return
        except StoreUnavailable:
            sleep(1.0)
