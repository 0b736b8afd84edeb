"""The permissions of each component, at a real broker: enough for its work, and no more."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pydantic import SecretStr

from fedfa import topology
from fedfa.broker import Consumer, Publisher
from fedfa.errors import BrokerUnavailable
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.messages import RollCall, StartFederation
from fedfa.settings import BrokerSettings
from fedfa.topology import Queue, Route

# rabbitmqctl takes seconds, a dozen times, and more on a busy machine.
pytestmark = pytest.mark.timeout(900)
SCRIPT = Path(__file__).parents[2] / "k8s" / "rabbitmq-users.sh"
POOLS = ("north", "south", "islands")
START = StartFederation(federation="digits", uid="0" * 32)

Users = dict[str, BrokerSettings]


@pytest.fixture(scope="module")
def users(
    rabbit: RabbitMQ, broker_settings: BrokerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Users:
    """Component -> its settings, as the script made the user."""
    ctl = tmp_path_factory.mktemp("ctl") / "rabbitmqctl"
    rabbit.write_ctl(ctl)
    vhost = broker_settings.url.get_secret_value().rpartition("/")[2]
    done = subprocess.run(
        [SCRIPT, vhost, vhost, "north", "south=south|islands"],
        env={**os.environ, "RABBITMQCTL": str(ctl)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    made = dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)
    # A password that begins with "-" is an option to rabbitmqctl.
    assert all(re.fullmatch("[0-9a-f]{48}", password) for password in made.values())
    return {
        name.removeprefix(f"{vhost}-"): BrokerSettings(
            url=SecretStr(f"amqp://127.0.0.1:{rabbit.port}/{vhost}"),
            username=SecretStr(name),
            password=SecretStr(password),
            declare="trainer" not in name,
            reconnect_max_seconds=0.5,
        )
        for name, password in made.items()
    }


@contextmanager
def channel(settings: BrokerSettings) -> Iterator[BlockingChannel]:
    parameters = pika.URLParameters(settings.url.get_secret_value())
    assert settings.username is not None
    assert settings.password is not None
    parameters.credentials = pika.PlainCredentials(
        settings.username.get_secret_value(), settings.password.get_secret_value()
    )
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def consume_once(settings: BrokerSettings, wanted: list[tuple[Queue, int]]) -> None:
    """Registers for all queues, which needs every permission that consuming does."""
    consumer = Consumer(settings, wanted, name="test")
    for _ in range(200):
        next(iter(consumer))
        if consumer.is_consuming:
            break
    else:
        pytest.fail("it does not consume")
    consumer.close()


def queues(pools: tuple[str, ...]) -> list[tuple[Queue, int]]:
    """What a trainer consumes."""
    return [*((topology.jobs_queue(pool), 1) for pool in pools), (topology.BROADCAST_QUEUE, 1)]


def empty(settings: BrokerSettings) -> None:
    """Delete whatever a service or another test declared."""
    jobs = [topology.jobs_queue(pool) for pool in POOLS]
    with channel(settings) as made:
        for queue in (topology.UPDATES_QUEUE, topology.EVENTS_QUEUE, topology.DEAD_QUEUE, *jobs):
            made.queue_delete(queue.name)
            made.exchange_delete(queue.route.exchange)
        made.exchange_delete(topology.BROADCAST.exchange)


def test_each_component_can_do_its_work_from_an_empty_broker(users: Users) -> None:
    empty(users["cli"])
    # A trainer that comes first waits for the scheduler, which declares its queue.
    early = Publisher(users["trainer-north"], name="early")
    with pytest.raises(BrokerUnavailable):
        early.publish(START, topology.EVENTS, timeout_seconds=1)
    consume_once(users["scheduler"], [(topology.EVENTS_QUEUE, 1), (topology.BROADCAST_QUEUE, 1)])
    consume_once(users["aggregator"], [(topology.UPDATES_QUEUE, 1)])
    scheduler = Publisher(users["scheduler"], name="scheduler")
    for pool in POOLS:
        scheduler.publish(START, topology.jobs(pool), timeout_seconds=20)
    for route in (topology.UPDATES, topology.DEAD, topology.BROADCAST):
        scheduler.publish(START, route, timeout_seconds=20)
    aggregator = Publisher(users["aggregator"], name="aggregator")
    for route in (topology.BROADCAST, topology.DEAD):
        aggregator.publish(RollCall(), route, timeout_seconds=20)
    for route in (topology.UPDATES, topology.EVENTS, topology.DEAD, topology.BROADCAST):
        early.publish(START, route, timeout_seconds=20)
    consume_once(users["trainer-north"], queues(("north",)))
    consume_once(users["trainer-south"], queues(("south", "islands")))
    for publisher in (early, scheduler, aggregator):
        publisher.close()


def test_a_trainer_buries_a_message_although_nobody_did_before(users: Users) -> None:
    # given a broker that has never had a dead letter
    with channel(users["cli"]) as made:
        made.queue_delete(topology.DEAD_QUEUE.name)
        made.exchange_delete(topology.DEAD.exchange)
    consume_once(users["aggregator"], [(topology.UPDATES_QUEUE, 1)])
    # when a trainer gets a message that it cannot read
    trainer = Publisher(users["trainer-north"], name="trainer")
    trainer.publish(b"of a later release", topology.DEAD, timeout_seconds=20)
    # then it does not stand in the way of what the trainer says next
    trainer.publish(START, topology.UPDATES, timeout_seconds=20)
    trainer.close()


def test_a_queue_that_comes_later_holds_up_no_other(users: Users) -> None:
    # given a trainer of two pools, one of which no federation has used yet
    with channel(users["scheduler"]) as made:
        made.queue_delete(topology.jobs_queue("islands").name)
    scheduler = Publisher(users["scheduler"], name="scheduler")
    scheduler.publish(START, topology.BROADCAST, timeout_seconds=20)
    scheduler.publish(b"south", topology.jobs("south"), timeout_seconds=20)
    trainer = Consumer(users["trainer-south"], queues(("south", "islands")), name="trainer")
    # then it works for the other
    take(trainer, topology.jobs_queue("south").name, b"south")
    assert trainer.is_consuming
    # and when the first job of the new one is there, for both
    scheduler.publish(b"islands", topology.jobs("islands"), timeout_seconds=20)
    take(trainer, topology.jobs_queue("islands").name, b"islands")
    scheduler.publish(b"more", topology.jobs("south"), timeout_seconds=20)
    take(trainer, topology.jobs_queue("south").name, b"more")
    assert trainer.epoch == 1
    trainer.close()
    scheduler.close()


def take(consumer: Consumer, queue: str, body: bytes) -> None:
    """Acknowledge deliveries until this one comes."""
    until = time.monotonic() + 30
    for delivery in consumer:
        if delivery is not None:
            delivery.ack()
            if (delivery.queue, delivery.body) == (queue, body):
                return
        assert time.monotonic() < until, f"no {body!r}"


@pytest.fixture(scope="module")
def queues_exist(users: Users) -> None:
    for component, queue in [
        ("aggregator", topology.UPDATES_QUEUE),
        ("scheduler", topology.EVENTS_QUEUE),
    ]:
        consume_once(users[component], [(queue, 1)])
    scheduler = Publisher(users["scheduler"], name="scheduler")
    for route in (topology.DEAD, topology.jobs("north"), topology.jobs("south")):
        scheduler.publish(START, route, timeout_seconds=20)
    scheduler.close()


@pytest.mark.parametrize(
    ("user", "queue"),
    [
        ("trainer-north", topology.jobs_queue("south")),
        ("trainer-north", topology.UPDATES_QUEUE),
        ("trainer-north", topology.EVENTS_QUEUE),
        ("trainer-north", topology.DEAD_QUEUE),
        ("aggregator", topology.EVENTS_QUEUE),
        ("aggregator", topology.jobs_queue("north")),
        ("scheduler", topology.jobs_queue("north")),
    ],
)
@pytest.mark.usefixtures("queues_exist")
def test_nobody_reads_what_is_not_theirs(users: Users, user: str, queue: Queue) -> None:
    with channel(users[user]) as own, pytest.raises(ChannelClosedByBroker, match="refused"):
        own.basic_get(queue.name)


@pytest.mark.usefixtures("queues_exist")
@pytest.mark.parametrize("route", [topology.jobs("north"), topology.jobs("south")])
def test_a_trainer_hands_out_no_job(users: Users, route: Route) -> None:
    with channel(users["trainer-north"]) as own:
        own.confirm_delivery()
        with pytest.raises(ChannelClosedByBroker, match="refused"):
            own.basic_publish(route.exchange, route.routing_key, b"")


@pytest.mark.usefixtures("queues_exist")
def test_a_trainer_deletes_and_purges_nothing(users: Users) -> None:
    for name in (topology.UPDATES_QUEUE.name, topology.jobs_queue("north").name):
        with (
            channel(users["trainer-north"]) as own,
            pytest.raises(ChannelClosedByBroker, match="refused"),
        ):
            own.queue_delete(name)
