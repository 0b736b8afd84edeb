"""Deliveries as an iterator, acks from any thread, and the ways to have fewer deliveries."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from fedfa import messages
from fedfa.broker.connection import (
    ACCESS_REFUSED,
    DELETED_SECONDS,
    SETTLE_SECONDS,
    TURN_SECONDS,
    Link,
    closed_reason,
    declare_queue,
    require_queue,
)
from fedfa.errors import BrokerUnavailable
from fedfa.messages import AnyMessage
from fedfa.settings import BrokerSettings
from fedfa.topology import DEAD_QUEUE, Queue

logger = logging.getLogger(__name__)

STANDBY_SECONDS = 2.0  # between two tries to consume a queue that another consumer holds
MISSING_SECONDS = 2.0  # before the first look for a queue that was missing; then twice as long


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message of one queue (its topology name). Unless acked, it is delivered again."""

    body: bytes
    queue: str
    headers: Mapping[str, Any]
    redelivered: bool
    _ack: Callable[[], None]
    _hand_back: Callable[[], None]

    def message(self) -> AnyMessage:
        """Decode the body; InvalidMessage if it is not one of ours."""
        return messages.decode(self.body)

    def ack(self) -> None:
        """Let the broker forget the message. From any thread; without effect after a gap."""
        self._ack()


