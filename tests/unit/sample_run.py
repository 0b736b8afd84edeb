"""A whole federation in a store, made by the product's own ledger: random vectors, virtual time.

Eight clients, three open jobs, two trainers; every seventh update is rejected, one job is
abandoned, every fifth version is evaluated with an accuracy that rises.
"""

import heapq
import random
from typing import Any

from fedfa import keys, ledger
from fedfa.canonical import canonical_json, sha256
from fedfa.events import Abandoned, Decision, Job, Rejected
from fedfa.history import find_model
from fedfa.ledger import Ledger
from fedfa.log import Birth, ModelRef
from fedfa.replica import Replica, decide, merge, needs_base
from fedfa.store import ObjectStore
from fedfa.tensor_files import encode
from tests.unit.builders import ATTEMPT, birth, submitted, update, vector

CLIENTS = birth()
CREATED_AT = 1000.0  # of builders.submitted
BORN_AT = 1002.0
ABANDONED_AT = 5  # the decision of this number
REJECTED_EVERY = 7
EVALUATED_EVERY = 5


def write_sample_run(
    store: ObjectStore, name: str = "fed", *, clients: Birth = CLIENTS, **fields: Any
) -> None:
    """Run until the spec's stop; without one, 30 updates."""
    fields = {"stop": {"updates": 30}, "evaluation": {"every_versions": EVALUATED_EVERY}} | fields
    held = born(store, name, clients=clients, **fields)
    clock, draw = BORN_AT, random.Random(1)
    assert held.replica is not None
    waiting: list[tuple[float, int, int, float]] = []  # finished, slot, base version, started
    for slot in range(len(held.state.slots)):
        _start(waiting, slot, held.replica.version, clock, draw)
    decided = 0
    while held.replica is not None:
        clock, slot, base, started = heapq.heappop(waiting)
        decided += 1
        replica, decisions = _decide(store, held.replica, name, decided, slot, base, started)
        held = ledger.commit(store, held, replica, decisions, writer="a", now=clock)
        for opened in [each for decision in decisions for each in decision.opened]:
            _start(waiting, opened.job.slot, replica.version, clock, draw)
        if replica.version % EVALUATED_EVERY == 0 or held.replica is None:
            evaluate(store, name, replica.version, at=clock + 0.1)


def born(store: ObjectStore, name: str, *, clients: Birth = CLIENTS, **fields: Any) -> Ledger:
    submission = submitted(name, **fields)
    store.create(keys.spec(name), submission.model_dump_json(by_alias=True).encode())
    body = encode(vector(0), ledger.birth_metadata(clients))
    model = ModelRef(0, keys.model(name, 0, sha256(body)), sha256(body))
    store.put(model.key, body)
    certificate, start = ledger.birth_from(body)
    return ledger.bear(store, submission, model, certificate, start, writer="a", now=BORN_AT)


def evaluate(store: ObjectStore, name: str, version: int, *, at: float) -> None:
    metrics = {"accuracy": round(1 - 0.9 * 0.93**version, 6), "loss": round(2.3 * 0.94**version, 6)}
    fields = {"version": version, "at": at, "metrics": metrics, "trainer": "a", "seconds": 0.1}
    store.put(keys.evaluation(name, version), canonical_json(fields).encode())


def _start(waiting: Any, slot: int, version: int, clock: float, draw: random.Random) -> None:
    finished = clock + 0.3 + draw.paretovariate(1.5) / 2
    heapq.heappush(waiting, (finished, slot, version, clock))


def _decide(
    store: ObjectStore,
    replica: Replica,
    name: str,
    number: int,
    slot: int,
    base: int,
    started: float,
) -> tuple[Replica, tuple[Decision, ...]]:
    job = Job(slot, replica.federation.state.slots[slot].generation)
    if number == ABANDONED_AT:
        return decide(replica, Abandoned(job, "failed 3 times: <b>out of memory</b>"))
    sent = vector(number, scale=0.01)
    body = encode(sent)
    key = keys.update(name, job.slot, job.generation, ATTEMPT, sha256(body))
    store.put(key, body)
    facts = update(
        replica.federation,
        job,
        key=key,
        digest=sha256(body),
        base_version=base,
        trainer=f"trainer-{slot % 2 + 1}",
        started_at=started,
        train_seconds=0.3,
    )
    if number % REJECTED_EVERY == 0:
        return decide(replica, Rejected(facts, "norm: 900 is above 100"))
    start = None
    if needs_base(replica, base):
        start = ledger.read_model(store, find_model(store, name, base), replica.model.template)
    return merge(replica, facts, sent, base=start)
