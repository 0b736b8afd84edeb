"""The commit of manifest 0: from the first initial model, or from a stop before it."""

from fedfa import keys
from fedfa import ledger as ledgers
from fedfa.errors import FedfaError, InvalidInput, NotFound
from fedfa.failpoints import reach
from fedfa.federation import Status
from fedfa.ledger import Ledger
from fedfa.log import Birth, ModelRef
from fedfa.messages import AbandonJob, InitReady, MarkPool, StopFederation, UpdateReady
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensors import FlatModel
from fedfa_aggregator.views import Views

Decidable = UpdateReady | AbandonJob | StopFederation | MarkPool


class Undecidable(FedfaError):
    """Raised when a message can never be decided; its text goes to the dead-letter queue."""


def birth(
    store: ObjectStore,
    submission: Submission,
    message: Decidable | InitReady,
    *,
    views: Views,
    writer: str,
    now: float,
) -> Ledger | None:
    """Commit manifest 0 by this message; None where the message is another federation's.

    A model too large for this aggregator, and clients that cannot make this federation, end it
    as failed, with the reason. Raises Undecidable, and what a commit raises.
    """
    if message.uid != submission.uid:
        return None

    def stillborn(status: Status, reason: str) -> Ledger:
        return ledgers.stillborn(
            store, submission, status=status, reason=reason, writer=writer, now=now
        )

    if isinstance(message, StopFederation):
        return stillborn(message.status, message.reason)
    if not isinstance(message, InitReady):
        raise Undecidable(f"{message.kind}: {submission.federation} has no version 0 yet")
    size = _size(store, message)
    if reason := views.make_room(submission.federation, submission.spec, size):
        return stillborn("failed", reason)
    certificate, vector = _read(store, message, max_bytes=size)
    reach("aggregator.birth_read")
    if reason := ledgers.why_unborn(submission, certificate):
        return stillborn("failed", reason)
    model = ModelRef(0, message.key, message.digest)
    return ledgers.bear(store, submission, model, certificate, vector, writer=writer, now=now)


def _size(store: ObjectStore, message: InitReady) -> int:
    """Bytes of the initial model's file."""
    if message.key != keys.model(message.federation, 0, message.digest):
        raise Undecidable(
            f"key: {message.key!r:.200} is not this version 0 of {message.federation}"
        )
    for info in store.list(message.key):
        if info.key == message.key:
            return info.size_bytes
    raise Undecidable(f"initial model: no object {message.key}")


def _read(store: ObjectStore, message: InitReady, *, max_bytes: int) -> tuple[Birth, FlatModel]:
    try:
        found = store.download(message.key, max_bytes=max_bytes)
        if found.digest != message.digest:
            raise Undecidable(f"{message.key}: its bytes hash to {found.digest}")
        return ledgers.birth_from(found.body)
    except (NotFound, InvalidInput) as error:
        raise Undecidable(f"initial model: {error}") from error
