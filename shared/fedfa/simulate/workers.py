"""Worker processes that train and evaluate side by side, and never change what comes out.

Orders and answers are lines of JSON; models and updates travel through the store. What a worker
answers depends on its order alone, so neither their number nor the order of execution matters.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from types import TracebackType
from typing import IO, Any, Self

from fedfa.errors import FedfaError

Answer = dict[str, Any]
Urgency = tuple[float, ...]  # smaller is sooner

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
LOG_TAIL_BYTES = 2_000
NEVER: Urgency = (float("inf"),)
INDICES = count()  # of this process's workers: they share out the GPUs by it


class TaskFailed(FedfaError):
    """Raised when a worker could not do what it was asked: its task or its data are at fault."""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Workers:
    """A context manager: entered, it runs `number` processes; on leaving they are killed."""

    def __init__(
        self, root: Path, federation: str, *, number: int, threads: int, task_allow: Sequence[str]
    ) -> None:
        """root is the DirectoryStore's; threads are torch's, in each worker."""
        self._number = number
        self._command = [
            *(sys.executable, "-m", "fedfa.simulate.worker", str(root), federation),
            *(str(threads), ",".join(task_allow)),
        ]
        self._environment = os.environ | dict.fromkeys(THREADS, str(threads))
        self._orders: PriorityQueue[tuple[Urgency, int, Answer | None, Future[Answer]]] = (
            PriorityQueue()
        )
        self._numbers = count()
        self._processes: list[_Worker] = []
        self._threads: list[threading.Thread] = []

    def submit(self, order: Answer, *, urgency: Urgency) -> Future[Answer]:
        """Have an order carried out; the most urgent one first. Its future may raise TaskFailed."""
        future: Future[Answer] = Future()
        self._orders.put((urgency, next(self._numbers), order, future))
        return future

    def __enter__(self) -> Self:
        for _ in range(self._number):
            worker = _Worker([*self._command, str(next(INDICES))], self._environment)
            thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
            self._processes.append(worker)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            except TaskFailed as error:
                future.set_exception(error)
            else:
                future.set_result(answer)


class _Worker:
    """One process. It ends when its standard input does, so it cannot outlive this one."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for us: we decide what becomes of them
        )

    def ask(self, order: Answer) -> Answer:
        line = ""
        with suppress(OSError, ValueError):  # it is gone: told below
            _pipe(self._process.stdin).write(json.dumps(order) + "\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        if not line:
            raise TaskFailed(f"worker: ended with code {self._process.wait()}: {self._log_tail()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise TaskFailed(answer["error"])
        return answer

    def kill(self) -> None:
        """Its end wakes the thread that waits for its answer."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):  # an order that it did not read any more
                if stream is not None:
                    stream.close()

    def _log_tail(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip() or "it said nothing"


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
