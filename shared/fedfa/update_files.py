"""A finished job's file, and the message that announces it: both say the same."""

from fedfa import keys
from fedfa.canonical import sha256
from fedfa.memory import Bytes
from fedfa.messages import UpdateReady
from fedfa.randomness import prf
from fedfa.spec import FederationSpec
from fedfa.tensor_files import file_parts
from fedfa.tensors import FlatModel

UNNAMED = "-"  # a draft's key: the name comes from the content, which holds all but key and digest


def finished(
    draft: UpdateReady, vector: FlatModel, spec: FederationSpec
) -> tuple[UpdateReady, tuple[Bytes, ...], str]:
    """The draft with key and digest, the file in parts, compressed as the spec says, its digest.

    The same draft and vector make the same bytes each time.
    """
    seed = prf(spec.seed, "rounding", draft.slot, draft.generation)
    parts = file_parts(vector, draft.metadata(), compression=spec.compression, seed=seed)
    digest = sha256(*parts)
    key = keys.update(draft.federation, draft.slot, draft.generation, draft.attempt, digest)
    return draft.model_copy(update={"key": key, "digest": digest}), parts, digest
