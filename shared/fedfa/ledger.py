"""A federation as one writer holds it: the replica, its place in the log, and the commit.

Design: bytes first, the manifest last. Until the manifest's conditional create succeeds nothing
that a reader can see has changed; after it, everything has.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from fedfa import keys, manifests
from fedfa.canonical import sha256
from fedfa.errors import InvalidInput, NotFound
from fedfa.events import Decision
from fedfa.failpoints import reach
from fedfa.federation import Client, State, Status, found
from fedfa.log import Birth, Committed, Manifest, ModelRef
from fedfa.memory import Bytes
from fedfa.messages import Count, Name, PoolName
from fedfa.replica import Replica
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensor_files import (
    MAX_HEADER_BYTES,
    decode,
    file_parts,
    infer_template,
    max_update_bytes,
    read_header,
)
from fedfa.tensors import FlatModel, Template

Stored = tuple[str, str]  # key, digest
ReadAll = Callable[[Callable[[Stored], FlatModel], Iterable[Stored]], Iterable[FlatModel]]

# A client's name travels in messages, its pool's in a queue's name: both are checked where they
# enter. num_examples 0 is well-formed, and ends the federation with the reason.
_clients: TypeAdapter[list[tuple[Name, Count, PoolName]]] = TypeAdapter(
    list[tuple[Name, Count, PoolName]]
)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A committed federation. replica is None once it is over: nothing will be merged again."""

    submission: Submission
    birth: Birth | None
    head: Committed
    replica: Replica | None

    @property
    def state(self) -> State:
        return self.head.manifest.state


def load(
    store: ObjectStore,
    submission: Submission,
    *,
    known: int = 0,
    read_all: ReadAll = map,
    before_reading: Callable[[Birth], None] = lambda _: None,
) -> Ledger | None:
    """Read the newest state of a federation and its vectors; None before its birth.

    read_all: `map`, or an executor's, which reads several vectors of the window at once.
    before_reading hears which vectors will be read, and may refuse by raising.
    Raises NotFound, or InvalidInput, where its objects are lost or damaged.
    """
    federation = submission.federation
    head = manifests.newest(store, federation, known=known)
    if head is None:
        return None
    manifest = head.manifest
    if manifest.uid != submission.uid:
        raise InvalidInput(f"{federation}: manifest {manifest.n} belongs to uid {manifest.uid}")
    if manifest.state.status != "running" or manifest.model is None:
        return Ledger(submission, None, head, None)
    birth = manifests.birth_of(store, federation)
    before_reading(birth)
    try:
        return Ledger(
            submission, birth, head, _read_replica(store, submission, birth, manifest, read_all)
        )
    except NotFound:
        newer = manifests.newest(store, federation, known=manifest.n)
        if newer is None or newer.digest == head.digest:
            raise
    # Collected while this reader stalled.
    return load(
        store, submission, known=manifest.n, read_all=read_all, before_reading=before_reading
    )


def _read_replica(
    store: ObjectStore,
    submission: Submission,
    birth: Birth,
    manifest: Manifest,
    read_all: ReadAll,
) -> Replica:
    assert manifest.model is not None
    value = manifests.federation_of(submission, birth, manifest.state)
    model, *window = read_all(
        lambda entry: read_vector(store, *entry, birth.template),
        [
            (manifest.model.key, manifest.model.digest),
            *((entry.key, entry.digest) for entry in manifest.state.window),
        ],
    )
    return Replica(value, model, tuple(window))


def read_model(store: ObjectStore, model: ModelRef, template: Template) -> FlatModel:
    """A committed model. Raises NotFound, or InvalidInput where the bytes are not the committed."""
    return read_vector(store, model.key, model.digest, template)


def read_vector(store: ObjectStore, key: str, digest: str, template: Template) -> FlatModel:
    limit = max_update_bytes(template) + MAX_HEADER_BYTES  # version 0's header lists the clients
    found = store.download(key, max_bytes=limit)
    if found.digest != digest:
        raise InvalidInput(f"{key}: its bytes hash to {found.digest}, the log says {digest}")
    return decode(found.body, template, max_header_bytes=MAX_HEADER_BYTES)


