"""`fedfa dlq` on a real broker: letters are seen, replayed and dropped, and none is lost."""

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedfa import doctor
from fedfa.broker import Consumer, Delivery, Publisher, opened, trial
from fedfa.errors import BrokerUnavailable
from fedfa.local.processes import ServerProcess, accepts, free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.messages import AnyMessage, InitModel, RollCall
from fedfa.settings import BrokerSettings
from fedfa.topology import DEAD, DEAD_QUEUE, REASON_HEADER, UPDATES, UPDATES_QUEUE, Queue
from tests.services.commands import fedfa
from tests.unit.builders import ATTEMPT, UID, update_ready
from tests.waiting import wait_for

UPDATE = update_ready()
INIT = InitModel(federation="fed", uid=UID, attempt=ATTEMPT, lease_ttl_seconds=5)
GARBAGE = b"\xff\x00garbage"


@pytest.fixture
def publisher(broker_settings: BrokerSettings) -> Iterator[Publisher]:
    publisher = Publisher(broker_settings, name="test")
    yield publisher
    publisher.close()


@pytest.fixture(autouse=True)
def _no_letters_of_other_tests(broker_settings: BrokerSettings) -> Iterator[None]:
    yield
    with opened(broker_settings, DEAD_QUEUE.name) as letters:
        for letter in letters:
            letter.ack()


def bury(publisher: Publisher, *bodies: AnyMessage | bytes) -> None:
    for number, body in enumerate(bodies, 1):
        publisher.publish(body, DEAD, headers={REASON_HEADER: f"reason {number}"})


