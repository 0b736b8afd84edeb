"""The bridge between torch modules and flat models.

Exchanged are the parameters with requires_grad, and every buffer that the module's state_dict
keeps. Frozen parameters never travel: their digest proves that two trainers hold the same ones.
A tensor known under several names (tied weights) is exchanged once, under its first name.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from fedfa.errors import InvalidInput, InvalidTensors
from fedfa.tensors import FlatModel, Template, Tensor

_INTEGER_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
}


def template_of(module: nn.Module) -> Template:
    """What this module exchanges: names, kinds, dtypes and shapes, in canonical order."""
    return Template.of(_describe(name, tensor) for name, tensor in _exchanged(module))


def read(module: nn.Module, template: Template) -> FlatModel:
    """Copy the module's exchanged tensors into a new flat model, from whatever device."""
    floats = np.empty(template.num_floats, np.float32)
    integers = np.empty(template.num_integers, np.int64)
    for vector, tensor in _pairs(module, template, floats, integers):
        vector.copy_(tensor.detach().reshape(-1))
    return FlatModel(template, floats, integers)


def write(module: nn.Module, model: FlatModel) -> None:
    """Copy a flat model into the module, which must exchange exactly what its template says."""
    for vector, tensor in _pairs(module, model.template, model.floats, model.integers):
        tensor.detach().copy_(vector.view(tensor.shape))


def frozen_digest(module: nn.Module) -> str:
    """sha256 over names, dtypes, shapes and bytes of the parameters without requires_grad."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.named_parameters()):
        if not tensor.requires_grad:
            digest.update(f"{name}|{tensor.dtype}|{list(tensor.shape)}|".encode())
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().data)
    return digest.hexdigest()


def require_frozen(module: nn.Module, digest: str, *, where: str = "here") -> None:
    """Raise InvalidInput unless the module has the frozen weights of version 0."""
    if (ours := frozen_digest(module)) != digest:
        raise InvalidInput(
            f"frozen weights: they hash to {ours} {where}, and to {digest} where version 0 was "
            "made; use the same pre-trained weights and task code everywhere"
        )


def _exchanged(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    trained = {id(tensor): tensor.requires_grad for tensor in module.parameters()}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        # state_dict may also hold a module's extra state, of any type: private, never sent
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            if trained.get(id(tensor), True):
                yield name, tensor


def _describe(name: str, tensor: torch.Tensor) -> Tensor:
    shape = tuple(tensor.shape)
    if tensor.dtype in _INTEGER_NAMES:
        return Tensor(name, "integer", _INTEGER_NAMES[tensor.dtype], shape)
    if tensor.dtype == torch.float32:
        return Tensor(name, "parameter" if tensor.requires_grad else "buffer", "F32", shape)
    remedy = "call .float() on it" if tensor.is_floating_point() else "FedFa cannot exchange it"
    what = "trainable parameter" if tensor.requires_grad else "buffer"
    raise InvalidTensors(
        f"{name}: a {what} of dtype {tensor.dtype}, expected torch.float32; {remedy}"
    )


def _pairs(
    module: nn.Module, template: Template, floats: np.ndarray, integers: np.ndarray
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each place in the flat arrays, as a 1-d view, with the module's tensor that belongs there."""
    tensors = dict(_exchanged(module))
    found = Template.of(_describe(name, tensor) for name, tensor in tensors.items())
    if found != template:
        raise InvalidTensors(f"module: {_difference(found, template)}")
    float_vector, integer_vector = _as_torch(floats), _as_torch(integers)
    for tensor, where in template.slices():
        vector = integer_vector if tensor.kind == "integer" else float_vector
        yield vector[where], tensors[tensor.name]


def _as_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor on the same memory; torch refuses to promise that for a read-only array."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _difference(found: Template, expected: Template) -> str:
    for got, want in zip(found.tensors, expected.tensors, strict=False):
        if got != want:
            return f"{got.name} is {_shown(got)}, expected {want.name} as {_shown(want)}"
    return f"{len(found.tensors)} tensors, expected {len(expected.tensors)}"


def _shown(tensor: Tensor) -> str:
    return f"{tensor.kind} {tensor.dtype}{list(tensor.shape)}"
