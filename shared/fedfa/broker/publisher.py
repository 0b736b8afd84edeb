"""Confirmed publishing, in order, from any thread; and counts of queues, for the scheduler."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from fedfa import messages
from fedfa.broker.connection import (
    CLOSE_SECONDS,
    DELETED_SECONDS,
    FAILURES,
    NO_ANSWER,
    SETTLE_SECONDS,
    TURN_SECONDS,
    Link,
    closed_reason,
    counts,
    declare_exchange,
    declare_queue,
    endpoint,
    explain_channel,
)
from fedfa.errors import BrokerUnavailable, FedfaError, Misconfigured
from fedfa.messages import AnyMessage
from fedfa.settings import BrokerSettings
from fedfa.topology import Route, queue_of

NACK_SECONDS = 0.5  # between two tries to publish to a queue that takes no messages now

_Work = Callable[[BlockingConnection, BlockingChannel], Any]


@dataclass(eq=False)
class _Request:
    """What a caller waits for. One that is `given_up` is not tried (again)."""

    work: _Work
    what: str
    future: Future[Any] = field(default_factory=Future)
    given_up: bool = False


class Publisher(Link):
    """Publishes one message at a time, each confirmed by the broker, for any thread."""

    def __init__(self, settings: BrokerSettings, *, name: str) -> None:
        super().__init__(settings, f"{name}-publish")
        self._requests: deque[_Request] = deque()
        self._is_accepting = True
        self._is_drained = threading.Condition(self._lock)
        self._declared: set[str] = set()  # exchanges, on this connection
        self._thread.start()

    def publish(
        self,
        message: AnyMessage | bytes,
        route: Route,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Return once the broker has the message safe; until then try again across reconnects.

        Raises BrokerUnavailable after timeout_seconds (None: only when the publisher is closed);
        the message may have arrived all the same. A queue that nobody declared yet is declared
        here, so that no message goes nowhere.
        """
        body = message if isinstance(message, bytes) else messages.encode(message)
        properties = pika.BasicProperties(
            content_type="application/msgpack",
            delivery_mode=2,  # written to disk
            timestamp=int(time.time()),  # for people: how old a dead letter is
            headers=dict(headers) if headers else None,
        )
        work = partial(self._publish, body=body, route=route, properties=properties)
        where = f"{route.exchange} {route.routing_key}".rstrip()
        self._call(work, f"a message to {where}", timeout_seconds)

    def counts(self, queue_name: str, *, timeout_seconds: float = 10.0) -> tuple[int, int]:
        """(ready messages, consumers) of a queue; (0, 0) if there is no such queue."""
        work = partial(_count, queue_name=queue_name)
        ready, consumers = self._call(work, f"the counts of {queue_name}", timeout_seconds)
        return ready, consumers

    def close(self, flush_seconds: float = CLOSE_SECONDS) -> None:
        """Publish what other threads wait for, for a bounded time; then release them and close."""
        deadline = time.monotonic() + flush_seconds
        with self._lock:
            self._is_accepting = False
            while self._requests and (left := deadline - time.monotonic()) > 0:
                self._is_drained.wait(left)
        self._release(BrokerUnavailable(f"{self.name} is closed"))
        self._finish()

    def _call(self, work: _Work, what: str, timeout_seconds: float | None) -> Any:
        request = _Request(work, what)
        with self._lock:
            if self._fatal is not None:
                raise self._fatal
            if not self._is_accepting:
                raise BrokerUnavailable(f"{self.name} is closed")
            self._requests.append(request)
        self._wake()
        try:
            return request.future.result(timeout_seconds)
        except TimeoutError:
            request.given_up = True
            self._remove(request)  # an outage may last: a heartbeat a second adds up
            late = f"{what}: no confirm from {endpoint(self._settings)} in {timeout_seconds:g} s"
            raise BrokerUnavailable(f"{late}: {self._trouble}") from None

    # -- in the thread ----------------------------------------------------------------------

    def _serve(self, connection: BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        self._declared.clear()
        self._up()
        while not self._closing.is_set():
            while (request := self._first()) is not None:
                self._answer(request, connection, channel)
                self._remove(request)
            connection.process_data_events(time_limit=TURN_SECONDS)
            if not channel.is_open:  # pika raises nothing here
                raise BrokerUnavailable(f"the broker closed the channel{closed_reason(channel)}")
        connection.sleep(SETTLE_SECONDS)

    def _answer(
        self, request: _Request, connection: BlockingConnection, channel: BlockingChannel
    ) -> None:
        while not request.given_up:
            try:
                with self._must_answer(connection, request.what):
                    result = request.work(connection, channel)
            except NackError:  # a full queue, or one between two leaders
                self._trouble = "the broker takes no message for this queue now (nack)"
                connection.sleep(NACK_SECONDS)
            except ChannelClosedByBroker as error:
                # A refusal is the caller's; what a new connection may cure is tried again.
                explained = explain_channel(self._settings, error)
                if isinstance(explained, Misconfigured):
                    self._settle(request, error=explained)
                raise
            except Misconfigured as error:
                self._settle(request, error=error)
            except FAILURES:
                raise
            except Exception as error:  # it cannot be sent: not on another connection either
                self._settle(request, error=error)
                raise
            else:
                self._trouble = NO_ANSWER
                self._settle(request, result)

    def _publish(
        self,
        connection: BlockingConnection,
        channel: BlockingChannel,
        *,
        body: bytes,
        route: Route,
        properties: pika.BasicProperties,
    ) -> None:
        if self._settings.declare and route.exchange not in self._declared:
            declare_exchange(channel, route)
            self._declared.add(route.exchange)
        send = partial(
            channel.basic_publish,
            route.exchange,
            route.routing_key,
            body,
            properties,
            mandatory=route.kind != "fanout",  # without it, "nowhere" is confirmed too
        )
        try:
            send()
        except UnroutableError:
            queue = queue_of(route)
            if queue is None:
                raise Misconfigured(f"no queue is known for {route}") from None
            if not self._settings.declare:
                raise BrokerUnavailable(f"nobody has declared {queue.name} yet") from None
            connection.sleep(DELETED_SECONDS)
            declare_queue(channel, queue)
            send()

    def _first(self) -> _Request | None:
        with self._lock:
            return self._requests[0] if self._requests else None

    def _remove(self, request: _Request) -> None:
        with self._lock:
            with suppress(ValueError):  # released by close(), or given up
                self._requests.remove(request)
            if not self._requests:
                self._is_drained.notify_all()

    def _settle(
        self, request: _Request, result: object = None, error: Exception | None = None
    ) -> None:
        with self._lock:
            request.given_up = True  # whatever comes now, it is not tried again
            if request.future.done():
                return
            if error is not None:
                request.future.set_exception(error)
            else:
                request.future.set_result(result)

    def _release(self, error: FedfaError) -> None:
        with self._lock:
            while self._requests:
                self._settle(self._requests.popleft(), error=error)
            self._is_drained.notify_all()

    def _ended(self) -> None:
        with self._lock:
            self._is_accepting = False
            self._release(self._fatal or BrokerUnavailable(f"{self.name} ended: {self._trouble}"))


def _count(
    connection: BlockingConnection, channel: BlockingChannel, *, queue_name: str
) -> tuple[int, int]:
    return counts(connection, queue_name) or (0, 0)