class Consumer(Link):
    """Iterate for deliveries, and for None whenever there was nothing for `idle_seconds`.

    queues: (queue, prefetch) each. `epoch` counts how often consuming began: it is greater after
    a gap. While `is_standby`, another consumer holds an exclusive queue, and this one waits.
    Without the right to declare queues, one that is missing beside others is consumed as soon as
    it is there; an exclusive one never is beside others, for it says which of several acts.
    heard is told of each delivery as it arrives, in the connection's thread: it must neither
    block nor raise.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        queues: Sequence[tuple[Queue, int]],
        *,
        name: str,
        idle_seconds: float = 0.2,
        heard: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        super().__init__(settings, f"{name}-consume")
        self.epoch = 0
        self.is_standby = False
        self._queues = {queue.name: (queue, prefetch) for queue, prefetch in queues}
        self._idle_seconds = idle_seconds
        self._heard = heard
        self._arrived = threading.Condition(self._lock)
        self._inbox: deque[Delivery] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._paused: set[str] = set()
        self._is_suspended = False
        self._must_give_back = False  # deliveries were dropped: close the channel to return them
        self._is_stopped = False
        self._has_ended = False
        # the thread's own: its channel, {queue: name at the broker} and {queue: consumer tag}
        self._channel: BlockingChannel | None = None
        self._actual: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._missing: set[str] = set()
        self._was_cancelled = False
        self._is_registered = False  # not while an exclusive queue may still be refused
        self._thread.start()

    def __iter__(self) -> Iterator[Delivery | None]:
        while not self._is_stopped:
            yield self._next()

    @property
    def is_consuming(self) -> bool:
        """Registered for every queue that is there, on an open channel: what readiness means."""
        channel = self._channel
        return channel is not None and channel.is_open and self._is_registered

    def ready(self) -> list[Delivery]:
        """What has arrived and was not handed out yet, without waiting: a backlog."""
        with self._lock:
            backlog = list(self._inbox)
            self._inbox.clear()
        return backlog

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def stop(self) -> None:
        """End the iteration. Only sets a flag, so that a signal handler may call it."""
        self._is_stopped = True

    def close(self) -> None:
        """Cancel, send the acks, close; what is not acked goes back to the broker."""
        self._is_stopped = True
        self._finish()

    def pause(self, queue_name: str) -> None:
        """Deliver nothing more of this queue. In order with acks: pause first, then ack."""
        with self._lock:
            self._paused.add(queue_name)
            self._commands.append(partial(self._consume_or_cancel, queue_name))
            returned = [delivery for delivery in self._inbox if delivery.queue == queue_name]
            self._commands.extend(delivery._hand_back for delivery in returned)
            self._inbox = deque(each for each in self._inbox if each.queue != queue_name)
        self._wake()

    def resume(self, queue_name: str) -> None:
        with self._lock:
            self._paused.discard(queue_name)
            self._commands.append(partial(self._consume_or_cancel, queue_name))
        self._wake()

    def suspend(self) -> None:
        """Give back everything that is not acked, and consume nothing until unsuspend()."""
        with self._lock:
            self._is_suspended = True
            self._must_give_back = True
            self._inbox.clear()
        self._wake()

    def unsuspend(self) -> None:
        self._is_suspended = False
        self._wake()

    def _next(self) -> Delivery | None:
        with self._lock:
            if not self._inbox and not self._has_ended:
                self._arrived.wait(self._idle_seconds)
            if self._inbox:
                return self._inbox.popleft()
            if self._has_ended and not self._closing.is_set():
                raise self._fatal or BrokerUnavailable(f"{self.name} ended: {self._trouble}")
            return None

    # -- in the thread ----------------------------------------------------------------------

    def _serve(self, connection: BlockingConnection) -> None:
        while not self._closing.is_set():
            if self._is_suspended:
                connection.process_data_events(time_limit=TURN_SECONDS)
                continue
            try:
                self._consume(connection)
            except ChannelClosedByBroker as error:
                if not _is_held_by_another(error):
                    raise
                self._stand_by(connection)
            finally:
                with self._lock:
                    self._is_registered = False
                    self._channel = None
                    self._inbox.clear()

    def _consume(self, connection: BlockingConnection) -> None:
        with self._must_answer(connection, f"consume {', '.join(self._queues)}"):
            channel = self._register(connection)
        looked_at, wait = time.monotonic(), MISSING_SECONDS
        while channel.is_open and not self._was_cancelled:
            if self._closing.is_set() or self._must_give_back or self._is_suspended:
                self._wind_down(connection, channel)
                return
            connection.process_data_events(time_limit=TURN_SECONDS)
            self._run_commands(connection)
            if self._missing and time.monotonic() - looked_at > wait:
                with self._must_answer(connection, "look for missing queues"):
                    self._consume_what_is_there(connection, channel)
                # The broker logs each look at a queue that it does not have.
                looked_at, wait = time.monotonic(), 2 * wait
                wait = min(wait, self._settings.reconnect_max_seconds)
        if self._was_cancelled:  # the queue was deleted: let all its consumers hear of it first
            connection.sleep(DELETED_SECONDS)
        # pika raises nothing when the broker closes a channel or cancels a consumer
        what = "cancelled the consumer" if self._was_cancelled else "closed the channel"
        raise BrokerUnavailable(f"the broker {what}{closed_reason(channel)}")

    def _register(self, connection: BlockingConnection) -> BlockingChannel:
        channel = connection.channel()
        channel.add_on_cancel_callback(self._on_cancelled)
        self._was_cancelled = False
        self._must_give_back = False  # the new channel has delivered nothing yet
        self._actual.clear()
        self._tags.clear()
        self._channel = channel
        if self._settings.declare:
            declare_queue(channel, DEAD_QUEUE)  # a trainer may not, and its dead letter would wait
        self._consume_what_is_there(connection, channel)
        self.is_standby = False
        self.epoch += 1
        self._is_registered = True
        self._up()
        return channel

    def _consume_what_is_there(
        self, connection: BlockingConnection, channel: BlockingChannel
    ) -> None:
        for name, (queue, _) in self._queues.items():
            if name in self._actual:
                continue
            actual = require_queue(connection, channel, queue, self._settings)
            if actual is not None:
                self._actual[name] = actual
            elif queue.exclusive:
                raise BrokerUnavailable(f"nobody has declared {name} yet")
        missing = {name for name in self._queues if name not in self._actual}
        if not self._actual:
            raise BrokerUnavailable(f"nobody has declared {', '.join(missing)} yet")
        if missing != self._missing:
            self._missing = missing
            text = (
                "waiting for queues that nobody has declared" if missing else "all queues are there"
            )
            logger.info(text, extra={"connection": self.name, "queues": sorted(missing)})
        for name in self._actual:
            self._consume_or_cancel(name)

    def _stand_by(self, connection: BlockingConnection) -> None:
        if not self.is_standby:
            logger.info("standing by", extra={"connection": self.name})
        self.is_standby = True
        self._was_up = True
        self._failures = 0
        deadline = time.monotonic() + STANDBY_SECONDS
        while not self._closing.is_set() and time.monotonic() < deadline:
            connection.process_data_events(time_limit=STANDBY_SECONDS)

    def _wind_down(self, connection: BlockingConnection, channel: BlockingChannel) -> None:
        with self._must_answer(connection, "cancel"):
            for tag in self._tags.values():
                channel.basic_cancel(tag)
        self._run_commands(connection)
        connection.sleep(SETTLE_SECONDS)
        channel.close()

    def _run_commands(self, connection: BlockingConnection) -> None:
        if self._commands:
            with self._must_answer(connection, "acks, pause or resume"):
                while self._commands:
                    self._commands.popleft()()

    def _consume_or_cancel(self, name: str) -> None:
        """Make the broker's view of one queue what pause() and resume() asked for last."""
        channel, tag = self._channel, self._tags.get(name)
        if channel is None or name not in self._actual:
            return
        if name in self._paused and tag is not None:
            del self._tags[name]
            channel.basic_cancel(tag)
        elif name not in self._paused and tag is None:
            queue, prefetch = self._queues[name]
            channel.basic_qos(prefetch_count=prefetch, global_qos=False)  # of the next consumer
            self._tags[name] = channel.basic_consume(
                self._actual[name], partial(self._on_message, name), exclusive=queue.exclusive
            )

    def _on_message(
        self, name: str, channel: BlockingChannel, method: Any, properties: Any, body: bytes
    ) -> None:
        tag = method.delivery_tag
        delivery = Delivery(
            body=body,
            queue=name,
            headers=properties.headers or {},
            redelivered=method.redelivered,
            _ack=partial(self._command, partial(self._settle, channel, channel.basic_ack, tag)),
            _hand_back=partial(self._settle, channel, channel.basic_nack, tag),
        )
        with self._lock:
            if name in self._paused:
                self._commands.append(delivery._hand_back)
            elif self._is_suspended or self._must_give_back:
                self._must_give_back = True
            else:
                self._heard(delivery)
                self._inbox.append(delivery)
                self._arrived.notify()

    def _on_cancelled(self, frame: object) -> None:
        self._was_cancelled = True

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake()

    def _settle(
        self, channel: BlockingChannel, settle: Callable[[int], None], delivery_tag: int
    ) -> None:
        """Ack, or nack (which requeues), unless the broker has taken the message back already."""
        current = self._channel
        if current is not None and current is channel and current.is_open:
            settle(delivery_tag)

    def _ended(self) -> None:
        with self._lock:
            self._has_ended = True
            self._arrived.notify_all()


def _is_held_by_another(error: ChannelClosedByBroker) -> bool:
    return error.reply_code == ACCESS_REFUSED and "in exclusive use" in error.reply_text
