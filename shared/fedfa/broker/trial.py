"""What `fedfa doctor` tries on a broker, mostly on a queue of its own, deleted at the end."""

import secrets

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from fedfa.broker.connection import declare_queue, must_answer, visit
from fedfa.errors import BrokerUnavailable
from fedfa.settings import BrokerSettings
from fedfa.topology import QUORUM, Queue, Route

NUM_DELIVERIES = 25  # RabbitMQ 4 drops a message after 21, unless it is told otherwise
LEFT_BEHIND_MS = 60_000  # after which the broker deletes what a broken visit left


def use(settings: BrokerSettings) -> int:
    """Declare, publish, consume and delete. Raises Misconfigured where that is not allowed.

    Returns how often, up to NUM_DELIVERIES, a message came that was handed back each time.
    """
    name = f"fedfa.doctor.{secrets.token_hex(8)}"
    arguments = QUORUM | {
        "x-expires": LEFT_BEHIND_MS,
        # Whatever a policy says, nothing of this goes to the dead letters.
        "x-dead-letter-exchange": name,
        "x-dead-letter-routing-key": "nowhere",
    }
    with (
        visit(settings, "doctor") as (connection, channel),
        must_answer(connection, settings, f"use {name}"),
    ):
        declare_queue(channel, Queue(name, Route(name), arguments))
        channel.queue_declare("", exclusive=True)  # as trainers do, for broadcasts
        channel.confirm_delivery()
        persistent = BasicProperties(delivery_mode=2)
        channel.basic_publish(name, "", b"doctor", persistent, mandatory=True)
        num_deliveries = _num_deliveries(channel, name)
        channel.queue_delete(name)
        channel.exchange_delete(name)
    if num_deliveries == 0:
        raise BrokerUnavailable(f"{name}: a message was confirmed and did not arrive")
    return num_deliveries


def declare(settings: BrokerSettings, queue: Queue) -> None:
    """Declare one of our queues. Raises Misconfigured if the broker has another one."""
    with (
        visit(settings, "doctor") as (connection, channel),
        must_answer(connection, settings, f"declare {queue.name}"),
    ):
        declare_queue(channel, queue)


def _num_deliveries(channel: BlockingChannel, queue_name: str) -> int:
    for number in range(NUM_DELIVERIES):
        method, _, _ = channel.basic_get(queue_name)
        if method is None:
            return number
        channel.basic_reject(method.delivery_tag, requeue=True)
    return NUM_DELIVERIES
