"""The broker package against a real RabbitMQ node, which is killed, filled and reconfigured."""

import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr

from fedfa.broker import Consumer, Delivery, Publisher, check
from fedfa.broker.connection import connect
from fedfa.broker.consumer import STANDBY_SECONDS
from fedfa.errors import BrokerUnavailable, InvalidMessage, Misconfigured
from fedfa.local.processes import free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.messages import RollCall
from fedfa.settings import BrokerSettings
from fedfa.topology import (
    BROADCAST,
    BROADCAST_QUEUE,
    EVENTS,
    EVENTS_QUEUE,
    Route,
    jobs,
    jobs_queue,
)
from tests.proxy import Proxy
from tests.unit.builders import DIGEST, update_ready
from tests.waiting import wait_for

pytestmark = pytest.mark.services

WAIT_SECONDS = 40.0
UPDATE = update_ready(digest=DIGEST)

# The channels that consume a queue learn 0.2 s late that it is deleted.
DELETE_AND_TELL_LATE = """
    {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
    Channels = [element(1, Consumer) || Consumer <- rabbit_amqqueue:consumers(Q)],
    [sys:suspend(Channel) || Channel <- Channels],
    rabbit_amqqueue:delete(Q, false, false, <<"test">>),
    timer:sleep(200),
    [sys:resume(Channel) || Channel <- Channels].
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    rabbit = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    rabbit.start()
    yield rabbit
    rabbit.stop()


@pytest.fixture
def settings(node: RabbitMQ) -> BrokerSettings:
    return settings_for(node.url)


@pytest.fixture
def publisher(settings: BrokerSettings) -> Iterator[Publisher]:
    publisher = Publisher(settings, name="test")
    yield publisher
    publisher.close()


@pytest.fixture
def pool() -> str:
    """Every test has its own pool, so its own queue."""
    return f"pool-{uuid.uuid4().hex[:8]}"


def settings_for(url: str) -> BrokerSettings:
    return BrokerSettings(url=SecretStr(url), reconnect_max_seconds=1.0)


def take(consumer: Consumer, count: int, seconds: float = WAIT_SECONDS) -> list[Delivery]:
    """The next `count` deliveries, or as many as came in time."""
    deadline = time.monotonic() + seconds
    taken: list[Delivery] = []
    for delivery in consumer:
        if delivery is not None:
            taken.append(delivery)
        if len(taken) == count or time.monotonic() > deadline:
            break
    return taken


def test_a_message_arrives_with_every_field(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a consumer
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")

    # when a message is published with a header
    publisher.publish(UPDATE, jobs(pool), headers={"x-fedfa-attempt": "2"})

    # then it is delivered as it was
    (delivery,) = take(consumer, 1)
    assert delivery.message() == UPDATE
    assert delivery.queue == f"fedfa.jobs.{pool}"
    assert delivery.headers["x-fedfa-attempt"] == "2"
    assert not delivery.redelivered
    delivery.ack()
    consumer.close()
    assert publisher.counts(f"fedfa.jobs.{pool}") == (0, 0)


def test_bytes_that_are_no_message_are_delivered_and_refuse_to_decode(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")

    publisher.publish(b"\xff", jobs(pool))

    (delivery,) = take(consumer, 1)
    with pytest.raises(InvalidMessage):
        delivery.message()
    consumer.close()


def test_messages_published_before_any_consumer_ran_are_kept_in_order(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a pool that nobody consumes and whose queue does not exist
    assert publisher.counts(f"fedfa.jobs.{pool}") == (0, 0)

    # when messages are published
    for number in range(20):
        publisher.publish(str(number).encode(), jobs(pool), timeout_seconds=WAIT_SECONDS)

    # then they wait, and arrive in order
    assert publisher.counts(f"fedfa.jobs.{pool}") == (20, 0)
    consumer = Consumer(settings, [(jobs_queue(pool), 5)], name="test")
    bodies = []
    for delivery in consumer:
        if delivery is not None:
            bodies.append(int(delivery.body))
            delivery.ack()
        if len(bodies) == 20:
            break
    assert bodies == list(range(20))
    consumer.close()


def test_a_route_without_a_queue_is_refused_and_the_publisher_goes_on(
    publisher: Publisher, pool: str
) -> None:
    with pytest.raises(Misconfigured, match=r"fedfa\.nowhere"):
        publisher.publish(UPDATE, Route("fedfa.nowhere"), timeout_seconds=WAIT_SECONDS)

    publisher.publish(UPDATE, jobs(pool), timeout_seconds=WAIT_SECONDS)


def test_a_broadcast_reaches_every_private_queue_and_may_reach_none(
    publisher: Publisher, settings: BrokerSettings
) -> None:
    # given a broadcast that nobody hears, then two listeners
    publisher.publish(RollCall(), BROADCAST)
    listeners = [Consumer(settings, [(BROADCAST_QUEUE, 10)], name=f"test-{i}") for i in range(2)]
    wait_for(lambda: all(listener.is_consuming for listener in listeners))

    # when it is sent again
    publisher.publish(RollCall(), BROADCAST)

    # then each of them gets it once
    for listener in listeners:
        (delivery,) = take(listener, 1)
        assert delivery.queue == ""
        assert delivery.message() == RollCall()
        assert take(listener, 1, seconds=0.5) == []
        listener.close()


def test_no_confirmed_message_is_lost_when_the_broker_is_killed(
    node: RabbitMQ, publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a thread that publishes, and a consumer
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        number = 0
        while not stop.is_set():
            publisher.publish(str(number).encode(), jobs(pool))
            confirmed.append(number)
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    consumer = Consumer(settings, [(jobs_queue(pool), 50)], name="test")
    received: set[int] = set()

    def receive_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        for delivery in consumer:
            if delivery is not None:
                received.add(int(delivery.body))
                delivery.ack()
            assert time.monotonic() < deadline
            if condition():
                return

    # RabbitMQ writes the names of its quorum queues to disk twice a second: one that is killed
    # right after a declaration comes back with a queue that never answers
    settled = time.monotonic() + 2.0
    receive_until(lambda: time.monotonic() > settled and len(received) > 50)
    epoch = consumer.epoch

    # when the broker is killed in the middle, and comes back
    node.kill()
    before = len(confirmed)
    node.start()
    receive_until(lambda: len(confirmed) > before + 50)
    stop.set()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()

    # then everything that was confirmed arrives, and the consumer has noticed the gap
    receive_until(lambda: received >= set(confirmed))
    assert consumer.epoch > epoch
    consumer.close()


def test_a_consumer_comes_back_after_its_queue_was_deleted(
    node: RabbitMQ, publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")
    wait_for(lambda: consumer.is_consuming)

    node.ctl("delete_queue", f"fedfa.jobs.{pool}")
    wait_for(lambda: consumer.epoch == 2)

    publisher.publish(UPDATE, jobs(pool))
    assert [delivery.message() for delivery in take(consumer, 1)] == [UPDATE]
    consumer.close()


def test_a_queue_deleted_while_it_is_published_to_keeps_its_consumer(
    node: RabbitMQ, publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a consumer that has received something, and a publisher that never rests
    consumer = Consumer(settings, [(jobs_queue(pool), 10)], name="test")
    publisher.publish(b"first", jobs(pool))
    take(consumer, 1)[0].ack()
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(0.01):
            publisher.publish(b"again", jobs(pool))

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()

    # when the broker is slow to tell the consumer that the queue is deleted
    node.ctl("eval", DELETE_AND_TELL_LATE % f"fedfa.jobs.{pool}")
    is_over.set()
    thread.join(WAIT_SECONDS)

    # then the consumer has the queue that took its place
    publisher.publish(b"last", jobs(pool))
    received: set[bytes] = set()
    deadline = time.monotonic() + WAIT_SECONDS
    while b"last" not in received and time.monotonic() < deadline:
        for delivery in take(consumer, 1, seconds=1.0):
            delivery.ack()
            received.add(delivery.body)
    assert b"last" in received
    consumer.close()


def test_a_consumer_comes_back_after_the_broker_closed_its_channel(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a consumer with one delivery
    publisher.publish(b"first", jobs(pool))
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")
    (delivery,) = take(consumer, 1)

    # when it acks twice, for which the broker closes the channel
    delivery.ack()
    delivery.ack()
    wait_for(lambda: consumer.epoch == 2 and consumer.is_consuming)

    # then it consumes again, and the ack of the old channel does no harm
    delivery.ack()
    publisher.publish(b"second", jobs(pool))
    assert [delivery.body for delivery in take(consumer, 1)] == [b"second"]
    assert consumer.epoch == 2
    consumer.close()


def test_the_second_consumer_of_an_exclusive_queue_stands_by_and_takes_over(
    publisher: Publisher, settings: BrokerSettings
) -> None:
    # given two consumers of the event queue
    first = Consumer(settings, [(EVENTS_QUEUE, 10), (BROADCAST_QUEUE, 10)], name="first")
    wait_for(lambda: first.is_consuming)
    second = Consumer(settings, [(EVENTS_QUEUE, 10), (BROADCAST_QUEUE, 10)], name="second")
    wait_for(lambda: second.is_standby)
    assert not second.is_consuming

    # while it stands by, it never seems to consume, also not while it asks again
    until = time.monotonic() + STANDBY_SECONDS + 1
    while time.monotonic() < until:
        assert not second.is_consuming
        time.sleep(0.001)

    # when a message comes, only the first gets it
    publisher.publish(b"one", EVENTS)
    assert [delivery.body for delivery in take(first, 1)] == [b"one"]
    assert take(second, 1, seconds=0.5) == []

    # when the first goes without an ack, the second takes over, message included
    first.close()
    (delivery,) = take(second, 1)
    assert delivery.body == b"one"
    assert delivery.redelivered
    assert second.is_consuming
    assert not second.is_standby
    delivery.ack()
    second.close()


def test_a_queue_paused_before_an_ack_delivers_nothing_until_it_is_resumed(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given two messages and a consumer that holds one at a time
    queue = jobs_queue(pool)
    publisher.publish(b"one", jobs(pool))
    publisher.publish(b"two", jobs(pool))
    consumer = Consumer(settings, [(queue, 1)], name="test")
    (one,) = take(consumer, 1)

    # when it pauses, then acks
    consumer.pause(queue.name)
    one.ack()

    # then the second message stays at the broker, for whoever else is free
    assert take(consumer, 1, seconds=1.0) == []
    assert publisher.counts(queue.name) == (1, 0)
    assert consumer.is_consuming

    # and comes after resume
    consumer.resume(queue.name)
    (two,) = take(consumer, 1)
    assert two.body == b"two"
    assert not two.redelivered
    consumer.close()


def test_pause_gives_back_what_was_prefetched_and_keeps_what_was_handed_out(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a consumer that took one of five prefetched messages
    queue = jobs_queue(pool)
    for number in range(5):
        publisher.publish(str(number).encode(), jobs(pool))
    consumer = Consumer(settings, [(queue, 5)], name="test")
    (held,) = take(consumer, 1)
    wait_for(lambda: publisher.counts(queue.name)[0] == 0)

    # when it pauses, then the other four are ready for another consumer
    consumer.pause(queue.name)
    wait_for(lambda: publisher.counts(queue.name)[0] == 4)
    other = Consumer(settings, [(queue, 5)], name="other")
    rest = take(other, 4)
    assert sorted(int(delivery.body) for delivery in rest) == [1, 2, 3, 4]

    # and the one it holds can still be acked
    held.ack()
    for delivery in rest:
        delivery.ack()
    consumer.close()
    other.close()
    assert publisher.counts(queue.name) == (0, 0)


def test_a_suspended_consumer_returns_its_deliveries_and_resumes_later(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a consumer that holds one message and has prefetched another
    queue = jobs_queue(pool)
    publisher.publish(b"one", jobs(pool))
    publisher.publish(b"two", jobs(pool))
    consumer = Consumer(settings, [(queue, 2)], name="test")
    (held,) = take(consumer, 1)

    # when it is suspended, then another consumer gets both
    consumer.suspend()
    other = Consumer(settings, [(queue, 2)], name="other")
    returned = take(other, 2)
    assert sorted(delivery.body for delivery in returned) == [b"one", b"two"]
    assert take(consumer, 1, seconds=0.5) == []
    assert not consumer.is_consuming
    held.ack()  # too late: without effect
    for delivery in returned:
        delivery.ack()
    other.close()

    # and after unsuspend it consumes again, in a new epoch
    consumer.unsuspend()
    publisher.publish(b"three", jobs(pool))
    assert [delivery.body for delivery in take(consumer, 1)] == [b"three"]
    assert consumer.epoch == 2
    consumer.close()


def test_suspend_and_unsuspend_at_once_lose_no_delivery(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    queue = jobs_queue(pool)
    for number in range(10):
        publisher.publish(str(number).encode(), jobs(pool))
    consumer = Consumer(settings, [(queue, 10)], name="test")
    take(consumer, 1)

    consumer.suspend()
    consumer.unsuspend()

    assert {int(delivery.body) for delivery in take(consumer, 10)} == set(range(10))
    consumer.close()


def test_every_ack_before_a_close_counts(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    queue = jobs_queue(pool)
    for number in range(200):
        publisher.publish(str(number).encode(), jobs(pool))
    consumer = Consumer(settings, [(queue, 50)], name="test")
    for number, delivery in enumerate(take_and_ack(consumer, 200)):
        assert int(delivery.body) == number

    consumer.close()

    assert publisher.counts(queue.name) == (0, 0)


def take_and_ack(consumer: Consumer, count: int) -> Iterator[Delivery]:
    for _ in range(count):
        (delivery,) = take(consumer, 1)
        delivery.ack()
        yield delivery


def test_stop_ends_the_iteration_and_leaves_acks_possible(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    publisher.publish(b"one", jobs(pool))
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")
    (delivery,) = take(consumer, 1)

    consumer.stop()

    assert list(consumer) == []
    delivery.ack()
    consumer.close()
    assert publisher.counts(f"fedfa.jobs.{pool}") == (0, 0)


def test_counts_tell_ready_messages_and_consumers(
    publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    queue = jobs_queue(pool)
    assert publisher.counts(queue.name) == (0, 0)
    for _ in range(3):
        publisher.publish(UPDATE, jobs(pool))
    consumers = [Consumer(settings, [(queue, 1)], name=f"test-{i}") for i in range(2)]

    wait_for(lambda: publisher.counts(queue.name) == (1, 2))

    for consumer in consumers:
        consumer.close()
    wait_for(lambda: publisher.counts(queue.name) == (3, 0))


def test_a_broker_short_of_memory_holds_publishers_back_but_not_acks(
    node: RabbitMQ, publisher: Publisher, settings: BrokerSettings, pool: str
) -> None:
    # given a delivered message and a memory alarm
    publisher.publish(b"one", jobs(pool))
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")
    (one,) = take(consumer, 1)
    node.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        # when a message is published, then it has no confirm in time
        with pytest.raises(BrokerUnavailable, match=r"no confirm .* in 1 s"):
            publisher.publish(b"two", jobs(pool), timeout_seconds=1.0)

        # and the ack passes
        one.ack()
        consumer.close()
        listed = ("list_queues", "name", "messages_unacknowledged")
        wait_for(lambda: f"fedfa.jobs.{pool}\t0" in node.ctl(*listed))
    finally:
        node.ctl("set_vm_memory_high_watermark", "0.4")
    publisher.publish(b"three", jobs(pool), timeout_seconds=WAIT_SECONDS)


def test_closing_a_publisher_releases_whoever_waits() -> None:
    # given a publisher without a broker, and a caller that waits without a limit
    publisher = Publisher(settings_for(f"amqp://127.0.0.1:{free_port()}/"), name="test")
    errors: list[BrokerUnavailable] = []

    def publish() -> None:
        try:
            publisher.publish(UPDATE, EVENTS)
        except BrokerUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    time.sleep(0.2)

    # when it is closed
    publisher.close(flush_seconds=0.2)
    thread.join(WAIT_SECONDS)

    # then the caller knows
    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    with pytest.raises(BrokerUnavailable, match="closed"):
        publisher.publish(UPDATE, EVENTS)


def test_what_cannot_be_sent_is_its_callers_trouble_and_the_publisher_goes_on(
    publisher: Publisher, pool: str
) -> None:
    with pytest.raises(UnicodeEncodeError):
        publisher.publish(UPDATE, jobs(pool), headers={"a": "\ud800"}, timeout_seconds=10.0)

    publisher.publish(UPDATE, jobs(pool), timeout_seconds=WAIT_SECONDS)
    assert publisher.counts(jobs_queue(pool).name) == (1, 0)


def test_what_was_given_up_during_an_outage_is_not_kept() -> None:
    publisher = Publisher(settings_for(f"amqp://127.0.0.1:{free_port()}/"), name="test")
    for _ in range(20):
        with pytest.raises(BrokerUnavailable):
            publisher.publish(UPDATE, EVENTS, timeout_seconds=0.01)

    assert not publisher._requests
    publisher.close(flush_seconds=0)


def test_check_returns_the_version_of_the_broker(settings: BrokerSettings) -> None:
    assert check(settings, 10.0).split(".")[0].isdigit()


def test_an_unreachable_broker_is_reported_with_the_remedy() -> None:
    port = free_port()
    settings = settings_for(f"amqp://guest:hunter2@127.0.0.1:{port}/")

    with pytest.raises(BrokerUnavailable) as caught:
        check(settings, 1.0)

    text = str(caught.value)
    assert f"127.0.0.1:{port}" in text
    assert "refused" in text
    assert "set FEDFA_AMQP_URL" in text
    assert "\n" not in text
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("user", "vhost", "reason"),
    [("guest:hunter2", "", "wrong name or password"), ("guest:guest", "no-vhost", "no-vhost")],
)
def test_a_refusal_is_one_clear_line_without_the_password(
    node: RabbitMQ, user: str, vhost: str, reason: str
) -> None:
    # given a wrong password or virtual host
    settings = settings_for(f"amqp://{user}@127.0.0.1:{node.port}/{vhost}")
    consumer = Consumer(settings, [(EVENTS_QUEUE, 1)], name="test")
    publisher = Publisher(settings, name="test")

    # when anybody connects, then the reason is said, and no secret
    for attempt in (
        lambda: check(settings, 5.0),
        lambda: take(consumer, 1),
        lambda: publisher.publish(UPDATE, EVENTS),
    ):
        with pytest.raises(Misconfigured) as caught:
            attempt()
        text = str(caught.value)
        where = f"FEDFA_AMQP_URL: the broker at 127.0.0.1:{node.port} refuses user 'guest'"
        assert text.startswith(where)
        assert reason in text
        assert "\n" not in text
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    consumer.close()
    publisher.close()


def test_a_connection_that_is_lost_at_the_login_is_no_refusal(node: RabbitMQ) -> None:
    with Proxy(node.port) as proxy:
        proxy.cut_off(b"unlucky")
        settings = settings_for(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
        with pytest.raises(BrokerUnavailable, match="lost at the login"):
            connect(settings, "unlucky")


@pytest.mark.parametrize("url", ["", "http://u:hunter2@host/", "amqp://u:hunter2@host:port/"])
def test_a_malformed_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Misconfigured, match="FEDFA_AMQP_URL") as caught:
        check(settings_for(url), 1.0)

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_refusal_after_the_first_connection_is_an_outage_that_ends(
    node: RabbitMQ, publisher: Publisher, pool: str
) -> None:
    # given a consumer with a user of its own
    node.ctl("add_user", pool, "first")
    node.ctl("set_permissions", pool, ".*", ".*", ".*")
    settings = settings_for(f"amqp://{pool}:first@127.0.0.1:{node.port}/")
    consumer = Consumer(settings, [(jobs_queue(pool), 1)], name="test")
    wait_for(lambda: consumer.is_consuming)

    # when the broker forgets the password while the connection breaks
    node.ctl("change_password", pool, "second")
    node.ctl("close_all_user_connections", pool, "test")
    wait_for(lambda: not consumer.is_consuming)
    assert take(consumer, 1, seconds=2.0) == []

    # then the consumer waits, and goes on when the password is back
    node.ctl("change_password", pool, "first")
    publisher.publish(UPDATE, jobs(pool))
    assert [delivery.message() for delivery in take(consumer, 1)] == [UPDATE]
    consumer.close()


def test_a_queue_that_does_not_answer_costs_the_connection_and_not_the_thread(
    node: RabbitMQ, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    # given a quorum queue that hangs while the rest of the broker is fine
    settings = settings_for(node.url).model_copy(update={"blocked_timeout_seconds": 1.0})
    publisher = Publisher(settings, name="test")
    publisher.publish(b"one", jobs(pool))
    name = f"fedfa.jobs.{pool}"
    node.ctl("eval", f"sys:suspend(whereis('%2F_{name}')).")

    # when a message is published and the queue is consumed, then nobody waits for ever
    consumer = Consumer(settings, [(jobs_queue(pool), 10)], name="test")
    with pytest.raises(BrokerUnavailable, match=rf"no answer .* fedfa\.jobs {pool}"):
        publisher.publish(b"two", jobs(pool), timeout_seconds=4.0)
    assert take(consumer, 1, seconds=2.0) == []
    errors = [getattr(record, "error", "") for record in caplog.records]
    assert any(f"consume {name}" in error for error in errors)

    # and both go on when the queue answers again
    node.ctl("eval", f"sys:resume(whereis('%2F_{name}')).")
    publisher.publish(b"three", jobs(pool), timeout_seconds=WAIT_SECONDS)
    received: set[bytes] = set()
    for delivery in consumer:
        received.update([delivery.body] if delivery is not None else [])
        if received >= {b"one", b"three"}:
            break
    consumer.close()
    publisher.close()
