"""`fedfa verify`: run a federation's log again through the core and compare every bit.

Nothing is retrained: the stored updates are merged again, in the committed order, by the same
functions that the aggregator ran. The whole chain is checked, with every decision and every
state. Models are made again from version 0; where retention is bounded, from the oldest one
that still has all that it takes, and the policy promises that for the newest `keep_last`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedfa import keys, ledger, manifests, retention
from fedfa.canonical import sha256
from fedfa.errors import FedfaError, NotFound
from fedfa.events import Event, Merged, job_of
from fedfa.federation import Federation, apply_rule, found, refusal, step
from fedfa.log import Committed, Manifest, ModelRef
from fedfa.merge import rule_of
from fedfa.replica import Replica, needs_base, next_model, update_cosine, update_norm
from fedfa.sections import KeepBounded
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, distance

TOLERANCE = 1e-9  # relative for norms; another numpy may sum a cosine in another order


class Mismatch(FedfaError):
    """Raised when the log does not replay to what it records."""


@dataclass(frozen=True, slots=True)
class Verified:
    """One manifest that passed.

    is_new_model: its model was made again to the same bits, or the replay started from it.
    replayed_from: the version from which on models are made again; None before that.
    """

    manifest: Manifest
    is_new_model: bool
    replayed_from: int | None


def verify(store: ObjectStore, federation: str) -> Iterator[Verified]:
    """Replay the whole log; yields each manifest that passed, raises Mismatch.

    While a federation runs, its retention may collect a file just before it is read. Models are
    then made again from a later version on, and `replayed_from` tells.
    """
    submission = manifests.read_submission(store, federation)
    log = manifests.log(store, federation)
    before = next(log, None)
    if before is None:
        raise NotFound(f"{federation}: no manifest 0 yet, nothing to verify")
    value = _born(submission, before.manifest)
    models = _Models(store, submission)
    yield models.verified(before.manifest, None, value)
    for committed in log:
        manifest = committed.manifest
        _check_chain(before, committed)
        if value is None or value.state.status != "running":
            raise Mismatch(f"manifest {manifest.n} follows the end of the federation")
        value = _decide(value, manifest, models)
        yield models.verified(manifest, before.manifest, value)
        before = committed


class _Models:
    """The vectors of a replay: none before manifest number `start`."""

    def __init__(self, store: ObjectStore, submission: Submission) -> None:
        self._store = store
        self._submission = submission
        self._start = _start(store, submission)
        self._replica: Replica | None = None
        self._replayed_from: int | None = None
        self._committed: dict[int, ModelRef] = {}  # every version that has a model of its own

    def merge(self, value: Federation, event: Merged, manifest: Manifest) -> None:
        """Merge one of a manifest's updates again; value is the federation before it."""
        if self._replica is None:
            return
        before = replace(self._replica, federation=value)
        try:
            self._replica = self._merged(before, event, f"manifest {manifest.n}, merged")
        except NotFound as error:
            self._start_later(manifest, error)

    def verified(
        self, manifest: Manifest, before: Manifest | None, value: Federation | None
    ) -> Verified:
        """Compare the model that a manifest names; value is the federation after it."""
        is_new = False
        if value is not None:
            _check_name(manifest, before, value)
            if manifest.model is not None:
                self._committed[manifest.model.version] = manifest.model
            if self._replica is not None:
                is_new = before is not None and before.model != manifest.model
                if is_new:
                    _check_bits(manifest, self._replica)
            elif manifest.n == self._start:
                is_new = self._begin(manifest, value)
        return Verified(manifest, is_new, self._replayed_from)

    def _merged(self, replica: Replica, event: Merged, where: str) -> Replica:
        update = event.update
        vector = ledger.read_vector(self._store, update.key, update.digest, replica.model.template)
        _check_scalar(f"{where}: norm", event.norm, update_norm(replica, vector))
        self._check_cosine(replica, event, vector, where)
        model, window = next_model(replica, event, vector)
        if model is None:
            return replace(replica, window=window)
        assert event.step_norm is not None, "checked with the decision"
        step_norm = distance(model.floats, replica.model.floats)
        _check_scalar(f"{where}: step_norm", event.step_norm, step_norm)
        return replace(replica, model=model, window=window)

    def _check_cosine(self, replica: Replica, event: Merged, vector: FlatModel, where: str) -> None:
        """Merging takes the recorded cosine; here it is measured again.

        Not where its base is gone: bounded retention keeps bases for what is still to come.
        """
        update, base = event.update, None
        if needs_base(replica, update.base_version):
            committed = self._committed.get(update.base_version)
            if committed is None:
                raise Mismatch(f"{where}: its base, version {update.base_version}, has no model")
            try:
                base = ledger.read_model(self._store, committed, vector.template)
            except NotFound:
                if isinstance(self._submission.spec.retention, KeepBounded):
                    return
                raise
        again = update_cosine(replica, update, vector, base)
        if again is not None and event.cosine is not None:
            _check_scalar(f"{where}: cosine", event.cosine, again, abs_tol=TOLERANCE)

    def _begin(self, manifest: Manifest, value: Federation) -> bool:
        try:
            self._replica = _read(self._store, manifest, value)
        except NotFound as error:
            self._start_later(manifest, error)
            return False
        self._replayed_from = self._replica.version
        return True

    def _start_later(self, manifest: Manifest, error: NotFound) -> None:
        """A file is gone. That is right only if retention let it go since we looked."""
        start = _start(self._store, self._submission)
        if start < manifest.n or start == self._start:
            raise Mismatch(f"manifest {manifest.n} needs what is gone: {error}") from error
        self._start, self._replica, self._replayed_from = start, None, None