def listed(environment: dict[str, str]) -> Any:
    done = fedfa(environment, "dlq", "list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def take(settings: BrokerSettings, queue: Queue) -> Delivery:
    """Take everything out of a queue; returns the first message."""
    consumer = Consumer(settings, [(queue, 100)], name="test")
    deliveries: list[Delivery] = wait_for(consumer.ready)
    for delivery in deliveries:
        delivery.ack()
    consumer.close()
    return deliveries[0]


def leave(settings: BrokerSettings, queue: Queue, *, times: int) -> None:
    """Consume a queue's message and give it back, as the aggregator does in an outage."""
    consumer = Consumer(settings, [(queue, 1)], name="test")
    for _ in range(times):
        wait_for(consumer.ready)
        consumer.suspend()
        wait_for(lambda: not consumer.is_consuming)
        consumer.unsuspend()
    consumer.close()


def test_list_says_what_each_letter_is_and_how_old(
    environment: dict[str, str], publisher: Publisher
) -> None:
    # given
    bury(publisher, UPDATE, GARBAGE, RollCall())
    # when
    letters = listed(environment)
    lines = fedfa(environment, "dlq", "list").stdout.splitlines()
    # then
    assert [(each["kind"], each["federation"], each["reason"]) for each in letters] == [
        ("UpdateReady", "fed", "reason 1"),
        (None, None, "reason 2"),
        ("RollCall", None, "reason 3"),
    ]
    assert all(0 <= each["age_seconds"] < 60 for each in letters)
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert "undecodable" in lines[1]


def test_show_has_every_field_or_the_bytes(
    environment: dict[str, str], publisher: Publisher
) -> None:
    # given
    bury(publisher, UPDATE, GARBAGE)
    # when
    decoded = json.loads(fedfa(environment, "dlq", "show", 1, "--json").stdout)
    raw = json.loads(fedfa(environment, "dlq", "show", 2, "--json").stdout)
    # then
    assert decoded.items() >= UPDATE.model_dump(mode="json", by_alias=True).items()
    assert (raw["size_bytes"], raw["starts_with_hex"]) == (len(GARBAGE), GARBAGE.hex())


def test_a_replayed_letter_is_where_it_belongs_and_nowhere_else(
    environment: dict[str, str], publisher: Publisher, broker_settings: BrokerSettings
) -> None:
    # given
    bury(publisher, RollCall(), UPDATE)
    # when
    done = fedfa(environment, "dlq", "replay", 2)
    # then
    assert done.stdout == "replayed 2: UpdateReady to fedfa.updates\n", done.stderr
    assert take(broker_settings, UPDATES_QUEUE).message() == UPDATE
    assert [each["kind"] for each in listed(environment)] == ["RollCall"]


def test_replay_all_keeps_what_cannot_be_replayed_and_says_why(
    environment: dict[str, str], publisher: Publisher, broker_settings: BrokerSettings
) -> None:
    # given
    bury(publisher, GARBAGE, UPDATE, INIT)
    # when
    done = fedfa(environment, "dlq", "replay", "all")
    alone = fedfa(environment, "dlq", "replay", 1)
    # then
    assert done.returncode == 1
    assert "1 cannot be replayed, nobody can read it" in done.stderr
    assert "3 is not replayed: the scheduler hands out InitModel again by itself" in done.stderr
    assert alone.returncode == 2
    assert take(broker_settings, UPDATES_QUEUE).message() == UPDATE
    assert [each["kind"] for each in listed(environment)] == [None, "InitModel"]


def test_a_letter_whose_replay_is_not_confirmed_stays(
    environment: dict[str, str],
    publisher: Publisher,
    rabbit: RabbitMQ,
    broker_settings: BrokerSettings,
) -> None:
    # given a queue that takes no more
    bury(publisher, UPDATE)
    vhost = broker_settings.url.get_secret_value().rpartition("/")[2]
    full = '{"max-length": 1, "overflow": "reject-publish"}'
    rabbit.ctl("set_policy", "-p", vhost, "full", "^fedfa.updates$", full)
    with suppress(BrokerUnavailable):
        for _ in range(10):
            publisher.publish(UPDATE, UPDATES, timeout_seconds=2)
    try:
        # when
        done = fedfa(environment, "dlq", "replay", 1)
    finally:
        rabbit.ctl("clear_policy", "-p", vhost, "full")
    # then
    assert done.returncode == 2
    assert "takes no message" in done.stderr
    assert [each["kind"] for each in listed(environment)] == ["UpdateReady"]
    take(broker_settings, UPDATES_QUEUE)


def test_drop_takes_one_letter_or_all(environment: dict[str, str], publisher: Publisher) -> None:
    bury(publisher, UPDATE, GARBAGE, RollCall())
    assert fedfa(environment, "dlq", "drop", 2).returncode == 0
    assert [each["kind"] for each in listed(environment)] == ["UpdateReady", "RollCall"]
    missing = fedfa(environment, "dlq", "drop", 3)
    assert missing.returncode == 2
    assert missing.stderr == "error: 3: no such dead letter, there are 2\n"
    assert fedfa(environment, "dlq", "drop", "all").returncode == 0
    assert fedfa(environment, "dlq", "list").stdout == "no dead letters\n"


def test_no_number_of_looks_at_a_dead_letter_drops_it(
    publisher: Publisher, broker_settings: BrokerSettings
) -> None:
    # given: RabbitMQ 4 drops a message after 21 deliveries by default
    bury(publisher, UPDATE)
    # when
    for _ in range(trial.NUM_DELIVERIES):
        with opened(broker_settings, DEAD_QUEUE.name) as letters:
            assert len(letters) == 1
    # then
    assert take(broker_settings, DEAD_QUEUE).message() == UPDATE


def test_no_number_of_outages_drops_an_update(
    publisher: Publisher, broker_settings: BrokerSettings
) -> None:
    publisher.publish(UPDATE, UPDATES)
    leave(broker_settings, UPDATES_QUEUE, times=trial.NUM_DELIVERIES)
    assert take(broker_settings, UPDATES_QUEUE).message() == UPDATE


def test_with_the_policy_what_is_delivered_too_often_becomes_a_dead_letter(
    environment: dict[str, str],
    publisher: Publisher,
    rabbit: RabbitMQ,
    broker_settings: BrokerSettings,
) -> None:
    # given the policy as the doctor prints it, but for the number
    vhost = broker_settings.url.get_secret_value().rpartition("/")[2]
    policy = json.dumps(json.loads(doctor.POLICY) | {"delivery-limit": 3})
    trial.declare(broker_settings, DEAD_QUEUE)
    publisher.publish(UPDATE, UPDATES)
    rabbit.ctl("set_policy", "-p", vhost, "fedfa", doctor.POLICY_PATTERN, policy)
    try:
        # when
        leave(broker_settings, UPDATES_QUEUE, times=4)
        # then
        wait_for(lambda: publisher.counts(DEAD_QUEUE.name)[0])
    finally:
        rabbit.ctl("clear_policy", "-p", vhost, "fedfa")
    (letter,) = listed(environment)
    assert letter["kind"] == "UpdateReady"
    assert letter["reason"] == "moved by the broker from fedfa.updates: delivery_limit"
    assert letter["age_seconds"] < 60


def test_the_scheduler_shows_how_many_letters_wait(
    environment: dict[str, str], publisher: Publisher, tmp_path: Path
) -> None:
    # given
    bury(publisher, UPDATE, GARBAGE)
    port = free_port()
    variables = environment | {"FEDFA_HTTP_PORT": str(port), "PATH": ""}
    scheduler = ServerProcess(
        "scheduler",
        [sys.executable, "-m", "fedfa_scheduler"],
        log=tmp_path / "scheduler.log",
        env=variables,
    )
    scheduler.wait_until(lambda: accepts(port), timeout_seconds=30)

    def shows_two() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return "fedfa_dead_letters_waiting 2.0" in answer.read().decode()

    # then
    wait_for(shows_two)
    scheduler.stop()
