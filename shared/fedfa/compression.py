"""Smaller numbers for an update's journey: bfloat16, or 8 bits and a scale for each block. PURE.

What arrives is widened by one exact operation, a shift or one float32 product, so that everybody
who reads a file gets the same bits. Nothing is remembered between two updates.
"""

import numpy as np
import numpy.typing as npt

from fedfa.kernel import Floats

Halves = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.int8]

BLOCK = 256  # elements that share a scale: 1.6 % more bytes
LARGEST = np.float32(127)
PART = 4096 * BLOCK  # encoded at once, so that temporary arrays stay small


def to_bf16(values: Floats) -> Halves:
    """The nearest bfloat16 of each finite value, ties to even: its sign, exponent and 7 bits."""
    bits = values.view(np.uint32)
    is_odd = (bits >> 16) & 1
    return ((bits + (is_odd + 0x7FFF)) >> 16).astype("<u2")


def from_bf16(stored: Halves, out: Floats) -> None:
    """Exact: a bfloat16 is the upper half of a float32."""
    np.left_shift(stored, 16, out=out.view(np.uint32), dtype=np.uint32)


def num_scales(num_values: int) -> int:
    return -(-num_values // BLOCK)


def to_int8(values: Floats, *, seed: int) -> tuple[Codes, Floats]:
    """Codes and, for each block of 256 values, the scale that they are to be multiplied by.

    scale = max |x| / 127, code = floor(x / scale + u) with u uniform in [0, 1) from the seed:
    the expectation of code * scale is x, so that rounding adds noise to a mean and no bias.
    """
    draw = np.random.default_rng(seed)
    codes = np.empty(values.size, np.int8)
    scales = np.empty(num_scales(values.size), np.float32)
    for start in range(0, values.size, PART):
        part = values[start : start + PART]
        blocks = np.arange(0, part.size, BLOCK)
        scale = np.maximum.reduceat(np.abs(part), blocks) / LARGEST
        scales[start // BLOCK : start // BLOCK + scale.size] = scale
        each = np.repeat(scale, BLOCK)[: part.size]
        scaled = np.divide(part, each, out=np.zeros_like(part), where=each > 0)
        scaled += draw.random(part.size, np.float32)
        codes[start : start + PART] = np.clip(np.floor(scaled), -LARGEST, LARGEST)
    return codes, scales


def from_int8(codes: Codes, scales: Floats, out: Floats, *, first: int) -> None:
    """out = code * scale, one float32 product each. first: the place of codes[0] in the vector."""
    start = first // BLOCK
    each = np.repeat(scales[start : num_scales(first + codes.size)], BLOCK)
    with np.errstate(over="ignore", invalid="ignore"):  # whoever reads refuses what is not finite
        np.multiply(codes, each[first - start * BLOCK :][: codes.size], out=out)
