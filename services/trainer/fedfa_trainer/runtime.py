"""Where a trainer's time and threads come from. A simulation of the protocol brings its own."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Signal(Protocol):
    """What wakes whoever sleeps: the used part of threading.Event."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """The used part of threading.Lock."""

    def acquire(self, *, timeout: float) -> bool: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """clock: monotonic seconds. unix: since 1970, to inform. start: run a body concurrently."""

    clock: Callable[[], float]
    unix: Callable[[], float]
    signal: Callable[[], Signal]
    lock: Callable[[], Lock]
    start: Callable[[str, Callable[[], None]], None]


def _start_thread(name: str, body: Callable[[], None]) -> None:
    threading.Thread(target=body, name=name, daemon=True).start()


THREADS = Runtime(time.monotonic, time.time, threading.Event, threading.Lock, _start_thread)
