"""The core: a federation as a value, and the one function that decides everything. PURE.

`step(federation, event)` says what one event does: which updates fill the window, which slots
open their next generation and for which clients, whether the version rises. No I/O, no clock, no
hidden randomness: the same events give the same federation, always. Services, simulator and
`fedfa verify` all run it. `fedfa.stops` says when it is over.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from fedfa.events import (
    Abandoned,
    Decision,
    Event,
    Job,
    Merged,
    Opened,
    PoolChanged,
    Rejected,
    Stopped,
    Update,
)
from fedfa.merge import Entry, Verdict, rule_of
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


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the Mc places for a job; its index is its number.

    Open: its generation is out for a client. Waiting, which some rules want after a merged
    update: its generation is the next one, and has no client yet.
    """

    generation: int
    client: str  # "" while it waits
    opened_at: int  # version when this generation opened, or began to wait

    @property
    def is_open(self) -> bool:
        return self.client != ""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that changed at least once: whether it is down, and how often it changed."""

    down: bool
    changes: int


@dataclass(frozen=True, slots=True)
class State:
    """All of a federation that changes; every manifest records it.

    trouble: rejections and abandonments in a row, by client. set_aside: client -> the number of
    decisions after which it may be sampled again. update_norms, step_norms: of the newest, for
    the guards; first_step_norm: the usual one when the run began.
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
    first_step_norm: float | None


@dataclass(frozen=True)
class Clients:
    """All clients of a federation, in the order of their names."""

    ordered: tuple[Client, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        """Each client's place, by name."""
        return {client.name: at for at, client in enumerate(self.ordered)}

    def named(self, name: str) -> Client:
        return self.ordered[self.index[name]]


@dataclass(frozen=True, slots=True)
class Federation:
    """A federation as an immutable value: what never changes, and its state."""

    spec: FederationSpec
    clients: Clients
    state: State

    def having(self, state: State) -> "Federation":
        return replace(self, state=state)

    def pool_of(self, client: str) -> str:
        return self.clients.named(client).pool

    def is_down(self, pool: str) -> bool:
        return pool in self.state.pools and self.state.pools[pool].down

    def num_changes(self, pool: str) -> int:
        return self.state.pools[pool].changes if pool in self.state.pools else 0

    def open_jobs(self) -> list[tuple[Job, Slot]]:
        return [
            (Job(number, slot.generation), slot)
            for number, slot in enumerate(self.state.slots)
            if slot.is_open
        ]

    def standing(self, job: Job) -> Standing:
        """Whether a job is open, was closed before (late), or is unknown to this state (ahead)."""
        if self.state.status != "running":
            return "late"
        if job.slot >= len(self.state.slots):
            return "ahead"
        slot = self.state.slots[job.slot]
        if job.generation < slot.generation:
            return "late"
        return "open" if slot.is_open and job.generation == slot.generation else "ahead"


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
        first_step_norm=None,
    )
    ordered = tuple(sorted(clients, key=lambda client: client.name))
    federation = Federation(spec, Clients(ordered), state)
    for number in range(spec.concurrency):
        slot = Slot(1, sample(federation, Job(number, 1)), opened_at=0)
        federation = federation.having(
            replace(federation.state, slots=(*federation.state.slots, slot))
        )
    return federation


def step(federation: Federation, event: Event) -> tuple[Federation, Decision]:
    """What one event does. The caller made sure that its job is open (see `standing`)."""
    state = replace(federation.state, num_decisions=federation.state.num_decisions + 1)
    opened: tuple[Opened, ...] = ()
    staleness: int | None = None
    match event:
        case Merged(update):
            staleness = state.version - update.base_version
            verdict, window = apply_rule(federation, event)
            state = _merged(state, event, verdict, window)
            federation = federation.having(_closed(state, update.job))
            federation, opened = _reopen(federation, _reopening(federation, verdict, update.job))
        case Rejected(update):
            staleness = state.version - update.base_version
            state = replace(state, num_rejected=state.num_rejected + 1)
            state = _closed(_in_trouble(federation, state, update.job), update.job)
            federation, opened = _reopen(federation.having(state), [update.job.slot])
        case Abandoned(job):
            state = replace(state, num_abandoned=state.num_abandoned + 1)
            if not federation.is_down(federation.pool_of(state.slots[job.slot].client)):
                state = _in_trouble(federation, state, job)  # otherwise no client is to blame
            federation, opened = _reopen(federation.having(_closed(state, job)), [job.slot])
        case PoolChanged(name, change, outcome):
            pool = Pool(down=outcome == "pool_down", changes=change)
            federation = federation.having(replace(state, pools={**state.pools, name: pool}))
        case Stopped(status, reason, final_version):
            federation = federation.having(
                replace(state, status=status, reason=reason, final_version=final_version, slots=())
            )
    return federation, Decision(event, federation.state.version, staleness, opened)


def apply_rule(federation: Federation, event: Merged) -> tuple[Verdict, tuple[Entry, ...]]:
    """The rule's answer to one more update, and the window after it.

    The event's step_norm is not looked at: it follows from the answer.
    """
    state, update = federation.state, event.update
    entry = Entry(
        key=update.key,
        digest=update.digest,
        base_version=update.base_version,
        staleness=state.version - update.base_version,
        num_examples=update.num_examples,
        num_steps=update.num_steps,
        clients=(update.client,),
        cosine=1.0 if event.cosine is None else event.cosine,
    )
    window = (*state.window, entry)
    verdict = rule_of(federation.spec).merge(window)
    return verdict, window[len(window) - verdict.kept :]


