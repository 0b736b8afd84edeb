"""The loops over a model's numbers: compiled C where the package was built with it, or numpy.

Both give the same bits, in any blocking and with any number of threads: every operation is a
float64 one in a fixed order, and rounds as IEEE 754 says. The numpy versions are the
specification; kernel.c repeats them at the speed of memory.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

ABI = 1
LIBRARY = Path(__file__).with_name("_kernel.so")
NORM_BLOCK = 65_536
LANES = 32
BLOCK = 16_384  # float64 accumulator of 128 KiB: stays in a core's second-level cache
THREADED_FROM = 262_144  # elements; with fewer, starting a thread costs more than it saves
MOST_THREADS = 4  # two saturate the memory of a small machine, four that of most


class Kernel(Protocol):
    """All vectors are contiguous float32 of one length."""

    @property
    def name(self) -> str: ...

    def weighted_sum(
        self,
        out: Floats,
        previous: Floats,
        vectors: Sequence[Floats],
        weights: Sequence[float],
        *,
        divisor: float,
        step: float,
        keep: float,
    ) -> None:
        """out = keep * previous + step * (sum_i weights_i vectors_i) / divisor

        The sum in float64, in order; one rounding. With keep 0 `previous` is not read: 0 * inf
        would poison a model that is being replaced. What does not fit in float32 is infinite.
        """

    def squares(self, values: Floats, origin: Floats | None = None) -> float:
        """sum_j (values_j - origin_j)^2 in float64; no origin is 0. Not finite iff an element is.

        Blocks of 65,536 in order; in a block 32 lanes (element j is in lane j mod 32), each
        summed in order, then the lanes in order.
        """


class NumpyKernel:
    name = "numpy"

    def weighted_sum(
        self,
        out: Floats,
        previous: Floats,
        vectors: Sequence[Floats],
        weights: Sequence[float],
        *,
        divisor: float,
        step: float,
        keep: float,
    ) -> None:
        total = np.empty(min(BLOCK, out.size), np.float64)
        term = np.empty_like(total)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, out.size, BLOCK):
                block = slice(start, min(start + BLOCK, out.size))
                size = block.stop - block.start
                accumulator, product = total[:size], term[:size]
                accumulator[:] = 0.0
                for vector, weight in zip(vectors, weights, strict=True):
                    np.multiply(vector[block], weight, out=product, dtype=np.float64)
                    accumulator += product
                accumulator /= divisor
                accumulator *= step
                if keep:
                    np.multiply(previous[block], keep, out=product, dtype=np.float64)
                    accumulator += product
                out[block] = accumulator

    def squares(self, values: Floats, origin: Floats | None = None) -> float:
        total = 0.0
        with np.errstate(invalid="ignore"):
            for start in range(0, values.size, NORM_BLOCK):
                block = values[start : start + NORM_BLOCK].astype(np.float64)
                if origin is not None:
                    block -= origin[start : start + NORM_BLOCK]
                block *= block
                whole = block.size - block.size % LANES
                lanes = np.add.reduce(block[:whole].reshape(-1, LANES), axis=0)
                lanes[: block.size - whole] += block[whole:]
                total += float(np.add.accumulate(lanes)[-1])
        return total


class CompiledKernel:
    name = "compiled"

    def __init__(
        self, library: Path, *, num_threads: int, threaded_from: int = THREADED_FROM
    ) -> None:
        """Raises OSError where this machine cannot load the library."""
        loaded = ctypes.CDLL(str(library))
        if loaded.fedfa_kernel_abi() != ABI:
            raise OSError(f"{library} was built from another kernel.c; install the package again")
        pointer, size, double = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_double
        self._sum = loaded.fedfa_weighted_sum
        self._sum.restype = None
        self._sum.argtypes = [
            *(pointer, pointer, pointer, pointer, size),
            *(double, double, double, size, ctypes.c_int),
        ]
        self._squares = loaded.fedfa_squares
        self._squares.restype = double
        self._squares.argtypes = [pointer, pointer, pointer, size, ctypes.c_int]
        self._num_threads = num_threads
        self._threaded_from = threaded_from

    def weighted_sum(
        self,
        out: Floats,
        previous: Floats,
        vectors: Sequence[Floats],
        weights: Sequence[float],
        *,
        divisor: float,
        step: float,
        keep: float,
    ) -> None:
        assert len(vectors) == len(weights)
        assert out.flags.writeable
        for vector in (out, previous, *vectors):
            _check(vector, out.size)
        addresses = (ctypes.c_void_p * len(vectors))(*(each.ctypes.data for each in vectors))
        factors = (ctypes.c_double * len(weights))(*weights)
        self._sum(
            *(out.ctypes.data, previous.ctypes.data, addresses, factors, len(vectors)),
            *(divisor, step, keep, out.size, self._threads(out.size)),
        )

    def squares(self, values: Floats, origin: Floats | None = None) -> float:
        _check(values, values.size)
        if origin is not None:
            _check(origin, values.size)
        totals = (ctypes.c_double * (-(-values.size // NORM_BLOCK)))()
        start = None if origin is None else origin.ctypes.data
        threads = self._threads(values.size)
        return float(self._squares(totals, values.ctypes.data, start, values.size, threads))

    def _threads(self, num_elements: int) -> int:
        return self._num_threads if num_elements >= self._threaded_from else 1


def _check(vector: Floats, size: int) -> None:
    assert vector.dtype == np.float32, vector.dtype
    assert vector.shape == (size,), vector.shape
    assert vector.flags.c_contiguous


def best(library: Path) -> Kernel:
    """The compiled kernel, or numpy where its library is missing or for another machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        return CompiledKernel(library, num_threads=min(MOST_THREADS, cores or 1))
    except OSError:
        return NumpyKernel()


kernel: Kernel = best(LIBRARY)
