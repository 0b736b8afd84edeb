"""RabbitMQ behind publish, consume, ack and counts; the only package that names pika.

A Publisher and a Consumer each own one connection and one thread that alone touches it, because
a broker short of memory stops reading the connections that publish, acks included.
"""

from fedfa.broker.connection import check
from fedfa.broker.consumer import Consumer, Delivery
from fedfa.broker.letters import MAX_LETTERS, Letter, opened
from fedfa.broker.publisher import Publisher

__all__ = ["MAX_LETTERS", "Consumer", "Delivery", "Letter", "Publisher", "check", "opened"]