def refusal(federation: Federation, update: Update) -> str | None:
    """Why what an update says of itself makes it unfit to be merged now, or None."""
    owned = federation.clients.named(update.client).num_examples
    if update.num_examples > owned:  # rules weigh by it
        return f"num_examples: {update.num_examples}, at birth {update.client} had {owned}"
    return too_stale(federation, update.base_version)


def too_stale(federation: Federation, base_version: int) -> str | None:
    """Why the rule refuses an update from this version, or None: its base may be gone."""
    limit = rule_of(federation.spec).max_staleness
    staleness = federation.state.version - base_version
    if limit is None or staleness <= limit:
        return None
    return f"too_stale: {staleness} versions, at most {limit} (rule.max_staleness)"


def is_evaluation_due(spec: FederationSpec, state: State, version: int) -> bool:
    """Whether this version is to be evaluated: the cadence, and the final one."""
    return version % spec.evaluation.every_versions == 0 or version == state.final_version


def excess_step(federation: Federation, step_norm: float) -> float | None:
    """The limit that a step of the model exceeds, or None.

    Against the newest steps, which a sudden divergence leaves behind, and against the first ones
    with the factor squared: a slow divergence takes its own history along.
    """
    state, factor = federation.state, federation.spec.limits.step_norm_factor
    limit = excess_norm(state.step_norms, step_norm, factor)
    if limit is None and state.first_step_norm and step_norm > factor**2 * state.first_step_norm:
        return factor**2 * state.first_step_norm
    return limit


def excess_norm(history: tuple[float, ...], norm: float, factor: float) -> float | None:
    """The limit that a norm exceeds, or None: factor times the median of a long enough history."""
    if len(history) < NORM_HISTORY_NEEDED:
        return None
    limit = factor * median(history)
    return limit if limit > 0 and norm > limit else None


def median(norms: tuple[float, ...]) -> float:
    """The median; the upper middle value of an even number."""
    return sorted(norms)[len(norms) // 2]


def sample(federation: Federation, job: Job) -> str:
    """The client of a job that is about to open: a PRF of (seed, slot, generation) picks.

    Among the idle clients of working pools that are not set aside; failing that, the idle client
    that was set aside least recently; failing that, one of an unavailable pool. Under a rule of
    rounds a client whose update waits in the window is not idle. With at most as many slots as
    clients somebody always is.
    """
    clients, index = federation.clients.ordered, federation.clients.index
    state = federation.state
    busy = {
        index[slot.client]
        for number, slot in enumerate(state.slots)
        if number != job.slot and slot.is_open
    }
    if rule_of(federation.spec).excludes_waiting:
        busy |= {index[name] for entry in state.window for name in entry.clients}
    draw = prf(federation.spec.seed, "client", job.slot, job.generation)
    aside = {
        index[name]: until for name, until in state.set_aside.items() if until > state.num_decisions
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


def _merged(state: State, event: Merged, verdict: Verdict, window: tuple[Entry, ...]) -> State:
    client = event.update.client
    step_norms, first = state.step_norms, state.first_step_norm
    if event.step_norm is not None:
        step_norms = (*step_norms, event.step_norm)[-NORM_HISTORY:]
        if first is None and len(step_norms) == NORM_HISTORY_NEEDED:
            first = median(step_norms)
    return replace(
        state,
        version=state.version + (verdict.combination is not None),
        window=window,
        num_merged=state.num_merged + 1,
        failures_in_a_row=0,
        trouble={name: count for name, count in state.trouble.items() if name != client},
        update_norms=(*state.update_norms, event.norm)[-NORM_HISTORY:],
        step_norms=step_norms,
        first_step_norm=first,
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


def _closed(state: State, job: Job) -> State:
    """Close a job: its slot waits with the next generation until it opens again."""
    return _with_slot(state, job.slot, Slot(job.generation + 1, "", opened_at=state.version))


def _reopening(federation: Federation, verdict: Verdict, closed: Job) -> list[int]:
    """The slots that a merge opens again, by number."""
    if verdict.reopens == "own":
        return [closed.slot]
    if verdict.reopens == "none":
        return []
    return [number for number, slot in enumerate(federation.state.slots) if not slot.is_open]


def _reopen(federation: Federation, numbers: list[int]) -> tuple[Federation, tuple[Opened, ...]]:
    """Open waiting slots, one by one, for whoever is idle then: the closed jobs' clients are."""
    opened = []
    for number in numbers:
        state = federation.state
        job = Job(number, state.slots[number].generation)
        client = sample(federation, job)
        slot = Slot(job.generation, client, opened_at=state.version)
        federation = federation.having(_with_slot(state, number, slot))
        opened.append(Opened(job, client))
    return federation, tuple(opened)


def _with_slot(state: State, number: int, slot: Slot) -> State:
    return replace(state, slots=(*state.slots[:number], slot, *state.slots[number + 1 :]))
