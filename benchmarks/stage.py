"""A private RabbitMQ, a private SeaweedFS, and real services on them, for one benchmark."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import psutil
from null_store import NullStore

from fedfa.broker import Consumer, Publisher
from fedfa.local.processes import ServerProcess
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.messages import AnyMessage, ModelReady, UpdateReady
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings
from fedfa.topology import UPDATES, Queue

AGGREGATOR = (sys.executable, "-m", "fedfa_aggregator")
SCHEDULER = (sys.executable, "-m", "fedfa_scheduler")
PATIENCE_SECONDS = 600.0


class Stage:
    """A context manager; everything that was started on it ends with it.

    bucket_folder: the S3 server's data, kept afterwards. has_null_store: the store is one that
    does next to nothing.
    """

    def __init__(self, *, bucket_folder: Path | None = None, has_null_store: bool = False) -> None:
        self._exit = ExitStack()
        self._bucket_folder = bucket_folder
        self._has_null_store = has_null_store

    def __enter__(self) -> Self:
        with ExitStack() as undo_if_this_fails:
            undo_if_this_fails.push(self)
            temporary = tempfile.TemporaryDirectory(prefix="fedfa-", ignore_cleanup_errors=True)
            self.folder = Path(self._exit.enter_context(temporary))
            self.rabbit = RabbitMQ(self.folder / "rabbitmq")
            self.s3 = self._store()
            for server in (self.rabbit, self.s3):
                self._exit.callback(server.stop)
                server.start()
            self.store = S3Store(self.s3.settings())
            self.broker = BrokerSettings.model_validate({"url": self.rabbit.url})
            undo_if_this_fails.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _store(self) -> SeaweedFS | NullStore:
        if self._has_null_store:
            return NullStore(self.folder)
        return SeaweedFS(self._bucket_folder or self.folder / "s3")

    def start(self, command: Sequence[str], **variables: str) -> ServerProcess:
        """A service, pointed at the bucket and the broker."""
        name = Path(command[-1]).name
        environment = {
            **os.environ,
            "FEDFA_AMQP_URL": self.broker.url.get_secret_value(),
            "FEDFA_S3_ENDPOINT": self.s3.endpoint,
            "FEDFA_S3_BUCKET": self.s3.bucket,
            "FEDFA_S3_ACCESS_KEY": self.s3.access_key,
            "FEDFA_S3_SECRET_KEY": self.s3.secret_key,
            **variables,
        }
        process = ServerProcess(name, command, log=self.folder / f"{name}.log", env=environment)
        self._exit.callback(process.stop)
        return process

    def publisher(self) -> Publisher:
        publisher = Publisher(self.broker, name="bench")
        self._exit.callback(publisher.close)
        return publisher

    def consumer(self, *queues: tuple[Queue, int]) -> Consumer:
        """Registered when this returns."""
        consumer = Consumer(self.broker, queues, name="bench", idle_seconds=0.002)
        self._exit.callback(consumer.close)
        wait(lambda: consumer.is_consuming)
        return consumer


def wait(condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Until the condition is true; ends the benchmark if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain for {seconds:g} s")
        time.sleep(0.001)


def received(consumer: Consumer) -> list[AnyMessage]:
    """What has arrived, acknowledged."""
    found = []
    for delivery in consumer.ready():
        found.append(delivery.message())
        delivery.ack()
    return found


def announce(publisher: Publisher, heard: Consumer, updates: Sequence[UpdateReady]) -> None:
    """Returns when all of them are closed."""
    for update in updates:
        publisher.publish(update, UPDATES)
    open_jobs = {(update.slot, update.generation) for update in updates}

    def is_done() -> bool:
        for message in received(heard):
            if isinstance(message, ModelReady):
                open_jobs.difference_update(message.closed)
        return not open_jobs

    wait(is_done)


def cpu_seconds(process: ServerProcess) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def peak_mib(process: ServerProcess) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
