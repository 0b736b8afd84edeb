"""Worker processes that train and evaluate side by side, and never change what comes out.

Models and updates travel through the store. What a worker answers depends on its order alone, so
neither their number nor the order of execution matters.
"""

import importlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import PriorityQueue
from typing import Any, Self, TypeVar

from fedfa.errors import FedfaError
from fedfa.forks import end_unguarded, forks, separate, unguarded
from fedfa.simulate.orders import Failed, Order

Answer = TypeVar("Answer")
Urgency = tuple[float, ...]  # smaller is sooner

WORKER = "fedfa.simulate.worker"  # by name: this process needs no torch
LOG_TAIL_BYTES = 2_000
NEVER: Urgency = (float("inf"),)
INDICES = count()  # of this process's workers: they share out the GPUs by it


class TaskFailed(FedfaError):
    """Raised when a worker could not do what it was asked: its task or its data are at fault."""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def processor() -> str:
    """What it calls itself; a virtual machine's may keep its model to itself."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


class Workers:
    """A context manager: entered, it runs `number` processes; on leaving they are killed."""

    def __init__(
        self, root: Path, federation: str, *, number: int, threads: int, task_allow: Sequence[str]
    ) -> None:
        """root is the DirectoryStore's; threads are torch's, in each worker."""
        end_unguarded()
        self._number = number
        self._work = root, federation, threads, tuple(task_allow)
        self._orders: PriorityQueue[tuple[Urgency, int, Order[Any] | None, Future[Any]]] = (
            PriorityQueue()
        )
        self._numbers = count()
        self._processes: list[_Worker] = []
        self._threads: list[threading.Thread] = []

    def submit(self, order: Order[Answer], *, urgency: Urgency) -> Future[Answer]:
        """Have an order carried out; the most urgent one first. Its future may raise TaskFailed."""
        future: Future[Answer] = Future()
        self._orders.put((urgency, next(self._numbers), order, future))
        return future

    def __enter__(self) -> Self:
        for _ in range(self._number):
            worker = _Worker(*self._work, next(INDICES))
            thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
            self._processes.append(worker)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._processes:
            worker.kill()
            self._orders.put((NEVER, next(self._numbers), None, Future()))
        for thread in self._threads:
            thread.join()
        for worker in self._processes:
            worker.close()

    def _serve(self, worker: "_Worker") -> None:
        """Pass orders to one worker, until there is none or the worker is gone."""
        while True:
            _, _, order, future = self._orders.get()
            if order is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = worker.ask(order)
            except FedfaError as error:
                future.set_exception(error)
            else:
                future.set_result(answer)


class _Worker:
    """One process. It ends when its connection does, so it cannot outlive this one."""

    def __init__(self, *work: Any) -> None:
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115 - close() closes it
        self._channel, its_end = forks.Pipe()
        self._process = forks.Process(
            target=_become_worker, args=(its_end, self._log.name, *work), daemon=True
        )
        self._process.start()
        its_end.close()

    def ask(self, order: Order[Answer]) -> Answer:
        try:
            self._channel.send(order)
            answer: Answer | Failed = self._channel.recv()
        except (OSError, EOFError):
            self._process.join()
            code = self._process.exitcode
            ended = TaskFailed(f"worker: ended with code {code}: {self._log_tail()}")
            raise (unguarded(code) or ended) from None
        if isinstance(answer, Failed):
            raise TaskFailed(answer.error)
        return answer

    def kill(self) -> None:
        """Its end wakes the thread that waits for its answer."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self._channel.close()
        self._process.close()
        self._log.close()

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip() or "it said nothing"


def _become_worker(channel: Connection, log: str, *work: Any) -> None:
    separate(log)  # Ctrl-C is for who ordered this: it decides what becomes of us
    importlib.import_module(WORKER).main(channel, *work)
