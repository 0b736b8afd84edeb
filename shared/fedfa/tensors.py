"""Models and updates as flat arrays, and the template that says which slice is which tensor.

A Template fixes names, dtypes, shapes and one canonical order: float parameters, float buffers,
integers. A FlatModel is that template with two flat arrays: all floats as float32, all integers
as int64. Merging works on the flat arrays; names are only slices of them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedfa.errors import InvalidTensors
from fedfa.kernel import NORM_BLOCK, Floats, kernel
from fedfa.memory import recycled

Kind = Literal["parameter", "buffer", "integer"]
Integers = npt.NDArray[np.int64]

INTEGER_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
_KIND_ORDER: dict[Kind, int] = {"parameter": 0, "buffer": 1, "integer": 2}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a template: a float parameter or buffer is F32, an integer any signed dtype."""

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        allowed = INTEGER_DTYPES if self.kind == "integer" else {"F32": None}
        if self.dtype not in allowed:
            raise InvalidTensors(
                f"{self.name}: a {self.kind} of dtype {self.dtype}; allowed: {', '.join(allowed)}"
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Template:
    """What every model and update of a federation must look like, in canonical order."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if not self.num_parameters:
            raise InvalidTensors("template: no float parameter to train")
        for before, after in pairwise(self.tensors):
            if _KIND_ORDER[before.kind] > _KIND_ORDER[after.kind]:
                raise InvalidTensors(
                    f"template: {after.name} ({after.kind}) comes after {before.name} "
                    f"({before.kind}); the order is {', '.join(_KIND_ORDER)}"
                )
        name, count = Counter(tensor.name for tensor in self.tensors).most_common(1)[0]
        if count > 1:
            raise InvalidTensors(f"template: {count} tensors have the name {name}")

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "Template":
        """A template with its tensors sorted into canonical order, stable within a kind."""
        return cls(tuple(sorted(tensors, key=lambda tensor: _KIND_ORDER[tensor.kind])))

    def _count(self, kind: Kind) -> int:
        return sum(tensor.size for tensor in self.tensors if tensor.kind == kind)

    @cached_property
    def num_parameters(self) -> int:
        return self._count("parameter")

    @cached_property
    def num_floats(self) -> int:
        """Parameters and buffers: the length of a FlatModel's float vector."""
        return self.num_parameters + self._count("buffer")

    @cached_property
    def num_integers(self) -> int:
        return self._count("integer")

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all tensors as stored, without the header."""
        return self.num_floats * 4 + sum(
            tensor.size * INTEGER_DTYPES[tensor.dtype].itemsize
            for tensor in self.tensors
            if tensor.kind == "integer"
        )

    def slices(self) -> Iterator[tuple[Tensor, slice]]:
        """Each tensor with its place in the float vector, or in the integer vector."""
        at = {"float": 0, "integer": 0}
        for tensor in self.tensors:
            vector = "integer" if tensor.kind == "integer" else "float"
            yield tensor, slice(at[vector], at[vector] + tensor.size)
            at[vector] += tensor.size


@dataclass(frozen=True, slots=True)
class FlatModel:
    """A model, or an update, as flat arrays.

    floats: float32 (num_floats,), parameters then buffers. integers: int64 (num_integers,).
    In an update for a delta rule the parameters are differences; buffers and integers are values.
    """

    template: Template
    floats: Floats
    integers: Integers

    def __post_init__(self) -> None:
        assert self.floats.shape == (self.template.num_floats,), self.floats.shape
        assert self.integers.shape == (self.template.num_integers,), self.integers.shape

    def named(self) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
        """Each tensor and its array in its own shape; float arrays are views."""
        for tensor, where in self.template.slices():
            if tensor.kind == "integer":
                dtype = INTEGER_DTYPES[tensor.dtype]
                yield tensor, self.integers[where].astype(dtype).reshape(tensor.shape)
            else:
                yield tensor, self.floats[where].reshape(tensor.shape)

    @property
    def is_finite(self) -> bool:
        return math.isfinite(kernel.squares(self.floats))


def new_floats(size: int) -> Floats:
    """A vector of arbitrary content."""
    return recycled(size * 4).view(np.float32)


def norm(values: Floats) -> float:
    """Euclidean norm of a float32 vector (n,), in float64: the same bits on every machine.

    Not finite iff a value is not.
    """
    return math.sqrt(kernel.squares(values))


def distance(left: Floats, right: Floats) -> float:
    """The `norm` of left - right. Not finite where one of them is not."""
    return math.sqrt(kernel.squares(left, right))


def cosine(start: Floats, end: Floats, along: Floats) -> float:
    """The cosine of end - start with along, all float32 (n,); 0 where one of the two is 0.

    In float64, within 1e-9 on every machine: within a block numpy orders the sums as it likes.
    """
    dot = way = length = 0.0
    for first in range(0, along.size, NORM_BLOCK):
        where = slice(first, first + NORM_BLOCK)
        block = end[where].astype(np.float64) - start[where]
        other = along[where].astype(np.float64)
        dot += float(np.add.reduce(block * other))
        way += float(np.add.reduce(block * block))
        length += float(np.add.reduce(other * other))
    if not way or not length:
        return 0.0
    return max(-1.0, min(1.0, dot / math.sqrt(way) / math.sqrt(length)))
