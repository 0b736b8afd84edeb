"""What may happen to a federation, and what was decided about it: the log's vocabulary.

Values only. `fedfa.federation` says what each event does.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """ "Train this client": identified within its federation by slot and generation."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Update:
    """A finished job as its trainer reported it. Times inform (unix seconds) and decide nothing."""

    job: Job
    attempt: str
    client: str
    key: str
    digest: str
    base_version: int
    num_examples: int
    num_steps: int
    loss: float
    trainer: str
    started_at: float
    train_seconds: float
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Merged:
    """An update enters the window.

    norm: of its difference (deltas) or of its distance from the model (models).
    step_norm: of w_t - w_{t-1}; None while the window fills and the model stays.
    cosine: of the model's way since the update's base with the update; None where the rule does
    not ask for it.
    """

    update: Update
    norm: float
    step_norm: float | None
    cosine: float | None = None
    outcome: Literal["merged"] = "merged"


@dataclass(frozen=True, slots=True)
class Rejected:
    """An update is refused for what it is; its slot goes on with another client."""

    update: Update
    reason: str
    outcome: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A job failed too often; its slot goes on with another client."""

    job: Job
    reason: str
    outcome: Literal["abandoned"] = "abandoned"


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """A pool lost all its trainers, or has some again. change counts the pool's changes from 1."""

    pool: str
    change: int
    outcome: Literal["pool_down", "pool_up"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end: no slot stays open, later updates are late."""

    status: Literal["finished", "stopped", "failed"]
    reason: str
    final_version: int
    outcome: Literal["stopped"] = "stopped"


Event = Merged | Rejected | Abandoned | PoolChanged | Stopped


def job_of(event: Event) -> Job | None:
    """The job that an event closes, if any."""
    match event:
        case Merged(update) | Rejected(update):
            return update.job
        case Abandoned(job):
            return job
    return None


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that a decision opened."""

    job: Job
    client: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One event, as decided: the version after it, its staleness, and the jobs it opened."""

    event: Event
    version: int
    staleness: int | None
    opened: tuple[Opened, ...]
