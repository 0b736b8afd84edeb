"""One connection to RabbitMQ, its thread, and what the broker's refusals mean.

A Link connects again for ever. A refusal (password, virtual host, permission) ends a process that
never was connected; later it counts as an outage, so that a broker that is being rebuilt costs
no training.
"""

import logging
import random
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.utils.connection_workflow import (
    AMQPConnectorException,
    AMQPConnectorStackTimeout,
)
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from fedfa.errors import BrokerUnavailable, FedfaError, Misconfigured
from fedfa.settings import BrokerSettings
from fedfa.topology import Queue, Route

logger = logging.getLogger(__name__)

# pika logs several errors with tracebacks for every failed try to connect, and a warning for each
# returned message. All of it reaches us as exceptions, which we log once, in one line.
logging.getLogger("pika").setLevel(logging.CRITICAL)

TURN_SECONDS = 1.0  # a thread looks at its channel at least this often
# Right before a close a quorum queue ignores about a quarter of the latest acks.
SETTLE_SECONDS = 0.3
# All consumers must know of a queue's deletion before it is declared again: RabbitMQ 3.10 delivers
# nothing to one that learns of it after that.
DELETED_SECONDS = 0.5
CLOSE_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.5
CONNECT_SECONDS = 10.0
CHECK_AGAIN_SECONDS = 0.5
NO_ANSWER = "connected, but the broker does not answer"
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, NOT_ALLOWED = 403, 404, 406, 530
# What pika makes of any end of a connection before it is open. If the broker gave a reason, only
# its text is left: without one this is no refusal.
GUESSES = (ProbableAuthenticationError, ProbableAccessDeniedError)
CLOSE = ConnectionClosedByBroker.__name__
FAILURES = (AMQPError, AMQPConnectorException, OSError, BrokerUnavailable)
_TCP_OPTIONS = {
    name: value
    for name, value in {
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 60_000,  # milliseconds
    }.items()
    if hasattr(socket, name)  # not every system has all of them
}


