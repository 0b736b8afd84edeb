"""fedfa-trainer: settings -> store, broker -> loop."""

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

import torch

from fedfa.broker import Consumer, Publisher
from fedfa.errors import FedfaError
from fedfa.gpu import Gpu
from fedfa.observability import (
    EXIT_BROKEN,
    EXIT_MISCONFIGURED,
    begin,
    end,
    ready,
    serve_http,
)
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa_trainer.bucket import Bucket
from fedfa_trainer.computer import TorchComputer
from fedfa_trainer.failures import Broken
from fedfa_trainer.journal import Journal
from fedfa_trainer.protection import Pod, Protection
from fedfa_trainer.service import Trainer, queues
from fedfa_trainer.settings import TrainerSettings
from fedfa_trainer.work import Worker

logger = logging.getLogger(__name__)

EXIT_AT_ONCE = 128 + signal.SIGTERM
FLUSH_SECONDS = 1.0


def main() -> None:
    settings, broker_settings, store_settings = begin("trainer", TrainerSettings)
    if settings.trainer_torch_threads is not None:
        torch.set_num_threads(settings.trainer_torch_threads)
    status = 0
    try:
        serve(settings, broker_settings, store_settings)
    except FedfaError as error:
        end(error)
        status = EXIT_BROKEN if isinstance(error, Broken) else EXIT_MISCONFIGURED
    # Work that was handed back may still compute in its thread. It must not outlive us, and the
    # interpreter's own exit would crash in the middle of torch.
    logging.shutdown()
    os._exit(status)


def serve(
    settings: TrainerSettings, broker_settings: BrokerSettings, store_settings: StoreSettings
) -> None:
    """Run a trainer until a signal ends it."""
    show_busy: Callable[[bool], object] = bool
    if settings.trainer_pod is not None:
        show_busy = Protection(Pod.here(settings.trainer_pod).mark).show
    publisher = Publisher(broker_settings, name=settings.trainer_name)
    consumer = Consumer(broker_settings, queues(settings.pools), name=settings.trainer_name)
    bucket = Bucket(S3Store(store_settings))
    journal = Journal(settings.trainer_journal)
    gpu = Gpu(
        bf16=settings.trainer_gpu_autocast,
        channels_last=settings.trainer_gpu_channels_last,
        compile=settings.trainer_gpu_compile,
    )
    worker = Worker(
        bucket,
        publisher,
        TorchComputer(gpu),
        task_allow=settings.task_allow,
        prefetch=settings.trainer_prefetch,
        journal=journal,
    )
    trainer = Trainer(settings, consumer, publisher, bucket, worker, show_busy=show_busy)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if trainer.is_stopping:
            os._exit(EXIT_AT_ONCE)
        trainer.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    routes = {
        "/healthz": trainer.pulse.answer,
        "/readyz": ready(lambda: consumer.is_consuming),
        "/jobs": trainer.jobs,
    }
    port = serve_http(settings.http_host, settings.http_port, routes)
    logger.info("trainer started", extra={"port": port, "pools": settings.pools})
    try:
        trainer.run()
    finally:
        consumer.close()
        publisher.close(FLUSH_SECONDS)


if __name__ == "__main__":
    main()
