"""Is this update what its message says, and fit for its federation? Reads only, decides nothing.

An outage raises StoreUnavailable and is never a verdict, a missing object NotFound; only a fault
of the content is one.
"""

from fedfa import keys
from fedfa.errors import InvalidInput, InvalidTensors, TooLarge
from fedfa.events import Job, Update
from fedfa.messages import UpdateReady
from fedfa.store import Download, ObjectStore
from fedfa.tensor_files import decode_data, max_update_bytes, max_update_header_bytes, read_header
from fedfa.tensors import FlatModel, Template

# The update with the digest of the bytes found, and either its vector or the reason for which it
# must be rejected (the other is None or "").
Fetched = tuple[Update, FlatModel | None, str]


def fetch(store: ObjectStore, message: UpdateReady, template: Template) -> Fetched:
    """Download and check one announced update. Raises NotFound, StoreUnavailable."""
    try:
        found = _download(store, message, template)
    except InvalidInput as error:
        return unread(message, _reason(error))
    update = update_of(message, digest=found.digest)
    try:
        _check_digest(message, found.digest)
        header = read_header(found.body, max_header_bytes=max_update_header_bytes(template))
        if header.metadata != message.metadata():
            raise InvalidInput("metadata: the file does not say what its message says")
        return update, decode_data(found.body, header, template), ""
    except InvalidInput as error:
        return update, None, _reason(error)


def unread(message: UpdateReady, reason: str) -> Fetched:
    """A rejection that needs no look at the file."""
    return update_of(message, digest=message.digest or ""), None, reason


def update_of(message: UpdateReady, *, digest: str) -> Update:
    return Update(
        job=Job(message.slot, message.generation),
        attempt=message.attempt,
        client=message.client,
        key=message.key,
        digest=digest,
        base_version=message.base_version,
        num_examples=message.num_examples,
        num_steps=message.num_steps,
        loss=message.loss,
        trainer=message.trainer,
        started_at=message.started_at,
        train_seconds=message.train_seconds,
        delay_seconds=message.delay_seconds,
    )


def _download(store: ObjectStore, message: UpdateReady, template: Template) -> Download:
    slot, generation, attempt = message.slot, message.generation, message.attempt
    if not keys.is_update(message.key, message.federation, slot, generation, attempt):
        prefix = keys.updates_of(message.federation, slot, generation)
        raise InvalidInput(f"key: {message.key!r:.200} is not of {prefix}{attempt}")
    return store.download(message.key, max_bytes=max_update_bytes(template))


def _check_digest(message: UpdateReady, digest: str) -> None:
    if not keys.digest_matches(message.key, digest):
        raise InvalidInput(f"digest: the bytes hash to {digest}, the key says otherwise")
    if message.digest is not None and message.digest != digest:
        raise InvalidInput(f"digest: the bytes hash to {digest}, the message says {message.digest}")


def _reason(error: InvalidInput) -> str:
    """A reason to commit: bounded, and led by a word that can be counted."""
    text = str(error)[:500]
    if isinstance(error, TooLarge):
        return f"size: {text}"
    if isinstance(error, InvalidTensors):
        return f"tensors: {text}"
    return text
