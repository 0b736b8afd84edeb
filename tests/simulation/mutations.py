"""The protocol, wrong on purpose: one deliberate mistake each, which the checker must notice.

Each replaces a few lines of the product while a schedule runs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from fedfa import federation as core
from fedfa import keys, ledger, manifests, replica
from fedfa.errors import NotFound
from fedfa.events import Job, Rejected, Stopped, job_of
from fedfa.federation import Federation
from fedfa.log import Evaluation
from fedfa.messages import EvalJob, InitReady, UpdateReady
from fedfa.retention import Kept
from fedfa.sections import KeepBounded
from fedfa.spec import FederationSpec, parse
from fedfa.tensors import FlatModel
from fedfa_aggregator.deciding import Judge
from fedfa_aggregator.service import Aggregator
from fedfa_scheduler import bucket, fleet
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.hearing import Hearing
from fedfa_scheduler.service import Scheduler
from fedfa_trainer.held import Held
from tests.simulation.schedule import Mutation

Patch = Callable[[], AbstractContextManager[object]]


def replaces(target: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replace target.name by make(original)."""
    original = getattr(target, name)
    return lambda: patch.object(target, name, make(original))


def ack_before_commit(original: Any) -> Any:
    def serve(self: Aggregator, deliveries: Any) -> None:
        for delivery in deliveries:
            delivery.ack()
        original(self, deliveries)

    return serve


def no_fence(original: Any) -> Any:
    def commit(store: Any, manifest: Any) -> Any:
        body = manifests.encode(manifest)
        store.put(keys.manifest(manifest.federation, manifest.n), body)
        return manifests.decode(body)

    return commit


def dedupe_by_attempt(original: Any) -> Any:
    def decide(self: Any, held: Any, batch: Any, message: Any) -> None:
        attempts = self.__dict__.setdefault("attempts", set())
        is_new = isinstance(message, UpdateReady) and message.attempt not in attempts
        if is_new and batch.replica and batch.replica.federation.state.slots:
            attempts.add(message.attempt)
            if batch.replica.federation.standing(Job(message.slot, message.generation)) == "late":
                batch.replica, decided = self._decide_update(held, batch.replica, message)
                batch.decisions.extend(decided)
                return
        original(self, held, batch, message)

    return decide


def slot_opened_twice(original: Any) -> Any:
    def reopen(federation: Federation, numbers: list[int]) -> Any:
        after, opened = original(federation, numbers)
        slots = (*after.state.slots, *(after.state.slots[number] for number in numbers))
        return after.having(replace(after.state, slots=slots)), opened

    return reopen


def head_trusted(original: Any) -> Any:
    def newest(store: Any, federation: str, *, known: int = 0) -> Any:
        try:
            return manifests.read(store, federation, manifests._hint(store, federation))
        except NotFound:
            return None

    return newest


def running_sum(original: Any) -> Any:
    def next_model(held: Any, event: Any, vector: FlatModel) -> Any:
        model, window = original(held, event, vector)
        is_param = held.federation.spec.rule.name == "fedfa-param"
        if model is None or not is_param or len(held.window) != len(window):
            return model, window
        change = (vector.floats - held.window[0].floats) / np.float32(len(window))
        return FlatModel(model.template, held.model.floats + change, model.integers), window

    return next_model


def ahead_is_late(original: Any) -> Any:
    def standing(self: Federation, job: Job) -> str:
        return "late" if original(self, job) == "ahead" else str(original(self, job))

    return standing


def silent_on_duplicates(original: Any) -> Any:
    def announce(self: Any, held: Any, batch: Any) -> None:
        if batch.decisions:
            original(self, held, batch)

    return announce


def rejected_slot_waits(original: Any) -> Any:
    def step(federation: Federation, event: Any) -> Any:
        after, decision = original(federation, event)
        job = job_of(event)
        if isinstance(event, Rejected) and job is not None:
            slots = after.state.slots[: job.slot] + after.state.slots[job.slot + 1 :]
            after = after.having(replace(after.state, slots=slots))
        return after, decision

    return step


def stop_leaves_slots(original: Any) -> Any:
    def step(federation: Federation, event: Any) -> Any:
        after, decision = original(federation, event)
        if isinstance(event, Stopped):
            after = after.having(replace(after.state, slots=federation.state.slots))
        return after, decision

    return step


