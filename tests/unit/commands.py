"""The `fedfa` command in a test: how it ended, and what it said."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from fedfa.local.processes import free_port


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str


Fedfa = Callable[..., Ended]


def as_process(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedfa.cli", *map(str, arguments)],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def nowhere() -> dict[str, str]:
    """Settings of servers that do not exist."""
    return {
        "FEDFA_S3_ENDPOINT": f"http://127.0.0.1:{free_port()}",
        "FEDFA_S3_ACCESS_KEY": "a",
        "FEDFA_S3_SECRET_KEY": "b",
        "FEDFA_S3_OUTAGE_SECONDS": "0.2",
    }


def assert_one_line(done: Ended, *parts: str) -> None:
    """The command ended with 2 and one line on stderr, no traceback, that holds these parts."""
    assert done.code == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr
