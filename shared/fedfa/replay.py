"""`fedfa verify`: run a federation's log again through the core and compare every bit.

Nothing is retrained: the stored updates are merged again, in the committed order, by the same
functions that the aggregator ran.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedfa import ledger, manifests
from fedfa.errors import FedfaError, NotFound
from fedfa.federation import Event, Federation, Merged, found, job_of, step
from fedfa.manifests import Birth, Committed, Manifest
from fedfa.replica import Replica, next_model, update_norm
from fedfa.spec import Submitted
from fedfa.store import ObjectStore
from fedfa.tensors import FlatModel, encode, norm, sha256

TOLERANCE = 1e-9  # relative; of norms, which another numpy may sum differently


class Mismatch(FedfaError):
    """Raised when the log does not replay to what it records."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One manifest that replayed to the same bits."""

    manifest: Manifest
    is_new_model: bool


def verify(store: ObjectStore, federation: str) -> Iterator[Verified]:
    """Replay the whole log from version 0; yields each manifest that passed, raises Mismatch."""
    submission = manifests.submitted(store, federation)
    log = manifests.log(store, federation)
    first = next(log, None)
    if first is None:
        raise NotFound(f"{federation}: no manifest 0 yet, nothing to verify")
    replica = _born(store, submission, first.manifest)
    yield Verified(first.manifest, is_new_model=replica is not None)
    before = first
    for committed in log:
        _check_chain(before, committed)
        if replica is None:
            raise Mismatch(f"manifest {committed.manifest.n} follows the end of the federation")
        replica = _replay(store, replica, committed.manifest)
        is_new = _check_model(before.manifest, committed.manifest, replica)
        yield Verified(committed.manifest, is_new)
        before = committed


def _born(store: ObjectStore, submission: Submitted, manifest: Manifest) -> Replica | None:
    if manifest.uid != submission.uid:
        raise Mismatch(f"manifest 0 belongs to uid {manifest.uid}, spec.json to {submission.uid}")
    if manifest.birth is None or manifest.model is None:
        return None
    body_birth, vector = _read_birth(store, manifest)
    federation = found(submission.spec, body_birth.clients)
    if federation.state != manifest.state:
        raise Mismatch("manifest 0: its slots do not follow from spec and clients")
    return Replica(federation, vector, ())


def _read_birth(store: ObjectStore, manifest: Manifest) -> tuple[Birth, FlatModel]:
    assert manifest.model is not None
    body = store.get(manifest.model.key)
    if sha256(body) != manifest.model.digest:
        raise Mismatch(f"{manifest.model.key}: not the bytes that manifest 0 names")
    birth, vector = ledger.birth_from(body)
    recorded = manifest.birth
    ordered = tuple(sorted(birth.clients, key=lambda client: client.name))
    if replace(birth, clients=ordered) != recorded:
        raise Mismatch("manifest 0: clients or template differ from version 0's file")
    return birth, vector


def _check_chain(before: Committed, after: Committed) -> None:
    if after.manifest.previous != before.digest:
        raise Mismatch(f"manifest {after.manifest.n}: does not name its predecessor's digest")
    if after.manifest.uid != before.manifest.uid or after.manifest.n != before.manifest.n + 1:
        raise Mismatch(f"manifest {after.manifest.n}: uid or number breaks the chain")


def _replay(store: ObjectStore, replica: Replica, manifest: Manifest) -> Replica:
    for decision in manifest.decisions:
        where = f"manifest {manifest.n}, {decision.event.outcome}"
        _check_open(replica.federation, decision.event, where)
        if isinstance(decision.event, Merged):
            replica = _merge(store, replica, decision.event, where)
        federation, again = step(replica.federation, decision.event)
        if again != decision:
            raise Mismatch(f"{where}: replays to {again}, the log says {decision}")
        replica = replace(replica, federation=federation)
    if replica.federation.state != manifest.state:
        raise Mismatch(f"manifest {manifest.n}: its state does not follow from its decisions")
    return replica


def _merge(store: ObjectStore, replica: Replica, event: Merged, where: str) -> Replica:
    """The vectors of one merge; the caller steps the federation."""
    update = event.update
    vector = ledger.read_vector(store, update.key, update.digest, replica.model.template)
    _check_scalar(f"{where}: norm", event.norm, update_norm(replica, vector))
    model, window = next_model(replica, vector)
    if (model is None) != (event.step_norm is None):
        raise Mismatch(f"{where}: disagrees on whether the window was full")
    if model is None:
        return replace(replica, window=window)
    recorded = event.step_norm
    assert recorded is not None
    _check_scalar(f"{where}: step_norm", recorded, norm(model.floats - replica.model.floats))
    return replace(replica, model=model, window=window)


def _check_open(federation: Federation, event: Event, where: str) -> None:
    job = job_of(event)
    if job is not None and federation.standing(job) != "open":
        raise Mismatch(f"{where}: {job} was not open")
    if isinstance(event, Merged):
        client = federation.state.slots[event.update.job.slot].client
        if client != event.update.client:
            raise Mismatch(f"{where}: the job was not open for {event.update.client}")


def _check_scalar(where: str, recorded: float, computed: float) -> None:
    if not math.isclose(recorded, computed, rel_tol=TOLERANCE):
        raise Mismatch(f"{where}: {recorded!r} in the log, {computed!r} again")


def _check_model(before: Manifest, after: Manifest, replica: Replica) -> bool:
    """Compare the newest model's bytes by their digest; False where the version did not rise."""
    model = after.model
    if model is None or model.version != replica.version:
        raise Mismatch(f"manifest {after.n}: names no model of version {replica.version}")
    if before.model == model:
        return False
    digest = sha256(encode(replica.model))
    if digest != model.digest:
        raise Mismatch(f"version {model.version}: replays to {digest}, the log says {model.digest}")
    return True
