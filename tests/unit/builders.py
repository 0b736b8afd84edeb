"""Small values that several tests build: a spec, clients, updates, vectors, submissions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedfa import keys
from fedfa.canonical import sha256
from fedfa.events import Job, Update
from fedfa.federation import Client, Federation, found
from fedfa.log import Birth, ModelRef
from fedfa.merge import Entry
from fedfa.messages import UpdateReady
from fedfa.spec import FederationSpec, Submission, parse
from fedfa.store import ObjectStore
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, Template, Tensor

UID = "0123456789abcdef0123456789abcdef"
ATTEMPT = "1764495000000-0a1b2c3d-000001"
DIGEST = "ab" * 32

TEMPLATE = Template(
    (
        Tensor("weight", "parameter", "F32", (2, 3)),
        Tensor("running_mean", "buffer", "F32", (2,)),
        Tensor("count", "integer", "I64", ()),
    )
)


def spec(**fields: Any) -> FederationSpec:
    defaults: dict[str, Any] = {"concurrency": 3, "clients": 8, "seed": 1}
    return parse(defaults | fields)


def clients(number: int = 8, *, pool: str = "default") -> tuple[Client, ...]:
    return tuple(Client(f"client-{at:04d}", 10, pool) for at in range(number))


def federation(number: int = 8, **fields: Any) -> Federation:
    return found(spec(clients=number, **fields), clients(number))


def update(federation: Federation, job: Job, **fields: Any) -> Update:
    defaults: dict[str, Any] = {
        "job": job,
        "attempt": ATTEMPT,
        "client": federation.state.slots[job.slot].client,
        "key": f"fed/updates/{job.slot}-{job.generation}/{ATTEMPT}-{DIGEST[:16]}.safetensors",
        "digest": DIGEST,
        "base_version": federation.state.version,
        "num_examples": 10,
        "num_steps": 5,
        "loss": 1.0,
        "trainer": "trainer-1",
        "started_at": 100.0,
        "train_seconds": 1.0,
        "delay_seconds": 0.5,
    }
    return Update(**(defaults | fields))


def update_ready(**fields: Any) -> UpdateReady:
    """The message that the first job of slot 0 is done; its key fits the other fields."""
    defaults: dict[str, Any] = {
        "federation": "fed",
        "uid": UID,
        "slot": 0,
        "generation": 1,
        "attempt": ATTEMPT,
        "client": "client-0000",
        "base_version": 0,
        "num_examples": 10,
        "num_steps": 5,
        "loss": 1.0,
        "trainer": "trainer-1",
        "started_at": 1.0,
        "train_seconds": 1.0,
        "delay_seconds": 0.0,
    }
    facts = defaults | fields
    where = (facts[name] for name in ("federation", "slot", "generation", "attempt"))
    return UpdateReady(**({"key": keys.update(*where, DIGEST)} | facts))


def put_update(store: ObjectStore, ready: UpdateReady, body: bytes) -> UpdateReady:
    """Write the file that a message announces; returns the message with its key and digest."""
    digest = sha256(body)
    key = keys.update(ready.federation, ready.slot, ready.generation, ready.attempt, digest)
    store.put(key, body)
    return ready.model_copy(update={"key": key, "digest": digest})


def every_use(store: ObjectStore) -> list[Callable[[], object]]:
    """Each operation of a store, to be tried."""
    return [
        lambda: store.get("a"),
        lambda: store.get_start("a", 1),
        lambda: store.exists("a"),
        lambda: store.put("a", b""),
        lambda: store.download("a"),
        lambda: store.upload("a", [b""], digest=sha256(b"")),
        lambda: store.create("a", b""),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
        lambda: list(store.folders()),
    ]


def entry(**fields: Any) -> Entry:
    """A window entry of a fresh update of 10 examples in 5 steps."""
    defaults: dict[str, Any] = {
        "key": "fed/updates/0-1/x.safetensors",
        "digest": DIGEST,
        "base_version": 0,
        "staleness": 0,
        "num_examples": 10,
        "num_steps": 5,
        "clients": ("client-0000",),
    }
    return Entry(**(defaults | fields))


def vector(seed: int, *, scale: float = 1.0) -> FlatModel:
    generator = np.random.default_rng(seed)
    floats = (generator.normal(size=TEMPLATE.num_floats) * scale).astype(np.float32)
    return FlatModel(TEMPLATE, floats, np.array([seed % 100], np.int64))


def submitted(name: str = "fed", **fields: Any) -> Submission:
    return Submission(federation=name, uid=UID, created_at=1000.0, spec=spec(**fields))


def birth(number: int = 8) -> Birth:
    return Birth(clients(number), TEMPLATE, "")


def stored(model: FlatModel, metadata: dict[str, Any] | None = None) -> bytes:
    return encode(model, metadata)


def reference(version: int, key: str, digest: str) -> ModelRef:
    return ModelRef(version, key, digest)