def check(settings: BrokerSettings, timeout_seconds: float) -> str:
    """Connect once and return the broker's version.

    Raises BrokerUnavailable when it cannot be reached in time, Misconfigured when it refuses.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            connection = connect(settings, "check", min(timeout_seconds, CONNECT_SECONDS))
        except BrokerUnavailable as error:
            if time.monotonic() + CHECK_AGAIN_SECONDS > deadline:
                remedy = "start RabbitMQ there, or set FEDFA_AMQP_URL to where it runs"
                raise BrokerUnavailable(f"{error}; {remedy}") from error
            time.sleep(CHECK_AGAIN_SECONDS)
        else:
            # pika's blocking connection has no public way to what the broker said of itself
            version = connection._impl.server_properties["version"]
            connection.close()
            return version.decode() if isinstance(version, bytes) else str(version)


class Link(ABC):
    """One connection and the daemon thread that owns it, connecting again whenever it is lost.

    Other threads leave work in a deque and wake the thread; none of them touches pika's objects.
    """

    def __init__(self, settings: BrokerSettings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None
        self._closing = threading.Event()
        self._was_up = False
        self._failures = 0
        self._trouble = "not connected yet"  # the last failure, for whoever gives up waiting
        self._fatal: Misconfigured | None = None
        self._thread = threading.Thread(target=self._run, name=f"amqp-{name}", daemon=True)

    @abstractmethod
    def _serve(self, connection: BlockingConnection) -> None:
        """Use the connection until closing; raise one of FAILURES when it is of no use."""

    @abstractmethod
    def _ended(self) -> None:
        """The thread ends, for whatever reason: let nobody wait for it."""

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and self._fatal is None:
                self._connect_and_serve()
        finally:
            self._ended()

    def _connect_and_serve(self) -> None:
        try:
            connection = connect(self._settings, self.name)
            self._connection = connection
            try:
                self._serve(connection)
            except ChannelClosedByBroker as error:
                raise explain_channel(self._settings, error) from error
            finally:
                self._connection = None
                with suppress(*FAILURES):
                    if connection.is_open:
                        connection.close()
        except Misconfigured as error:
            if self._was_up:
                self._back_off(error)
            else:
                self._fatal = error
        except FAILURES as error:
            self._back_off(error)
        except Exception as error:  # a bug, pika's or ours: without its thread nothing goes on
            logger.exception("the connection failed", extra={"connection": self.name})
            self._back_off(error)

    def _back_off(self, error: Exception) -> None:
        self._trouble = _innermost(error)
        longest = FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures, 30)
        wait = random.uniform(0, min(self._settings.reconnect_max_seconds, longest))
        self._failures += 1
        details = {"connection": self.name, "error": self._trouble, "retry_seconds": wait}
        logger.warning("no broker connection", extra=details)
        self._closing.wait(wait)

    def _up(self) -> None:
        if not self._was_up:
            self._trouble = NO_ANSWER
        self._was_up = True
        self._failures = 0
        logger.info("broker connected", extra={"connection": self.name})

    def _must_answer(
        self, connection: BlockingConnection, what: str
    ) -> AbstractContextManager[None]:
        return must_answer(connection, self._settings, what)

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(ConnectionWrongStateError):  # lost just now; the thread notices itself
                connection.add_callback_threadsafe(_nothing)

    def _finish(self) -> None:
        self._closing.set()
        self._wake()
        self._thread.join(CLOSE_SECONDS)


def _nothing() -> None:
    """Only ends the wait of the thread that it is called in."""


@contextmanager
def must_answer(
    connection: BlockingConnection, settings: BrokerSettings, what: str
) -> Iterator[None]:
    """Give the connection up if a call is not answered in time.

    pika's calls wait for ever, and a quorum queue without a leader never answers, while the
    connection itself is fine. This is how pika ends a connection that is blocked too long.
    """
    seconds = settings.blocked_timeout_seconds
    impl = connection._impl
    error = AMQPConnectionError(f"no answer from the broker within {seconds:g} s: {what}")
    timer = impl._adapter_call_later(seconds, lambda: impl._terminate_stream(error))
    try:
        yield
    finally:
        if connection.is_open:
            impl._adapter_remove_timeout(timer)


@contextmanager
def visit(
    settings: BrokerSettings, name: str
) -> Iterator[tuple[BlockingConnection, BlockingChannel]]:
    """A connection for one errand in the caller's thread; whatever fails is one of our errors."""
    connection = connect(settings, name)
    try:
        yield connection, connection.channel()
    except ChannelClosedByBroker as error:
        raise explain_channel(settings, error) from error
    except BrokerUnavailable:
        raise
    except FAILURES as error:
        raise BrokerUnavailable(f"{endpoint(settings)}: {_innermost(error)}") from error
    finally:
        with suppress(*FAILURES):
            connection.sleep(SETTLE_SECONDS)
            connection.close()


def connect(
    settings: BrokerSettings, name: str, timeout_seconds: float = CONNECT_SECONDS
) -> BlockingConnection:
    """Raises Misconfigured if the broker refuses us, BrokerUnavailable for anything else."""
    parameters = _parameters(settings)
    parameters.client_properties = {"connection_name": name}
    parameters.socket_timeout = timeout_seconds
    parameters.stack_timeout = 1.5 * timeout_seconds
    try:
        return BlockingConnection(parameters)
    except (AMQPError, AMQPConnectorException, OSError) as error:
        raise _explain_connection(parameters, error) from error


def endpoint(settings: BrokerSettings) -> str:
    parameters = _parameters(settings)
    return f"the broker at {parameters.host}:{parameters.port}"


def _parameters(settings: BrokerSettings) -> pika.URLParameters:
    url = settings.url.get_secret_value()
    try:
        if urlsplit(url).scheme not in ("amqp", "amqps") or not urlsplit(url).hostname:
            raise ValueError
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError, SyntaxError, OSError):
        # never show the original error: it may quote the URL, with the password
        expected = "amqp://user:password@host:5672/vhost"
        raise Misconfigured(f"FEDFA_AMQP_URL: not a URL like {expected}") from None
    if settings.username is not None and settings.password is not None:
        parameters.credentials = pika.PlainCredentials(
            settings.username.get_secret_value(), settings.password.get_secret_value()
        )
    parameters.heartbeat = settings.heartbeat_seconds
    parameters.blocked_connection_timeout = settings.blocked_timeout_seconds
    parameters.tcp_options = _TCP_OPTIONS
    return parameters


def declare_exchange(channel: BlockingChannel, route: Route) -> None:
    channel.exchange_declare(route.exchange, exchange_type=route.kind, durable=True)


