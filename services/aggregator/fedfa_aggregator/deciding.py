"""What one message changes: the core's decision on it, with the files that it needs."""

from dataclasses import dataclass, field

from fedfa import ledger as ledgers
from fedfa.broker import Delivery
from fedfa.errors import FedfaError, InvalidInput, NotFound
from fedfa.events import Abandoned, Decision, Job, PoolChanged, Rejected, Stopped
from fedfa.failpoints import reach
from fedfa.federation import Federation, is_evaluation_due
from fedfa.history import find_model
from fedfa.ledger import Ledger
from fedfa.messages import AbandonJob, InitReady, MarkPool, StopFederation, UpdateReady
from fedfa.replica import Replica, decide, merge, needs_base
from fedfa.retention import is_milestone
from fedfa.store import ObjectStore
from fedfa.tensors import FlatModel
from fedfa_aggregator import metrics
from fedfa_aggregator.births import Decidable, Undecidable
from fedfa_aggregator.inspection import Fetched, update_of
from fedfa_aggregator.reading import Reader


class Ahead(FedfaError):
    """Raised when this view of its federation cannot explain a message, and may lag."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A decoded message and the delivery to acknowledge."""

    message: Decidable | InitReady
    delivery: Delivery


@dataclass(slots=True)
class Batch:
    """Decisions that will share one commit, and the mail they answer."""

    replica: Replica | None
    decisions: list[Decision] = field(default_factory=list)
    answered: list[Mail] = field(default_factory=list)
    is_complete: bool = False
    is_birth: bool = False

    @property
    def is_commit(self) -> bool:
        """Whether there is something to commit, or a birth that committed itself."""
        return bool(self.decisions) or self.is_birth


class Judge:
    """Decides messages into a batch. Nothing is written; what it read is dropped again."""

    def __init__(self, store: ObjectStore, reader: Reader) -> None:
        self._store, self._reader = store, reader

    def decide(self, ledger: Ledger, batch: Batch, message: Decidable | InitReady) -> None:
        """Decide one message into the batch; a late one or a duplicate changes nothing."""
        replica = batch.replica
        if replica is None or isinstance(message, InitReady):
            return  # over, or born already
        federation = replica.federation
        if isinstance(message, StopFederation):
            version = federation.state.version
            if message.final_version is not None and message.final_version > version:
                raise Ahead(f"final_version {message.final_version}, the newest is {version}")
            final = version if message.final_version is None else message.final_version
            decided = decide(replica, Stopped(message.status, message.reason, final))
        elif isinstance(message, MarkPool):
            num_changes = federation.num_changes(message.pool)
            if message.change <= num_changes:
                return
            if message.change > num_changes + 1:
                raise Ahead(f"change {message.change} of {message.pool}, the last is {num_changes}")
            decided = decide(replica, PoolChanged(message.pool, message.change, message.outcome))
        else:
            job = Job(message.slot, message.generation)
            standing = federation.standing(job)
            if standing == "late":
                metrics.updates.labels(outcome="late").inc()
                return
            if standing == "ahead":
                raise Ahead(f"slot {job.slot} is not open for generation {job.generation}")
            if isinstance(message, AbandonJob):
                decided = decide(replica, Abandoned(job, message.reason))
            else:
                decided = self._decide_update(ledger, replica, message)
        _take(batch, federation, decided)

    def refuse(self, batch: Batch, message: Decidable | InitReady, reason: str) -> bool:
        """Reject an update that the newest manifest cannot explain either, if its job is open.

        A dead letter would not close the job: its file is there, and would be announced for ever.
        """
        replica = batch.replica
        if replica is None or not isinstance(message, UpdateReady):
            return False
        if replica.federation.standing(Job(message.slot, message.generation)) != "open":
            return False
        update = update_of(message, digest=message.digest or "")
        _take(batch, replica.federation, decide(replica, Rejected(update, reason)))
        return True

    def _decide_update(
        self, ledger: Ledger, replica: Replica, message: UpdateReady
    ) -> tuple[Replica, tuple[Decision, ...]]:
        if message.base_version > replica.version:
            raise Ahead(f"base_version: {message.base_version}, the newest is {replica.version}")
        client = replica.federation.state.slots[message.slot].client
        if message.client != client:
            reason = f"client: {message.client:.60}, the job is open for {client}"
            return decide(
                replica, Rejected(update_of(message, digest=message.digest or ""), reason)
            )
        try:
            with self._reader.update(message, replica.model.template) as fetched:
                reach("aggregator.fetched")
                return self._merge(ledger, replica, fetched)
        except NotFound:  # it was never written, or its whole folder was deleted
            raise Ahead(f"missing: no object {message.key}") from None

    def _merge(
        self, ledger: Ledger, replica: Replica, fetched: Fetched
    ) -> tuple[Replica, tuple[Decision, ...]]:
        update, vector, reason = fetched
        if vector is None:
            return decide(replica, Rejected(update, reason))
        base = None
        if needs_base(replica, update.base_version):
            try:
                base = self._base(ledger, update.base_version)
            except NotFound as error:
                return decide(replica, Rejected(update, f"base_version: {error}"))
        with metrics.merge_seconds.time():
            return merge(replica, update, vector, base=base)

    def _base(self, ledger: Ledger, version: int) -> FlatModel:
        """The model of an older version. Raises NotFound where that version never had one."""
        assert ledger.birth is not None, "it has a replica"
        model = find_model(self._store, ledger.submission.federation, version)
        try:
            return ledgers.read_model(self._store, model, ledger.birth.template)
        except (InvalidInput, NotFound) as error:  # retention keeps it: no fault of the update
            raise Undecidable(f"{model.key}: cannot be read back: {error}") from error


def _take(batch: Batch, before: Federation, decided: tuple[Replica, tuple[Decision, ...]]) -> None:
    batch.replica, decisions = decided
    batch.decisions.extend(decisions)
    after = batch.replica.federation
    state = after.state
    batch.is_complete = (
        len(batch.decisions) >= after.spec.limits.max_batch
        or state.status != "running"
        or (state.version > before.state.version and _needs_its_model(after, state.version))
    )


def _needs_its_model(federation: Federation, version: int) -> bool:
    """Whether a version may not share its commit, because its very model will be asked for."""
    spec = federation.spec
    is_due = is_evaluation_due(spec, federation.state, version)
    return is_due or is_milestone(spec.retention, version)
