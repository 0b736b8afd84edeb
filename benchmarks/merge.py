"""One update into a window of 5 and of 10: how far from the memory's limit, and from the naive way?

    python benchmarks/merge.py                     45 MB
    python benchmarks/merge.py --models bert       438 MB; needs 6 GB

The limit: a triad (two reads, one write) in the same round, scaled to the bytes that a merge must
touch, K updates and one model. The naive kernel: stack and mean, tensor by tensor, in torch. Other
frameworks' aggregation functions (peers.py) get the same bytes in the same rounds, if `make
bench-setup` installed them; a FedAvg function is called with the whole window, as it would have to
be at every update, and a buffer with all of its K updates.
"""

import ctypes
import json
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import peers
import torch
from measure import interleaved, template
from results import Group, options, write

from fedfa.kernel import LIBRARY, CompiledKernel, Floats, Kernel, NumpyKernel, kernel
from fedfa.tensors import Template

LIMIT = "limit (triad, same bytes)"
BASELINE = "naive: stack and mean by tensor"
OURS = "ours"
MS = "ms"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["resnet18"])
    parser.add_argument("--windows", nargs="+", type=int, default=[5, 10])
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    for model in given.models:
        for window in given.windows:
            cases = {
                name: {MS: samples}
                for name, samples in measure(model, window, rounds=given.rounds).items()
            }
            group = Group(f"{model}, K = {window}", cases, {MS: [LIMIT, BASELINE]})
            write(given.results, "merge", group)


def measure(model: str, window: int, *, rounds: int) -> dict[str, list[float]]:
    shapes = template(model)
    with ExitStack() as stack:
        # In memory, and in a file, so that the peers' processes see the same bytes.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        arrays = np.memmap(folder / "window", np.float32, "w+", shape=(window, shapes.num_floats))
        generator = np.random.default_rng(0)
        for row in arrays:
            generator.standard_normal(out=row, dtype=np.float32)
        text = json.dumps({tensor.name: tensor.shape for tensor in shapes.tensors})
        (folder / "shapes.json").write_text(text)
        cases = our_cases(shapes, [np.asarray(row) for row in arrays])
        for name in peers.present():
            peer = peers.Peer(name, folder / "window", folder / "shapes.json", window)
            stack.callback(peer.close)
            cases |= {case: partial(peer.run, case) for case in peer.cases}
        return interleaved(cases, rounds=rounds)


def our_cases(shapes: Template, vectors: list[Floats]) -> dict[str, Callable[[], object]]:
    window = len(vectors)
    out, previous = np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
    tensors = [
        [torch.from_numpy(vector[where]).view(tensor.shape) for tensor, where in shapes.slices()]
        for vector in vectors
    ]

    def ours(which: Kernel) -> Callable[[], None]:
        weights = (1.0,) * window
        return lambda: which.weighted_sum(
            out, previous, vectors, weights, divisor=float(window), step=1.0, keep=0.0
        )

    return {
        LIMIT: triad(window, out, vectors[0], vectors[1]),
        BASELINE: lambda: [torch.stack(each).mean(0) for each in zip(*tensors, strict=True)],
        "numpy fallback": ours(NumpyKernel()),
        "ours, one thread": ours(CompiledKernel(LIBRARY, num_threads=1)),
        OURS: ours(kernel),
    }


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


if __name__ == "__main__":
    main()
