"""fedfa-aggregator: settings -> store, broker -> loop."""

import logging
import os
import signal
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from fedfa import conformance
from fedfa.broker import Consumer, Publisher
from fedfa.errors import FedfaError, Fenced
from fedfa.kernel import kernel
from fedfa.observability import (
    EXIT_FENCED,
    Pulse,
    await_bucket,
    begin,
    end,
    ready,
    serve_http,
)
from fedfa.s3 import S3Store
from fedfa.topology import UPDATES_QUEUE
from fedfa_aggregator.collector import Collector
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.service import Aggregator, run
from fedfa_aggregator.settings import AggregatorSettings
from fedfa_aggregator.views import Views, default_memory_bytes

logger = logging.getLogger(__name__)

WINDOW_READERS = 4  # after a start; then the network is the limit
PUBLISH_SECONDS = 20.0  # then it is an outage, and nothing is held while it lasts


def main() -> None:
    settings, broker_settings, store_settings = begin("aggregator", AggregatorSettings)
    writer = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    pulse = Pulse()
    try:
        store = S3Store(store_settings, on_progress=pulse.beat)  # a model may take minutes
        await_bucket(store.ensure_bucket)
        await_bucket(lambda: conformance.probe(store, now=time.time))
        with (
            closing(Publisher(broker_settings, name="aggregator")) as publisher,
            closing(Reader(store)) as reader,
            closing(
                Consumer(
                    broker_settings,
                    [(UPDATES_QUEUE, settings.aggregator_prefetch)],
                    name="aggregator",
                    heard=reader.hear,
                )
            ) as consumer,
            Collector(store, on_end=consumer.stop) as collector,
            ThreadPoolExecutor(WINDOW_READERS, "window") as readers,
        ):
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, lambda *_: consumer.stop())
            pulse.beat()  # the bucket may have been out for long
            serve_http(
                settings.http_host,
                settings.http_port,
                {"/healthz": pulse.answer, "/readyz": ready(lambda: consumer.is_consuming)},
            )
            mib = settings.aggregator_memory_mib
            memory_bytes = default_memory_bytes() if mib is None else mib * 2**20
            extra = {"kernel": kernel.name, "memory_bytes": memory_bytes}
            logger.info("ready to merge", extra=extra)
            aggregator = Aggregator(
                store,
                lambda message, route, headers: publisher.publish(
                    message, route, headers=headers, timeout_seconds=PUBLISH_SECONDS
                ),
                writer=writer,
                reader=reader,
                views=Views(memory_bytes=memory_bytes),
                read_all=readers.map,
                tend=collector.tend,
                beat=pulse.beat,
            )
            run(consumer, aggregator, store, pulse)
    except Fenced as error:
        raise end(error, exit_code=EXIT_FENCED) from error
    except FedfaError as error:
        raise end(error) from error


if __name__ == "__main__":
    main()