def unclaimed_fails(original: Any) -> Any:
    def has_expired(self: Hearing, lease: Any, now: float) -> bool:
        is_old = self.is_settled(now) and now - lease.since > self.lease_ttl_seconds
        return is_old and lease.stage in ("queued", "claimed")

    return has_expired


def sampled_by_n() -> AbstractContextManager[object]:
    numbers = {"n": 1}
    sample, commit = core.sample, ledger.commit

    def sample_by_n(federation: Federation, job: Job) -> str:
        return sample(federation, Job(job.slot, numbers["n"]))

    def counting(store: Any, held: Any, *arguments: Any, **named: Any) -> Any:
        numbers["n"] = held.head.manifest.n + 2
        return commit(store, held, *arguments, **named)

    stack = ExitStack()
    stack.enter_context(patch.object(core, "sample", sample_by_n))
    stack.enter_context(patch.object(ledger, "commit", counting))
    return stack


def batch_listed_by_window(original: Any) -> Any:
    def commit(store: Any, held: Any, after: Any, decisions: Any, **named: Any) -> Any:
        window = getattr(held.submission.spec.rule, "window", 1)
        listed = decisions[-window:]
        return original(store, held, after, listed, **named)

    return commit


def evaluation_lost(original: Any) -> Any:
    def done(self: Fleet, sent: Any, now: float) -> None:
        original(self, sent, now)
        if isinstance(sent.message, EvalJob):
            self.evaluated(sent.message.federation, Evaluation(sent.message.version, at=0.0))

    return done


def second_initialiser_wins(original: Any) -> Any:
    def decide(self: Any, held: Any, batch: Any, message: Any) -> None:
        if isinstance(message, InitReady) and batch.replica is not None:
            first = manifests.read(self._store, message.federation, 0).manifest
            body = manifests.encode(replace(first, writer="another"))
            self._store.put(keys.manifest(message.federation, 0), body)
        original(self, held, batch, message)

    return decide


def any_uid_is_served(original: Any) -> Any:
    def opened(self: Any, delivery: Any) -> Any:
        mail = original(self, delivery)
        if mail is None:
            return None
        uid = manifests.read_submission(self._store, mail.message.federation).uid
        return replace(mail, message=mail.message.model_copy(update={"uid": uid}))

    return opened


