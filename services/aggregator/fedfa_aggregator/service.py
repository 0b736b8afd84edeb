"""The aggregator's loop: receive, decide, commit, answer, and only then acknowledge.

The manifest's conditional create is the only moment that counts. Before it, a crash leaves the
messages with the broker; after it, a redelivered message finds its job closed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedfa import ledger as ledgers
from fedfa import manifests
from fedfa.broker import Consumer, Delivery
from fedfa.errors import (
    Fenced,
    InvalidMessage,
    StoreUnavailable,
    Unavailable,
)
from fedfa.failpoints import reach
from fedfa.ledger import Ledger
from fedfa.messages import (
    AbandonJob,
    AnyMessage,
    InitReady,
    ModelReady,
    UpdateReady,
)
from fedfa.observability import Pulse
from fedfa.store import ObjectStore, require_answer
from fedfa.topology import BROADCAST, DEAD, Route, buried_because
from fedfa_aggregator import metrics
from fedfa_aggregator.births import Decidable, Undecidable, birth
from fedfa_aggregator.deciding import Ahead, Batch, Judge, Mail
from fedfa_aggregator.loading import Loader, Postponed
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.views import Views

logger = logging.getLogger(__name__)

Publish = Callable[[AnyMessage | bytes, Route, dict[str, str]], None]
FENCED_AGAIN_SECONDS = 60.0


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
        reader: Reader,
        views: Views,
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
        self._reader = reader
        self._views = views
        self._loader = Loader(store, reader, views, read_all=read_all, beat=beat)
        self._judge = Judge(store, reader)
        self._fenced_at = float("-inf")
        self._set_aside: dict[str, StoreUnavailable] = {}  # federations and keys of updates

    def serve(self, deliveries: Sequence[Delivery]) -> None:
        """Answer a backlog, federation by federation, each in order of arrival.

        Raises Unavailable in an outage, also of a single object, when all is answered that does
        not need it; and Fenced at the second lost commit within a minute. What was not
        acknowledged then comes again.
        """
        reach("aggregator.received")
        self._set_aside.clear()
        mails: dict[str, deque[Mail]] = {}
        for delivery in deliveries:
            if mail := self._open(delivery):
                mails.setdefault(mail.message.federation, deque()).append(mail)
        for federation, queue in mails.items():
            try:
                while queue:
                    self._serve_batch(federation, queue)
            except StoreUnavailable as error:
                self._go_on_without(federation, error)
        if self._set_aside:
            raise next(iter(self._set_aside.values()))

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
            ledger = self._loader.view(federation, queue[0].message.uid)
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
            self._loader.keep(ledger)
            metrics.observe(batch.decisions)
            self._log(ledger, batch)
            self._tend(ledger)
            reach("aggregator.committed")
            self._announce(ledger, batch)
            reach("aggregator.published")
        for mail in batch.answered:
            mail.delivery.ack()
            reach("aggregator.acked")
        if ledger is not None and batch.is_commit:
            manifests.move_head(self._store, ledger.head.manifest)

    def _fill(
        self, ledger: Ledger | None, batch: Batch, federation: str, queue: deque[Mail]
    ) -> Ledger | None:
        """Decide mail into the batch. Returns the ledger to commit on (a birth commits itself)."""
        while queue and not batch.is_complete:
            self._beat()
            mail = queue.popleft()
            message = mail.message
            if isinstance(message, UpdateReady) and message.key in self._set_aside:
                mail.delivery.ack()  # a copy: the other one comes again
                continue
            try:
                if ledger is None:
                    ledger = birth(
                        self._store,
                        self._loader.submission(federation),
                        message,
                        views=self._views,
                        writer=self._writer,
                        now=self._clock(),
                    )
                    batch.is_complete = batch.is_birth = True
                elif self._may_be_stale(ledger, message):
                    _begin_again(queue, batch, mail)
                    return None
                elif message.uid == ledger.submission.uid:
                    self._judge.decide(ledger, batch, message)
            except Undecidable as error:
                self._bury(mail.delivery, str(error))
                continue
            except Ahead as error:
                assert ledger is not None, "only its own view can be behind"
                if self._loader.lags(ledger):
                    _begin_again(queue, batch, mail)
                    return None
                if not self._judge.refuse(batch, message, str(error)):
                    self._bury(mail.delivery, str(error))
                    continue
            except StoreUnavailable as error:
                what = message.key if isinstance(message, UpdateReady) else federation
                self._go_on_without(what, error)
                continue
            except Fenced:
                queue.appendleft(mail)
                raise
            finally:
                if isinstance(message, UpdateReady):
                    self._reader.passed(message)
            batch.answered.append(mail)
        return ledger

    def _may_be_stale(self, ledger: Ledger, message: Decidable | InitReady) -> bool:
        """Whether this message would be decided by a view that the bucket has left behind.

        Its folder may be another federation's by now, of the same name, whose log nobody else may
        write. An update's own file says that it is not.
        """
        is_own = isinstance(message, UpdateReady) and message.uid == ledger.submission.uid
        return not is_own and self._loader.lags(ledger)

    def _go_on_without(self, what: str, error: StoreUnavailable) -> None:
        """The store gave no answer for one object: what needs it stays unacknowledged."""
        self._beat()
        require_answer(self._store)
        self._set_aside[what] = error

    def _log(self, ledger: Ledger, batch: Batch) -> None:
        if not batch.is_commit:
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
        reach("aggregator.buried")
        delivery.ack()

    def _postpone(self, queue: deque[Mail], reason: str) -> None:
        """Let them go: nothing is lost, for the scheduler sends what is undecided every lease."""
        extra = {"reason": reason, "messages": len(queue)}
        logger.error("a federation cannot be served", extra=extra)
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


def _begin_again(queue: deque[Mail], batch: Batch, mail: Mail) -> None:
    """The next batch decides all of this one's mail by what the bucket shows."""
    queue.extendleft(reversed([*batch.answered, mail]))
    batch.answered.clear()


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
            require_answer(store)
            return
        except StoreUnavailable:
            sleep(1.0)
