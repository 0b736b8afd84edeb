"""What the scheduler reads in the bucket, as values. What is malformed there counts as absent."""

import json
import logging
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import ValidationError

from fedfa import keys, manifests
from fedfa.canonical import canonical_json
from fedfa.errors import InvalidInput, NotFound
from fedfa.federation import Clients, Federation
from fedfa.history import evaluated_versions, evaluation_or_none
from fedfa.log import Evaluation, Manifest
from fedfa.messages import MAX_TEXT_CHARACTERS, UpdateReady
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensor_files import MAX_HEADER_BYTES, read_header

logger = logging.getLogger(__name__)

FIRST_READ_BYTES = 64 * 1024  # holds the header of most updates


def value_of(
    store: ObjectStore, submission: Submission, known: Federation | None, manifest: Manifest
) -> Federation:
    """The federation at this manifest; what manifest 0 fixed is read once."""
    if known is not None:
        return known.having(manifest.state)
    if manifest.model is None:
        return Federation(submission.spec, Clients(()), manifest.state)
    birth = manifests.birth_of(store, submission.federation)
    return manifests.federation_of(submission, birth, manifest.state)


def delivered_update(
    store: ObjectStore, submission: Submission, slot: int, generation: int
) -> UpdateReady | None:
    """The announcement of a finished attempt at this job, made from its file alone."""
    federation = submission.federation
    for info in store.list(keys.updates_of(federation, slot, generation)):
        try:
            metadata = _metadata(store, info.key)
            update = UpdateReady.model_validate({**metadata, "key": info.key, "digest": None})
        except (InvalidInput, ValidationError, NotFound) as error:
            _ignore(info.key, str(error))
            continue
        prefix = keys.updates_of(federation, slot, generation)
        names_itself = info.key.startswith(f"{prefix}{update.attempt}-")
        is_of_it = update.federation == federation
        if names_itself and is_of_it and update.job == (submission.uid, slot, generation):
            return update
        _ignore(info.key, "its metadata is about another job")
    return None


def has_initial_model(store: ObjectStore, federation: str) -> bool:
    prefix = keys.model(federation, 0, "").removesuffix(".safetensors")
    return any(True for _ in store.list(prefix))


def evaluations(
    store: ObjectStore, federation: str, *, known: Collection[int]
) -> Iterator[Evaluation]:
    """All that are not known yet, each read when it is asked for."""
    for version in sorted(evaluated_versions(store, federation).difference(known)):
        found = evaluation_or_none(store, federation, version)
        if found is not None:
            yield found


def evaluation_failure(version: int, error: str, *, at: float) -> bytes:
    return canonical_json({"version": version, "error": error, "at": at}).encode()


def stop_reason(store: ObjectStore, federation: str) -> str | None:
    """Why `fedfa stop` wants the end, or None if nobody wants it."""
    try:
        fields: Any = json.loads(store.get(keys.stop(federation)))
        reason = str(fields["reason"])[:MAX_TEXT_CHARACTERS]
        # JSON, and a command line, can hold lone surrogates, which no message can carry.
        return reason.encode(errors="replace").decode()
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a stop was requested"  # whatever it says, it is there


def _metadata(store: ObjectStore, key: str) -> dict[str, Any]:
    start = store.get_start(key, FIRST_READ_BYTES)
    header_bytes = 8 + int.from_bytes(start[:8], "little")
    if len(start) < header_bytes <= MAX_HEADER_BYTES:
        start = store.get_start(key, header_bytes)
    return read_header(start).metadata


def _ignore(key: str, reason: str) -> None:
    logger.warning("ignored an object", extra={"key": key, "reason": reason})