def _start(store: ObjectStore, submission: Submission) -> int:
    """The number of the manifest from which on every model can be made again."""
    policy, federation = submission.spec.retention, submission.federation
    if not isinstance(policy, KeepBounded):
        return manifests.FIRST
    seen = ""
    while True:
        head = manifests.newest(store, federation)
        assert head is not None, "only called where there is a manifest"
        if head.manifest.model is None:
            return manifests.FIRST
        listings = (keys.models(federation), keys.updates(federation))
        present = {info.key for prefix in listings for info in store.list(prefix)}
        promised = retention.recent(manifests.backwards(store, head), policy.keep_last)
        lost = retention.missing(promised, present)
        start = retention.oldest_whole(manifests.backwards(store, head), present)
        if lost is None and start is not None:
            return start
        if head.digest == seen:
            raise Mismatch(
                f"{lost} is gone, though the newest {policy.keep_last} models are kept, with all "
                "updates since the oldest of them"
            )
        seen = head.digest  # was it collected because a newer manifest allows it?


def _born(submission: Submission, manifest: Manifest) -> Federation | None:
    if manifest.uid != submission.uid:
        raise Mismatch(f"manifest 0 belongs to uid {manifest.uid}, spec.json to {submission.uid}")
    if manifest.birth is None or manifest.model is None:
        return None
    federation = found(submission.spec, manifest.birth.clients)
    if federation.state != manifest.state:
        raise Mismatch("manifest 0: its slots do not follow from spec and clients")
    return federation


def _check_chain(before: Committed, after: Committed) -> None:
    if after.manifest.previous != before.digest:
        raise Mismatch(f"manifest {after.manifest.n}: does not name its predecessor's digest")
    if after.manifest.uid != before.manifest.uid or after.manifest.n != before.manifest.n + 1:
        raise Mismatch(f"manifest {after.manifest.n}: uid or number breaks the chain")


def _decide(federation: Federation, manifest: Manifest, models: _Models) -> Federation:
    """Take a manifest's decisions again, and make its models again."""
    for decision in manifest.decisions:
        event = decision.event
        where = f"manifest {manifest.n}, {event.outcome}"
        _check_event(federation, event, where)
        if isinstance(event, Merged):
            models.merge(federation, event, manifest)
        federation, again = step(federation, event)
        if again != decision:
            raise Mismatch(f"{where}: replays to {again}, the log says {decision}")
    if federation.state != manifest.state:
        raise Mismatch(f"manifest {manifest.n}: its state does not follow from its decisions")
    return federation


def _check_event(federation: Federation, event: Event, where: str) -> None:
    job = job_of(event)
    if job is not None and federation.standing(job) != "open":
        raise Mismatch(f"{where}: {job} was not open")
    if isinstance(event, Merged):
        update = event.update
        client = federation.state.slots[update.job.slot].client
        if client != update.client:
            raise Mismatch(f"{where}: the job was not open for {update.client}")
        if reason := refusal(federation, update):
            raise Mismatch(f"{where}: {reason}")
        if (event.cosine is not None) != rule_of(federation.spec).needs_cosine:
            raise Mismatch(f"{where}: cosine {event.cosine}, which the rule does not go with")
        verdict, _ = apply_rule(federation, event)
        if (verdict.combination is None) != (event.step_norm is None):
            raise Mismatch(f"{where}: disagrees on whether the window was full")


def _read(store: ObjectStore, manifest: Manifest, value: Federation) -> Replica:
    """The model and the window of a manifest, checked against the digests in the log."""
    assert manifest.model is not None
    if manifest.n == manifests.FIRST:
        return Replica(value, _read_birth(store, manifest), ())
    template = manifests.birth_of(store, manifest.federation).template
    window = tuple(
        ledger.read_vector(store, entry.key, entry.digest, template)
        for entry in manifest.state.window
    )
    return Replica(value, ledger.read_model(store, manifest.model, template), window)


def _read_birth(store: ObjectStore, manifest: Manifest) -> FlatModel:
    assert manifest.model is not None
    body = store.get(manifest.model.key)
    if sha256(body) != manifest.model.digest:
        raise Mismatch(f"{manifest.model.key}: not the bytes that manifest 0 names")
    birth, vector = ledger.birth_from(body)
    ordered = tuple(sorted(birth.clients, key=lambda client: client.name))
    if replace(birth, clients=ordered) != manifest.birth:
        raise Mismatch("manifest 0: clients or template differ from version 0's file")
    return vector


def _check_scalar(where: str, recorded: float, computed: float, *, abs_tol: float = 0.0) -> None:
    if not math.isclose(recorded, computed, rel_tol=TOLERANCE, abs_tol=abs_tol):
        raise Mismatch(f"{where}: {recorded!r} in the log, {computed!r} again")


def _check_name(manifest: Manifest, before: Manifest | None, value: Federation) -> None:
    model = manifest.model
    if model is None or model.version != value.state.version:
        raise Mismatch(f"manifest {manifest.n}: names no model of version {value.state.version}")
    same_version = before is not None and before.model and before.model.version == model.version
    if before is not None and same_version and before.model != model:
        raise Mismatch(f"manifest {manifest.n}: changes the model of version {model.version}")


def _check_bits(manifest: Manifest, replica: Replica) -> None:
    model = manifest.model
    assert model is not None
    digest = sha256(encode(replica.model))
    if digest != model.digest:
        raise Mismatch(f"version {model.version}: replays to {digest}, the log says {model.digest}")
