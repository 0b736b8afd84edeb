"""The `fedfa` command in a process that a test interrupts, and that is gone afterwards."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(
    *arguments: object,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-m", "fedfa.cli", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | (variables or {}),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        preexec_fn=_hear_interrupts,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear_interrupts() -> None:
    """In the background of a script the tests ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
