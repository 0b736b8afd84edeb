"""Server processes for demos and tests: children that end with their parent, whatever happens.

A child runs in its own session (Ctrl-C reaches only us), writes to a log file, and is stopped by
its pid. Linux sends the death signal when the *thread* that started the child ends, so start
children from a thread that lives as long as they should.
"""

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fedfa.errors import Misconfigured
from fedfa.forks import Fork

PORTS = range(12_000, 22_000)
RESERVED_KEPT = 100
_reserved: deque[socket.socket] = deque()
LOG_TAIL_BYTES = 2_000
POLL_SECONDS = 0.05

# A tiny program that asks for the death signal and then becomes the server. A preexec_fn would
# run Python between fork and exec, which can deadlock when other threads hold locks.
_BECOME = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent has ended already")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ServerProcess:
    """One child process, running from its construction until stop() or kill()."""

    _process: "subprocess.Popen[bytes] | Fork"

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start `command`, with exactly `env` (None: ours); the log file is appended to."""
        self.name = name
        self.log = log
        starter = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid())]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*starter, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )

    @classmethod
    def fork(cls, name: str, module: str, *, log: Path, env: Mapping[str, str]) -> Self:
        """`python -m module`, soon up even if it needs torch: see fedfa.forks."""
        self = cls.__new__(cls)
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process = Fork(module, log=log, env=env)
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal's number if one ended it."""
        return self._process.poll()

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Poll until ready. Raises Misconfigured, with the end of the log, if that fails."""
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            if not self.is_running:
                raise Misconfigured(self._explain(f"ended with code {self._process.returncode}"))
            if time.monotonic() > deadline:
                self.kill()
                raise Misconfigured(self._explain(f"was not ready after {timeout_seconds:g} s"))
            time.sleep(POLL_SECONDS)

    def stop(self, *, grace_seconds: float = 10.0) -> None:
        """SIGTERM, then SIGKILL for whatever still runs after the grace."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """SIGKILL, for the process and its own children, as a crash would end them."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def _explain(self, what: str) -> str:
        return f"{self.name} {what}; the end of {self.log}:\n{self.log_tail()}"


def accepts(port: int) -> bool:
    """Whether something on this machine accepts TCP connections at the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Different free ports of 127.0.0.1, below those that the kernel gives to clients.

    A client that retries a port of its own range may connect to itself, and a server that
    restarts may find its port taken by a client. A server takes seconds to bind what it was given
    here, so no other process gets the same meanwhile (on Linux).
    """
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind(("127.0.0.1", random.choice(PORTS)))
            except OSError:
                continue
            port = candidate.getsockname()[1]
            if _reserve(port):
                ports.append(port)
        return ports


@atexit.register
def _release() -> None:
    for claim in _reserved:
        claim.close()


def _reserve(port: int) -> bool:
    """Claim a port among all processes that ask here, until RESERVED_KEPT others are claimed."""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0fedfa-port-{port}")  # not a file: it ends with this process
    except OSError:
        claim.close()
        return False
    _reserved.append(claim)
    if len(_reserved) > RESERVED_KEPT:
        _reserved.popleft().close()
    return True


def free_port() -> int:
    return free_ports(1)[0]