def birth_from(body: Bytes) -> tuple[Birth, FlatModel]:
    """The birth certificate in version 0's file: template from its tensors, clients from metadata.

    Raises InvalidInput where it is malformed.
    """
    header = read_header(body)
    try:
        fields = header.metadata["birth"]
        template = infer_template(header, num_parameters=fields["num_parameter_tensors"])
        clients = _clients.validate_python(fields["clients"])
        birth = Birth(tuple(Client(*each) for each in clients), template, fields["frozen_digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"version 0: malformed birth certificate: {error!r}") from error
    return birth, decode(body, template, max_header_bytes=MAX_HEADER_BYTES)


def birth_metadata(birth: Birth) -> dict[str, object]:
    """What a trainer writes into version 0's file; `birth_from` reads it back."""
    kinds = [tensor.kind for tensor in birth.template.tensors]
    return {
        "birth": {
            "num_parameter_tensors": kinds.count("parameter"),
            "clients": [[c.name, c.num_examples, c.pool] for c in birth.clients],
            "frozen_digest": birth.frozen_digest,
        }
    }


def why_unborn(submission: Submission, birth: Birth) -> str | None:
    """Why these clients cannot make this federation, or None."""
    spec, clients = submission.spec, birth.clients
    empty = [client.name for client in clients if client.num_examples < 1]
    if empty:
        return (
            f"client {empty[0]} has no examples ({len(empty)} such): "
            f"use fewer clients or a less skewed partition"
        )
    if len({client.name for client in clients}) != len(clients):
        name, count = Counter(client.name for client in clients).most_common(1)[0]
        return f"{count} clients have the name {name}; give each one of its own"
    if spec.concurrency > len(clients):
        return (
            f"concurrency: {spec.concurrency} jobs cannot be open with {len(clients)} clients; "
            f"give at most {len(clients)}"
        )
    return None


def bear(
    store: ObjectStore,
    submission: Submission,
    model: ModelRef,
    birth: Birth,
    vector: FlatModel,
    *,
    writer: str,
    now: float,
) -> Ledger:
    """Commit manifest 0: Mc open slots at version 0."""
    value = found(submission.spec, birth.clients)
    manifest = Manifest(
        federation=submission.federation,
        uid=submission.uid,
        n=manifests.FIRST,
        previous="",
        writer=writer,
        at=now,
        decisions=(),
        model=model,
        state=value.state,
        birth=replace(birth, clients=value.clients.ordered),
    )
    head = manifests.commit(store, manifest)
    return Ledger(submission, manifest.birth, head, Replica(value, vector, ()))


def stillborn(
    store: ObjectStore,
    submission: Submission,
    *,
    status: Status,
    reason: str,
    writer: str,
    now: float,
) -> Ledger:
    """Commit manifest 0 of a federation that ends before its first model."""
    unborn = found(submission.spec.model_copy(update={"concurrency": 0}), ()).state
    manifest = Manifest(
        federation=submission.federation,
        uid=submission.uid,
        n=manifests.FIRST,
        previous="",
        writer=writer,
        at=now,
        decisions=(),
        model=None,
        state=replace(unborn, status=status, reason=reason),
    )
    return Ledger(submission, None, manifests.commit(store, manifest), None)


def commit(
    store: ObjectStore,
    ledger: Ledger,
    replica: Replica,
    decisions: tuple[Decision, ...],
    *,
    writer: str,
    now: float,
) -> Ledger:
    """Commit a batch of decisions and the state after them.

    Raises Fenced when another writer was first, StoreUnavailable when the outcome is unknown:
    in both cases the ledger is void and must be loaded again.
    """
    before = ledger.head.manifest
    model = before.model
    parts: tuple[Bytes, ...] = ()
    if model is None or model.version != replica.version:
        parts = file_parts(replica.model)
        digest = sha256(*parts)
        key = keys.model(before.federation, replica.version, digest)
        model = ModelRef(replica.version, key, digest)
        store.upload(key, parts, digest=digest)
        reach("commit.model_put")
    manifest = Manifest(
        federation=before.federation,
        uid=before.uid,
        n=before.n + 1,
        previous=ledger.head.digest,
        writer=writer,
        at=now,
        decisions=decisions,
        model=model,
        state=replica.federation.state,
    )
    head = manifests.commit(store, manifest)
    may_be_collected = ledger.submission.spec.retention.keep != "all"
    if parts and may_be_collected and not store.exists(model.key):  # while this writer stalled
        store.upload(model.key, parts, digest=model.digest)
    running = manifest.state.status == "running"
    return Ledger(ledger.submission, ledger.birth, head, replica if running else None)