def own_pause_expires_leases(original: Any) -> Any:
    def start(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self._pause_seconds = float("inf")

    return start


@contextmanager
def nothing_settles() -> Any:
    """After its own start or gap it takes what it has not heard for lost, at once."""
    with (
        patch.object(Hearing, "is_settled", lambda self, now: True),
        patch.object(Fleet, "gap", lambda self: None),
    ):
        yield


def newest_is_collected(original: Any) -> Any:
    """A collector that takes its own view of the log for the newest one."""

    def holds(self: Kept, version: int, key: str) -> bool:
        return version <= self.newest and bool(original(self, version, key))

    return holds


def opened_since_is_collected(original: Any) -> Any:
    def may_be_decided(self: Kept, slot: int, generation: int) -> bool:
        return slot < len(self.generations) and generation == self.generations[slot]

    return may_be_decided


@contextmanager
def closed_job_trains_on() -> Any:
    with (
        patch.object(Held, "hear_model", lambda self, ready: None),
        patch.object(Held, "hear_manifest", lambda self, manifest: None),
    ):
        yield


def pools_unmarked(original: Any) -> Any:
    return lambda *arguments, **named: iter(())


def stops_after(updates: int) -> FederationSpec:
    fields = {
        "task": {"name": "tests.simulation.task:Tiny"},
        "clients": 4,
        "concurrency": 3,
        "stop": {"updates": updates},
    }
    return parse(fields)


LONG = {"specs": (stops_after(25),), "train_seconds": (0.5, 2.0), "calm_at": 40.0}
# Jobs so long that one trainer alone must have few of them to be done in time.
SLOW = LONG | {"specs": (stops_after(10),), "train_seconds": (8.0, 20.0)}
STORMY = {"crash": 3.0, "crash_roles": ("aggregator", "trainer")}
PAUSED = {"stall": 8.0, "stall_roles": ("scheduler",), "crash": 0.0, "disconnect": 0.0}
LATE = {"num_aggregators": 2}

COLLECTED = LONG | {
    "retention": KeepBounded(keep_last=1, keep_every=0, min_age_seconds=0.0),
    "num_aggregators": 2,
}
AHEAD = {  # of the bucket's clock, so that no file is too young
    "stall": 3.0,
    "stall_roles": ("aggregator",),
    "clock_jump": 2.0,
    "wipe": 0.0,
    "crash": 0.0,
    "is_slow": True,
}

MUTATIONS: dict[str, Mutation] = {
    "ack before commit": Mutation(replaces(Aggregator, "serve", ack_before_commit)),
    "no fence": Mutation(
        replaces(manifests, "commit", no_fence),
        scenario=LATE,
        faults={"stall": 4.0, "stall_roles": ("aggregator",)},
    ),
    "dedupe by attempt": Mutation(
        replaces(Judge, "decide", dedupe_by_attempt),
        scenario=LONG,
        faults={"stall": 2.0, "stall_roles": ("trainer",), "drops_hints": 1.0},
    ),
    "slot opened twice": Mutation(replaces(core, "_reopen", slot_opened_twice)),
    "HEAD trusted": Mutation(
        replaces(manifests, "newest", head_trusted), scenario=LONG, faults=STORMY
    ),
    "running sum": Mutation(replaces(replica, "next_model", running_sum)),
    "an update ahead of my view acked as late": Mutation(
        replaces(Federation, "standing", ahead_is_late),
        scenario=LONG | LATE,
        faults={"disconnect": 1.5, "stall": 0.0, "crash": 0.0},
    ),
    "no ModelReady on a duplicate": Mutation(
        replaces(Aggregator, "_announce", silent_on_duplicates)
    ),
    "a rejected job waits for the refill rule": Mutation(
        replaces(replica, "step", rejected_slot_waits), scenario={"bad_updates": 0.15}
    ),
    "unclaimed jobs count as failed": Mutation(
        replaces(Hearing, "has_expired", unclaimed_fails), scenario={"trainers_start_at": 45.0}
    ),
    "sampling by n": Mutation(sampled_by_n),
    "a batch larger than K listed by its window only": Mutation(
        replaces(ledger, "commit", batch_listed_by_window),
        faults={"stall": 4.0, "stall_roles": ("aggregator",)},
    ),
    "a stop that leaves slots open": Mutation(replaces(replica, "step", stop_leaves_slots)),
    "an evaluation that is lost": Mutation(
        replaces(Fleet, "done", evaluation_lost), faults={"crash": 3.0, "wipe": 8.0}
    ),
    "two initialisers": Mutation(
        replaces(Judge, "decide", second_initialiser_wins), faults={"duplicates": 0.3}
    ),
    "a message of a deleted and resubmitted federation": Mutation(
        replaces(Aggregator, "_open", any_uid_is_served),
        scenario=LONG | {"resubmits": True, "stops_at": 20.0, "num_trainers": 3},
        faults={"stall": 1.0, "stall_roles": ("trainer",), "crash": 0.0},
    ),
    "leases expired after the scheduler's own pause": Mutation(
        replaces(Scheduler, "__init__", own_pause_expires_leases),
        scenario=SLOW | {"num_schedulers": 1},
        faults=PAUSED,
    ),
    "leases expired after the scheduler's start": Mutation(
        nothing_settles,
        scenario=SLOW,
        faults={"crash": 6.0, "crash_roles": ("scheduler",)},
    ),
    "garbage collection under a stalled writer": Mutation(
        replaces(Kept, "_holds_model", newest_is_collected),
        scenario=COLLECTED,
        faults=AHEAD,
    ),
    "garbage collection of what was opened since": Mutation(
        replaces(Kept, "_may_be_decided", opened_since_is_collected),
        scenario=COLLECTED,
        faults=AHEAD,
    ),
    "a dead pool that captures every slot": Mutation(
        replaces(fleet, "marks", pools_unmarked),
        scenario={"has_two_pools": True, "far_dies": (1.0, float("inf")), "stops_at": None},
    ),
    "a closed job that trains on": Mutation(
        closed_job_trains_on,
        scenario={"specs": (stops_after(1), stops_after(9)), "train_seconds": (1.0, 15.0)},
    ),
    "files on the bucket not announced after a wiped broker": Mutation(
        replaces(bucket, "delivered_update", lambda original: lambda *arguments: None),
        scenario=LONG,
        faults={"wipe": 4.0, "crash": 2.0, "crash_roles": ("aggregator",)},
    ),
}
