"""Logs made update by update: one that is only decided, a run of them, and a falsified manifest."""

import json
from collections.abc import Callable
from typing import Any

from fedfa import keys, ledger
from fedfa.canonical import canonical_json, sha256
from fedfa.events import Decision, Job
from fedfa.ledger import Ledger
from fedfa.replica import Replica, merge
from fedfa.store import ObjectStore
from fedfa.tensor_files import encode
from tests.unit.builders import ATTEMPT, update, vector


def merged(
    store: ObjectStore, replica: Replica, seed: int, *, slot: int = 0, scale: float = 0.1
) -> tuple[Replica, tuple[Decision, ...]]:
    """One update of the slot's open job, its file on the store, decided but not committed."""
    job = Job(slot, replica.federation.state.slots[slot].generation)
    sent = vector(seed, scale=scale)
    body = encode(sent)
    key = keys.update("fed", job.slot, job.generation, ATTEMPT, sha256(body))
    store.put(key, body)
    return merge(replica, update(replica.federation, job, key=key, digest=sha256(body)), sent)


def commit(
    store: ObjectStore, held: Ledger, replica: Replica, decisions: tuple[Decision, ...]
) -> Ledger:
    return ledger.commit(store, held, replica, decisions, writer="a", now=2.0)


def run(store: ObjectStore, held: Ledger, updates: int, *, batch: int = 1) -> Ledger:
    for first in range(0, updates, batch):
        assert held.replica is not None
        replica, decisions = held.replica, []
        for seed in range(first, min(first + batch, updates)):
            replica, more = merged(store, replica, seed + 1, slot=seed % 3)
            decisions.extend(more)
        held = commit(store, held, replica, tuple(decisions))
    return held


def falsify(store: ObjectStore, n: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of manifest n."""
    key = keys.manifest("fed", n)
    fields = json.loads(store.get(key))
    change(fields)
    store.put(key, canonical_json(fields).encode())
