"""Write a federation's model in the form that the task's own ecosystem loads."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedfa import modules
from fedfa.canonical import sha256
from fedfa.errors import InvalidInput, InvalidSpec
from fedfa.spec import FederationSpec
from fedfa.tasks import base as tasks
from fedfa.tensors import FlatModel


def save_pretrained(
    spec: FederationSpec,
    model: FlatModel,
    frozen_digest: str,
    folder: Path,
    *,
    allowed: Sequence[str],
) -> None:
    """Let the spec's task save this model, and read back that nothing of it was left out.

    frozen_digest: as at the federation's birth. Needs the task, its data and its base model here.
    Raises InvalidSpec for a task that has no form of its own.
    """
    task = tasks.load(spec, allowed)
    if not isinstance(task, tasks.Saving):
        raise InvalidSpec(
            f"task.name: {spec.task.name} has no save(), its model is in model.safetensors; "
            "leave out --pretrained"
        )
    module = task.model()
    modules.require_frozen(module, frozen_digest)
    modules.write(module, model)
    task.save(module.eval(), folder)
    files = sorted(folder.glob("*.safetensors"))
    saved = _digests(array for file in files for array in load_file(file).values())
    if lost := _digests(array for _, array in model.named()) - saved:
        raise InvalidInput(
            f"{folder}: {lost.total()} of the model's tensors are not in what the task saved"
        )


def _digests(arrays: Iterable[np.ndarray]) -> Counter[tuple[tuple[int, ...], str]]:
    return Counter((array.shape, sha256(array.tobytes())) for array in arrays)
