"""Processes forked from one that has imported torch, which takes seconds for each otherwise.

Large libraries are loaded there and nothing of ours: a fork reads its environment as any other
process does. Linux and macOS only. A script that starts some needs `if __name__ == "__main__":`.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from fedfa.errors import Misconfigured

EXIT_UNGUARDED = 78  # EX_CONFIG: change the script

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["torch", "sklearn.datasets"])  # one that is missing is left out


class Fork:
    """`python -m module` in a session of its own, used like a subprocess.Popen."""

    def __init__(self, module: str, *, log: Path, env: Mapping[str, str]) -> None:
        """Its output is appended to the log; env is the whole environment."""
        ours, its = forks.Pipe(duplex=False)
        self._process = forks.Process(
            target=_become, args=(its, module, str(log), dict(env)), daemon=True
        )
        self._process.start()
        its.close()
        with suppress(EOFError), ours:  # then it is dead already
            ours.recv()
            return
        self._process.join()
        if error := unguarded(self._process.exitcode):
            raise error

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self._process.exitcode


def end_unguarded() -> None:
    """For whatever starts processes: end here and now if this one only imports the script.

    A fork imports the script that started it, to know what that defines. Without a guard it would
    run the script again, and start servers before multiprocessing refuses the first process.
    `unguarded` tells the user, where the script itself runs.
    """
    # What multiprocessing looks at for its own refusal; it has no public name.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(EXIT_UNGUARDED)


def unguarded(exit_code: int | None) -> Misconfigured | None:
    """What to tell of a process that ended so."""
    if exit_code != EXIT_UNGUARDED:
        return None
    return Misconfigured(
        f"{sys.argv[0]}: its processes import this script, and must not run it again; put what "
        'starts them below `if __name__ == "__main__":`'
    )


def separate(log: str) -> None:
    """Leave the session of whoever started this process, and write to a file."""
    os.setsid()
    with open(log, "ab") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)


def _become(started: Connection, module: str, log: str, env: dict[str, str]) -> None:
    separate(log)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    started.send(None)
    started.close()
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
