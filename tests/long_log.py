"""The log of a federation of a hundred thousand versions, in seconds: what a ledger would commit.

Each manifest holds one merged update of 8 slots and 20 clients, and is chained to the one before;
the guards' histories are left empty. Written as text, because making the values takes minutes.
"""

import hashlib
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfa import keys, manifests
from fedfa.canonical import canonical_json
from fedfa.federation import found
from fedfa.log import Manifest
from fedfa.store import DirectoryStore
from tests.unit.builders import DIGEST, UID, birth, reference, submitted

SLOTS, CLIENTS, WINDOW = 8, 20, 5
CREATED_AT = 1000.0  # of builders.submitted
EVALUATED_EVERY = 100
MEMORY_BYTES = 500_000_000  # of 100,000 manifests
STARVED = "client-0007"  # trains only now and then


@contextmanager
def roomy_folder() -> Iterator[Path]:
    """A folder for a hundred thousand small files: in memory, where there is room for them."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free > 2 * MEMORY_BYTES
    with tempfile.TemporaryDirectory(dir=shared if has_room else None) as folder:
        yield Path(folder)


def write_long_log(root: Path, name: str, versions: int) -> "LongLog":
    """spec.json, manifests, evaluations and HEAD.json; no models and no updates."""
    log = LongLog(root, name)
    for _ in range(versions):
        log.add()
    log.move_head()
    return log


class LongLog:
    def __init__(self, root: Path, name: str) -> None:
        self._store = DirectoryStore(root)
        self._folder = root / name
        self.name = name
        evaluation = {"every_versions": EVALUATED_EVERY}
        stop = {"target": {"metric": "accuracy", "value": 0.95}}
        fields = {"concurrency": SLOTS, "clients": CLIENTS, "evaluation": evaluation, "stop": stop}
        submission = submitted(name, **fields)
        self._store.create(keys.spec(name), submission.model_dump_json(by_alias=True).encode())
        certificate = birth(CLIENTS)
        state = found(submission.spec, certificate.clients).state
        model = reference(0, keys.model(name, 0, DIGEST), DIGEST)
        first = Manifest(name, UID, 0, "", "a", CREATED_AT, (), model, state, certificate)
        self._digest = manifests.commit(self._store, first).digest
        self._slots = [
            f'{{"client":"{slot.client}","generation":1,"opened_at":0}}' for slot in state.slots
        ]
        self._clients = [slot.client for slot in state.slots]
        self._window: deque[str] = deque(maxlen=WINDOW)
        self.n = 0
        (self._folder / "evals").mkdir()

    def add(self) -> None:
        self.n = n = self.n + 1
        slot, generation, at = (n - 1) % SLOTS, (n - 1) // SLOTS + 1, CREATED_AT + n
        client, version = self._clients[slot], max(0, n - WINDOW + 1)
        base = max(0, version - 1 - n % 7)
        staleness = max(0, version - (n >= WINDOW) - base)
        key = f"{self.name}/updates/{slot}-{generation}/x-{DIGEST[:16]}.safetensors"
        update = (
            f'{{"attempt":"x","base_version":{base},"client":"{client}","delay_seconds":0.5,'
            f'"digest":"{DIGEST}","job":{{"generation":{generation},"slot":{slot}}},'
            f'"key":"{key}","loss":1.0,"num_examples":10,"num_steps":5,"started_at":{at - 6.0},'
            f'"train_seconds":5.0,"trainer":"trainer-{n % 3}"}}'
        )
        self._window.append(
            f'{{"base_version":{base},"clients":["{client}"],"cosine":1.0,"digest":"{DIGEST}",'
            f'"key":"{key}","num_examples":10,"num_steps":5,"staleness":{staleness}}}'
        )
        following = f"client-{n * 7919 % CLIENTS:04d}"
        if following == STARVED and n % 20:
            following = "client-0000"
        self._clients[slot] = following
        self._slots[slot] = (
            f'{{"client":"{following}","generation":{generation + 1},"opened_at":{version}}}'
        )
        step = "0.25" if n >= WINDOW else "null"
        body = (
            f'{{"at":{at},"birth":null,"decisions":[{{"event":{{"cosine":null,"norm":0.5,'
            f'"outcome":"merged","step_norm":{step},"update":{update}}},"opened":[{{"client":'
            f'"{following}","job":{{"generation":{generation + 1},"slot":{slot}}}}}],'
            f'"staleness":{staleness},"version":{version}}}],"federation":"{self.name}",'
            f'"model":{{"digest":"{DIGEST}","key":"{keys.model(self.name, version, DIGEST)}",'
            f'"version":{version}}},"n":{n},"previous":"{self._digest}","schema":1,"state":'
            f'{{"failures_in_a_row":0,"final_version":null,"first_step_norm":null,'
            f'"num_abandoned":0,"num_decisions":{n},"num_merged":{n},"num_rejected":0,"pools":{{}},'
            f'"reason":"","set_aside":{{}},"slots":[{",".join(self._slots)}],"status":"running",'
            f'"step_norms":[],"trouble":{{}},"update_norms":[],"version":{version},'
            f'"window":[{",".join(self._window)}]}},"uid":"{UID}","writer":"a"}}'
        ).encode()
        self._digest = hashlib.sha256(body).hexdigest()
        (self._folder / "manifests" / f"{n:020d}.json").write_bytes(body)
        if version and version % EVALUATED_EVERY == 0 and n >= WINDOW:
            self._evaluate(version, at)

    def move_head(self) -> None:
        self._store.put(keys.head(self.name), canonical_json({"n": self.n}).encode())

    def _evaluate(self, version: int, at: float) -> None:
        accuracy = round(0.94 - 0.84 * 0.9997**version, 6)
        metrics = {"accuracy": accuracy, "loss": round(2.3 * 0.9997**version, 6)}
        fields = {"version": version, "at": at + 0.5, "metrics": metrics}
        (self._folder / "evals" / f"{version}.json").write_text(canonical_json(fields))
