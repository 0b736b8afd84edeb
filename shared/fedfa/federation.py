"""The pure core: a federation as a value, and the one function that decides everything.

`step(federation, event)` says what one event does: which updates fill the window, which slot
opens its next generation and for which client, whether the version rises, when it is over. No
I/O, no clock, no hidden randomness: the same events give the same federation, always. Services,
simulator and `fedfa verify` all run it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fedfa.merge import rule_of
from fedfa.randomness import prf
from fedfa.spec import FederationSpec

Status = Literal["running", "finished", "stopped", "failed"]
Standing = Literal["open", "late", "ahead"]

NORM_HISTORY = 50  # update norms and step norms remembered, for the guards
NORM_HISTORY_NEEDED = 10  # before a guard judges


@dataclass(frozen=True, slots=True)
class Client:
    """An owner of private data, which never leaves the trainers of its pool."""

    name: str
    num_examples: int
    pool: str = "default"


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """ "Train this client": identified within its federation by slot and generation."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the Mc places for an open job; its index is its number."""

    generation: int
    client: str
    opened_at: int  # version when this generation opened


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
class Entry:
    """A window entry: one file, made of one client's update (or, one day, of a block's sum)."""

    key: str
    digest: str
    base_version: int
    num_examples: int
    num_steps: int
    clients: tuple[str, ...]


# -- events: what may happen to a federation ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merged:
    """An update enters the window.

    norm: of its difference (deltas) or of its distance from the model (models).
    step_norm: of w_t - w_{t-1}; None while the window fills and the model stays.
    """

    update: Update
    norm: float
    step_norm: float | None
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
    """The job that a decision opened."""

    job: Job
    client: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One event, as decided: the version after it, its staleness, and the job it opened."""

    event: Event
    version: int
    staleness: int | None
    opened: Opened | None


# -- state ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that changed at least once: whether it is down, and how often it changed."""

    down: bool
    changes: int


@dataclass(frozen=True, slots=True)
class State:
    """All of a federation that changes; every manifest records it.

    trouble: rejections and abandonments in a row, by client. set_aside: client -> the number of
    decisions after which it may be sampled again.
    """

    status: Status
    reason: str
    version: int
    final_version: int | None
    slots: tuple[Slot, ...]
    window: tuple[Entry, ...]
    num_decisions: int
    num_merged: int
    num_rejected: int
    num_abandoned: int
    failures_in_a_row: int
    trouble: dict[str, int]
    set_aside: dict[str, int]
    pools: dict[str, Pool]
    update_norms: tuple[float, ...]
    step_norms: tuple[float, ...]


@dataclass(frozen=True)
class Federation:
    """A federation as an immutable value: what never changes, and its state."""

    spec: FederationSpec
    clients: tuple[Client, ...]  # sorted by name
    state: State

    @cached_property
    def index(self) -> dict[str, int]:
        return {client.name: at for at, client in enumerate(self.clients)}

    def having(self, state: State) -> "Federation":
        successor = replace(self, state=state)
        successor.__dict__["index"] = self.index  # the clients are the same
        return successor

    def pool_of(self, client: str) -> str:
        return self.clients[self.index[client]].pool

    def is_down(self, pool: str) -> bool:
        return pool in self.state.pools and self.state.pools[pool].down

    def num_changes(self, pool: str) -> int:
        return self.state.pools[pool].changes if pool in self.state.pools else 0

    def open_jobs(self) -> list[tuple[Job, Slot]]:
        return [
            (Job(number, slot.generation), slot) for number, slot in enumerate(self.state.slots)
        ]

    def standing(self, job: Job) -> Standing:
        """Whether a job is open, was closed before (late), or is unknown to this state (ahead)."""
        if self.state.status != "running":
            return "late"
        if job.slot >= len(self.state.slots):
            return "ahead"
        generation = self.state.slots[job.slot].generation
        if job.generation == generation:
            return "open"
        return "late" if job.generation < generation else "ahead"


def found(spec: FederationSpec, clients: tuple[Client, ...]) -> Federation:
    """A newborn federation at version 0 with Mc open slots.

    The caller has checked that there are at least Mc clients, none without examples.
    """
    state = State(
        status="running",
        reason="",
        version=0,
        final_version=None,
        slots=(),
        window=(),
        num_decisions=0,
        num_merged=0,
        num_rejected=0,
        num_abandoned=0,
        failures_in_a_row=0,
        trouble={},
        set_aside={},
        pools={},
        update_norms=(),
        step_norms=(),
    )
    federation = Federation(spec, tuple(sorted(clients, key=lambda client: client.name)), state)
    for number in range(spec.concurrency):
        slot = Slot(1, sample(federation, Job(number, 1)), opened_at=0)
        federation = federation.having(
            replace(federation.state, slots=(*federation.state.slots, slot))
        )
    return federation


def step(federation: Federation, event: Event) -> tuple[Federation, Decision]:
    """What one event does. The caller made sure that its job is open (see `standing`)."""
    state = replace(federation.state, num_decisions=federation.state.num_decisions + 1)
    opened: Opened | None = None
    staleness: int | None = None
    match event:
        case Merged(update):
            staleness = state.version - update.base_version
            state = _merged(federation.spec, state, event)
            federation, opened = _reopen(federation.having(state), update.job)
        case Rejected(update):
            staleness = state.version - update.base_version
            state = replace(state, num_rejected=state.num_rejected + 1)
            state = _in_trouble(federation, state, update.job)
            federation, opened = _reopen(federation.having(state), update.job)
        case Abandoned(job):
            state = replace(state, num_abandoned=state.num_abandoned + 1)
            if not federation.is_down(federation.pool_of(state.slots[job.slot].client)):
                state = _in_trouble(federation, state, job)  # otherwise no client is to blame
            federation, opened = _reopen(federation.having(state), job)
        case PoolChanged(name, change, outcome):
            pool = Pool(down=outcome == "pool_down", changes=change)
            federation = federation.having(replace(state, pools={**state.pools, name: pool}))
        case Stopped(status, reason, final_version):
            federation = federation.having(
                replace(state, status=status, reason=reason, final_version=final_version, slots=())
            )
    return federation, Decision(event, federation.state.version, staleness, opened)


