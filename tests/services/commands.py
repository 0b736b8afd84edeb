"""The `fedfa` command as a person runs it: another process, settings from the environment."""

import os
import subprocess
import sys
from collections.abc import Mapping


def fedfa(environment: Mapping[str, str], *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedfa.cli", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
