"""A federation's model in files that others load: safetensors, or its own library's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfa import history, ledger, manifests
from fedfa.errors import Misconfigured, NotFound
from fedfa.log import Birth, ModelRef
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.submission import read_submission
from fedfa.tensors import FlatModel


@dataclass(frozen=True, slots=True)
class Stored:
    """One version's model, and what is known of where it came from."""

    submission: Submission
    birth: Birth
    reference: ModelRef
    model: FlatModel


def stored(store: ObjectStore, federation: str, version: int | None) -> Stored:
    """A version's model; None: the final one, or the newest so far. NotFound without it."""
    submission = read_submission(store, federation)
    if version is None:
        version = final_version(store, federation)
    reference = history.find_model(store, federation, version)
    birth = manifests.birth_of(store, federation)
    model = ledger.read_model(store, reference, birth.template)
    return Stored(submission, birth, reference, model)


def final_version(store: ObjectStore, federation: str) -> int:
    """The version that a federation ended with, or its newest so far."""
    newest = manifests.newest(store, federation)
    if newest is None or newest.manifest.model is None:
        raise NotFound(f"{federation}: has no model yet")
    final = newest.manifest.state.final_version
    return newest.manifest.model.version if final is None else final


def write_model(stored: Stored, path: Path) -> None:
    """A safetensors file with the module's own names, that any framework loads without FedFa."""
    from safetensors.numpy import save

    metadata = {
        "federation": stored.submission.federation,
        "uid": stored.submission.uid,
        "version": str(stored.reference.version),
        "digest": stored.reference.digest,  # of the object in the bucket
        "task": stored.submission.spec.task.name,
    }
    body = save({tensor.name: array for tensor, array in stored.model.named()}, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def write_pretrained(stored: Stored, folder: Path, allowed: Sequence[str]) -> None:
    """What the task's own save() writes; needs the trainer's packages, its data and base model.

    allowed: modules that the spec's "module:Class" may name.
    """
    try:
        from fedfa.tasks.saving import save_pretrained  # imports torch
    except ImportError as error:
        raise Misconfigured(
            f"pretrained: {error}; in FedFa's checkout: pip install -e '.[trainer]'"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(
        stored.submission.spec, stored.model, stored.birth.frozen_digest, folder, allowed=allowed
    )