def require_queue(
    connection: BlockingConnection,
    channel: BlockingChannel,
    queue: Queue,
    settings: BrokerSettings,
) -> str | None:
    """Declare a queue and return its name at the broker; None: another process has to, and did not.

    The private queue of a broadcast is always declared.
    """
    if settings.declare:
        return declare_queue(channel, queue)
    if queue.name == "":
        return _declare_and_bind(channel, queue)
    return queue.name if counts(connection, queue.name) else None


def counts(connection: BlockingConnection, queue_name: str) -> tuple[int, int] | None:
    """(ready messages, consumers) of a queue, or None if there is no such queue."""
    own = connection.channel()  # the broker closes the channel that asks for a missing queue
    try:
        found = own.queue_declare(queue_name, passive=True).method
    except ChannelClosedByBroker as error:
        if error.reply_code == NOT_FOUND:
            return None
        raise
    own.close()
    return found.message_count, found.consumer_count


def declare_queue(channel: BlockingChannel, queue: Queue) -> str:
    """Declare a queue, its exchange and the binding; return its name at the broker."""
    declare_exchange(channel, queue.route)
    return _declare_and_bind(channel, queue)


def _declare_and_bind(channel: BlockingChannel, queue: Queue) -> str:
    is_private = queue.name == ""
    declared = channel.queue_declare(
        queue.name,
        durable=not is_private,
        exclusive=is_private,
        arguments=queue.arguments or None,
    )
    name: str = declared.method.queue
    channel.queue_bind(name, queue.route.exchange, queue.route.routing_key)
    return name


def closed_reason(channel: BlockingChannel) -> str:
    """Why a channel was closed, where pika keeps it; for the log only."""
    reason = getattr(channel, "_closing_reason", None)
    return f": {reason.reply_text}" if isinstance(reason, ChannelClosedByBroker) else ""


def explain_channel(settings: BrokerSettings, error: ChannelClosedByBroker) -> FedfaError:
    """A closed channel, for people: Misconfigured if trying again cannot help."""
    where = endpoint(settings)
    if error.reply_code == PRECONDITION_FAILED:
        remedy = "another version of FedFa declared it; `fedfa doctor` says what to do"
        return Misconfigured(f"{where}: {error.reply_text}; {remedy}")
    if error.reply_code == ACCESS_REFUSED:
        user = _parameters(settings).credentials.username
        return Misconfigured(f"FEDFA_AMQP_URL: {where} refuses user {user!r}: {error.reply_text}")
    return BrokerUnavailable(f"{where} closed the channel: {error.reply_text}")


def _explain_connection(parameters: pika.URLParameters, error: Exception) -> FedfaError:
    """A failed connection, for people: Misconfigured if the broker was clear about it."""
    where = f"the broker at {parameters.host}:{parameters.port}"
    refused = f"FEDFA_AMQP_URL: {where} refuses user {parameters.credentials.username!r}"
    code = error.reply_code if isinstance(error, ConnectionClosedByBroker) else None
    if isinstance(error, GUESSES) and not any(CLOSE in str(each) for each in error.args):
        return BrokerUnavailable(f"cannot reach {where}: the connection was lost at the login")
    if isinstance(error, ProbableAuthenticationError) or code == ACCESS_REFUSED:
        return Misconfigured(f"{refused}: wrong name or password")
    if isinstance(error, ProbableAccessDeniedError) or code == NOT_ALLOWED:
        vhost = parameters.virtual_host
        return Misconfigured(f"{refused}: no access to the virtual host {vhost!r}")
    if isinstance(error, ssl.SSLError):
        return Misconfigured(f"FEDFA_AMQP_URL: no TLS with {where}: {error}")
    if isinstance(error, AMQPConnectorStackTimeout):
        return BrokerUnavailable(f"cannot reach {where}: no answer in time")
    return BrokerUnavailable(f"cannot reach {where}: {_innermost(error)}")


def _innermost(error: BaseException) -> str:
    """pika wraps the reason several times, and its wrappers print nothing."""
    while True:
        first = error.args[0] if error.args else None
        inner = getattr(error, "exception", first)
        if not isinstance(inner, BaseException):
            return first if isinstance(first, str) and first else str(error) or repr(error)
        error = inner
