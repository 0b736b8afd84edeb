"""One update into a window of 5 and of 10: how far from the memory's limit, and from the naive way?

    python benchmarks/merge.py                     45 MB
    python benchmarks/merge.py --models bert       438 MB; needs 6 GB

The limit: a triad (two reads, one write) in the same round, scaled to the bytes that a merge must
touch, K updates and one model. The naive kernel: stack and mean, tensor by tensor, in torch.
"""

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from measure import Figure, interleaved, table, template, write

from fedfa.kernel import LIBRARY, CompiledKernel, Floats, NumpyKernel, kernel

LIMIT = "limit (triad, same bytes)"
BASELINE = "naive: stack and mean by tensor"
OURS = "ours"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet18"])
    parser.add_argument("--windows", nargs="+", type=int, default=[5, 10])
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    results = []
    for model in options.models:
        for window in options.windows:
            figures = measure(model, window, rounds=options.rounds)
            results.append({"model": model, "window": window, "ms": samples(figures)})
            print(f"\n{model}, K = {window}\n\n{rows(figures)}", flush=True)
    write("merge", results)


def measure(model: str, window: int, *, rounds: int) -> dict[str, Figure]:
    shapes = template(model)
    generator = np.random.default_rng(0)
    vectors = [
        generator.standard_normal(shapes.num_floats, dtype=np.float32) for _ in range(window)
    ]
    out, previous = np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
    tensors = [
        [torch.from_numpy(vector[where]).view(tensor.shape) for tensor, where in shapes.slices()]
        for vector in vectors
    ]

    def ours(which: NumpyKernel | CompiledKernel) -> Callable[[], None]:
        weights = (1.0,) * window
        return lambda: which.weighted_sum(
            out, previous, vectors, weights, divisor=float(window), step=1.0, keep=0.0
        )

    cases: dict[str, Callable[[], object]] = {
        LIMIT: triad(window, out, vectors[0], vectors[1]),
        BASELINE: lambda: [torch.stack(each).mean(0) for each in zip(*tensors, strict=True)],
        "numpy fallback": ours(NumpyKernel()),
        "ours, one thread": ours(CompiledKernel(LIBRARY, num_threads=1)),
        OURS: lambda: kernel.weighted_sum(
            *(out, previous, vectors, (1.0,) * window), divisor=float(window), step=1.0, keep=0.0
        ),
    }
    return interleaved(cases, rounds=rounds)


def triad(window: int, a: Floats, b: Floats, c: Floats) -> Callable[[], None]:
    """As many bytes as a merge touches: (window + 1) vectors, where one triad touches three."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "triad.so"
        source = Path(__file__).with_name("triad.c")
        subprocess.run(
            ["cc", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
        )
        run = ctypes.CDLL(str(library)).triad
    pool, scale = ThreadPoolExecutor(2), ctypes.c_float(1.5)
    total = a.size * (window + 1) // 3
    aligned = (-a.ctypes.data // 4) % 4  # a streaming store wants 16 bytes

    def part(start: int, size: int) -> None:
        addresses = (ctypes.c_void_p(each.ctypes.data + 4 * start) for each in (a, b, c))
        run(*addresses, scale, ctypes.c_size_t(size))

    def once() -> None:
        left = total
        while left > 0:
            size = min(left, a.size - aligned - 3)
            half = size // 2 // 4 * 4
            list(pool.map(part, (aligned, aligned + half), (half, size - half)))
            left -= size

    return once


def rows(figures: dict[str, Figure]) -> str:
    limit, naive = figures[LIMIT].median, figures[BASELINE].median
    return table(
        ["", "ms (quartiles)", "times the limit", "times faster than naive"],
        [
            [name, str(each), f"{each.median / limit:.2f}", f"{naive / each.median:.1f}"]
            for name, each in figures.items()
        ],
    )


def samples(figures: dict[str, Figure]) -> dict[str, list[float]]:
    return {name: [round(value, 3) for value in each.samples] for name, each in figures.items()}


if __name__ == "__main__":
    main()