def due_stop(federation: Federation, event: Event) -> Stopped | None:
    """The stop that this state itself calls for, if any; `event` is what led to it."""
    state, stop = federation.state, federation.spec.stop
    if state.status != "running":
        return None
    if stop.versions is not None and state.version >= stop.versions:
        return Stopped("finished", f"reached {stop.versions} versions", state.version)
    if stop.updates is not None and state.num_merged >= stop.updates:
        return Stopped("finished", f"merged {stop.updates} updates", state.version)
    limit = federation.spec.limits.max_consecutive_rejections
    if state.failures_in_a_row >= limit:
        last = f", at last: {event.reason}" if isinstance(event, Rejected | Abandoned) else ""
        reason = f"{limit} updates in a row were rejected or abandoned{last}"
        return Stopped("failed", reason, state.version)
    return None


def is_evaluation_due(federation: Federation, version: int) -> bool:
    """Whether this version is to be evaluated: the cadence, and the final one."""
    every = federation.spec.evaluation.every_versions
    return version % every == 0 or version == federation.state.final_version


def excess_norm(history: tuple[float, ...], norm: float, factor: float) -> float | None:
    """The limit that a norm exceeds, or None: factor times the median of a long enough history."""
    if len(history) < NORM_HISTORY_NEEDED:
        return None
    limit = factor * sorted(history)[len(history) // 2]
    return limit if limit > 0 and norm > limit else None


def sample(federation: Federation, job: Job) -> str:
    """The client of a job that is about to open: a PRF of (seed, slot, generation) picks.

    Among the idle clients of working pools that are not set aside; failing that, the idle client
    that was set aside least recently; failing that, one of an unavailable pool. With at most as
    many slots as clients somebody is always idle.
    """
    clients, state = federation.clients, federation.state
    busy = {
        federation.index[slot.client]
        for number, slot in enumerate(state.slots)
        if number != job.slot
    }
    draw = prf(federation.spec.seed, "client", job.slot, job.generation)
    aside = {
        federation.index[name]: until
        for name, until in state.set_aside.items()
        if until > state.num_decisions
    }
    down = {name for name, pool in state.pools.items() if pool.down}
    unavailable = (
        {at for at, client in enumerate(clients) if client.pool in down} if down else set()
    )
    excluded = sorted(busy | aside.keys() | unavailable)
    if len(excluded) < len(clients):
        return clients[_nth_outside(draw % (len(clients) - len(excluded)), excluded)].name
    waiting = [(until, at) for at, until in aside.items() if at not in busy | unavailable]
    if waiting:
        return clients[min(waiting)[1]].name
    idle = [at for at in range(len(clients)) if at not in busy]
    return clients[idle[draw % len(idle)]].name


def _nth_outside(n: int, excluded: list[int]) -> int:
    """The n-th natural number that is not in a sorted list: sampling without listing everybody."""
    for number in excluded:
        if number > n:
            break
        n += 1
    return n


def _merged(spec: FederationSpec, state: State, event: Merged) -> State:
    update = event.update
    entry = Entry(
        key=update.key,
        digest=update.digest,
        base_version=update.base_version,
        num_examples=update.num_examples,
        num_steps=update.num_steps,
        clients=(update.client,),
    )
    window = (*state.window, entry)
    merge = rule_of(spec.rule).merge(len(window))
    step_norms = state.step_norms
    if event.step_norm is not None:
        step_norms = (*step_norms, event.step_norm)[-NORM_HISTORY:]
    return replace(
        state,
        version=state.version + (merge.combination is not None),
        window=window[len(window) - merge.kept :],
        num_merged=state.num_merged + 1,
        failures_in_a_row=0,
        trouble={name: count for name, count in state.trouble.items() if name != update.client},
        update_norms=(*state.update_norms, event.norm)[-NORM_HISTORY:],
        step_norms=step_norms,
    )


def _in_trouble(federation: Federation, state: State, job: Job) -> State:
    """Count a failure against the job's client, and set the client aside after too many."""
    client = state.slots[job.slot].client
    limits = federation.spec.limits
    trouble = {**state.trouble, client: state.trouble.get(client, 0) + 1}
    set_aside = {
        name: until for name, until in state.set_aside.items() if until > state.num_decisions
    }
    if trouble[client] >= limits.set_aside_after:
        del trouble[client]
        set_aside[client] = state.num_decisions + limits.set_aside_decisions
    return replace(
        state,
        failures_in_a_row=state.failures_in_a_row + 1,
        trouble=trouble,
        set_aside=set_aside,
    )


def _reopen(federation: Federation, closed: Job) -> tuple[Federation, Opened]:
    """Open the slot's next generation, for whoever is idle now: the closed job's client is too."""
    job = Job(closed.slot, closed.generation + 1)
    client = sample(federation, job)
    state = federation.state
    slot = Slot(job.generation, client, opened_at=state.version)
    slots = (*state.slots[: job.slot], slot, *state.slots[job.slot + 1 :])
    return federation.having(replace(state, slots=slots)), Opened(job, client)
