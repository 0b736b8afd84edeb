"""Places where a test ends, stops or delays a service, as a crash or a stall would.

FEDFA_FAILPOINT arms one of them: `name[@nth][=action]`, for example `commit.model_put`,
`trainer.put@3=stop` or `commit.before_manifest=sleep:5`. Without `@nth` it strikes whenever the
place is reached, with it only the nth time. Actions: kill (SIGKILL, the default), stop (SIGSTOP,
until somebody sends SIGCONT), exit:code (at once, nothing is cleaned up), sleep:seconds.
"""

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedfa.errors import Misconfigured

VARIABLE = "FEDFA_FAILPOINT"

Name = Literal[
    # the aggregator, for each batch
    "aggregator.received",  # messages are here, nothing is decided
    "aggregator.fetched",  # an update's file was read and checked
    "aggregator.birth_read",  # version 0's file was read and checked
    "aggregator.decided",  # the batch is complete, nothing is written
    "commit.model_put",  # the model's file is there, no manifest names it
    "commit.before_manifest",
    "commit.after_manifest",  # committed, and the writer may not know it
    "aggregator.committed",  # nobody was told
    "aggregator.published",  # ModelReady was sent, nothing is acknowledged
    "aggregator.acked",  # after each acknowledgement
    "aggregator.head_put",
    "aggregator.buried",  # a poison message is with the dead letters, and not acknowledged
    "aggregator.collected",  # an object that retention let go was deleted
    # the trainer: a claim, then one of three kinds of work
    "trainer.claim_sent",  # the scheduler knows, and nobody else
    "trainer.claimed",  # everybody knows, the broker still holds the message
    "trainer.acked",
    "trainer.trained",
    "trainer.before_put",
    "trainer.put",  # the file is there, nobody was told
    "trainer.published",  # UpdateReady is confirmed
    "trainer.evaluated",
    "trainer.evaluation_created",
    "trainer.evaluation_announced",
    "trainer.initialised",
    "trainer.initial_model_put",
    "trainer.initial_model_announced",
    "trainer.failure_reported",  # the scheduler knows that a job failed
    "trainer.buried",
    # the scheduler
    "scheduler.received",
    "scheduler.before_ack",
    "scheduler.looked",  # the bucket was asked before a job is handed out again or given up
    "scheduler.published",  # whatever it was, the scheduler does not count on it yet
    "scheduler.before_abandon",
    "scheduler.before_evaluation_failure",
    "scheduler.buried",
]
NAMES: tuple[Name, ...] = get_args(Name)
ACTIONS = ("kill", "stop", "exit:code", "sleep:seconds")


@dataclass(slots=True)
class Failpoint:
    """One armed place. nth None: every time."""

    name: str
    nth: int | None
    action: str
    number: float  # the exit code, or seconds
    _reached: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, name: str) -> None:
        if name != self.name:
            return
        with self._lock:
            self._reached += 1
            strikes = self.nth in (None, self._reached)
        if strikes:
            self._strike()

    def _strike(self) -> None:
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(int(self.number))
            case "sleep":
                time.sleep(self.number)


def parse(text: str) -> Failpoint | None:
    """What the variable asks for; None where it is empty. Raises Misconfigured."""
    if not text:
        return None
    place, _, what = text.partition("=")
    name, has_nth, nth = place.partition("@")
    action, _, number = what.partition(":")
    action = action or "kill"
    try:
        if name not in NAMES or action not in {each.partition(":")[0] for each in ACTIONS}:
            raise ValueError
        return Failpoint(name, int(nth) if has_nth else None, action, float(number or 0))
    except ValueError:
        raise Misconfigured(
            f"{VARIABLE}: {text!r} is no failpoint; write name[@nth][=action] with an action of "
            f"{', '.join(ACTIONS)} and a name of {', '.join(NAMES)}"
        ) from None


_ARMED = parse(os.environ.get(VARIABLE, ""))


def reach(name: Name) -> None:
    """Say that this place is reached. Costs nothing unless a failpoint is armed."""
    if _ARMED is not None:
        _ARMED.reach(name)
