"""Waiting for what others do, with a limit that nothing but a defect reaches."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    condition: Callable[[], Any],
    *,
    seconds: float = 60.0,
    every_seconds: float = 0.02,
    of: object = "it",
) -> Any:
    """The first true value of a condition. of: what is waited for, in the words of a failure."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {of} in vain"
        time.sleep(every_seconds)
    return value
