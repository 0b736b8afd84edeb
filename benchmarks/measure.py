"""How the benchmarks measure: interleaved repetitions, the machine, the shapes of four models."""

import os
import platform
import time
from collections.abc import Callable, Mapping

import numpy as np

from fedfa.kernel import kernel
from fedfa.simulate.workers import processor
from fedfa.tensors import Template, Tensor


def interleaved(
    cases: Mapping[str, Callable[[], object]], *, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each case; every round runs them all, so that none has a quieter machine."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for round_number in range(rounds + 1):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            if round_number:  # the first one warms up
                samples[name].append((time.perf_counter() - started) * 1e3)
    return samples


def percentile(samples: list[float], share: float) -> float:
    """The sample below which this share of them lies."""
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))]


def machine() -> dict[str, object]:
    """Where these results are from, and how busy it was: without that they say little."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kernel": kernel.name,
        "load_average": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }


def template(name: str) -> Template:
    """A model's shapes: lora (0.15 MB), tiny (17.5 MB), resnet18 (45 MB) or bert (438 MB)."""
    tensors = [Tensor(key, "parameter", "F32", shape) for key, shape in SHAPES[name]().items()]
    return Template(tuple(tensors))


Shapes = dict[str, tuple[int, ...]]


def _lora() -> Shapes:
    shapes: Shapes = {}
    for layer in range(2):
        for target in ("query", "key", "value", "output"):
            shapes[f"layer.{layer}.{target}.lora_A"] = (8, 256)
            shapes[f"layer.{layer}.{target}.lora_B"] = (256, 8)
    return shapes | {"classifier.weight": (20, 256), "classifier.bias": (20,)}


def _transformer(*, width: int, depth: int, vocabulary: int) -> Shapes:
    shapes: Shapes = {
        "embeddings.word": (vocabulary, width),
        "embeddings.position": (512, width),
        "embeddings.norm.weight": (width,),
        "embeddings.norm.bias": (width,),
    }
    for layer in range(depth):
        for target in ("query", "key", "value", "output"):
            shapes[f"layer.{layer}.{target}.weight"] = (width, width)
            shapes[f"layer.{layer}.{target}.bias"] = (width,)
        shapes[f"layer.{layer}.up.weight"] = (4 * width, width)
        shapes[f"layer.{layer}.up.bias"] = (4 * width,)
        shapes[f"layer.{layer}.down.weight"] = (width, 4 * width)
        shapes[f"layer.{layer}.down.bias"] = (width,)
        for norm in ("attention", "final"):
            shapes[f"layer.{layer}.{norm}.norm.weight"] = (width,)
            shapes[f"layer.{layer}.{norm}.norm.bias"] = (width,)
    return shapes


def _resnet18() -> Shapes:
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7), "bn1.weight": (64,), "bn1.bias": (64,)}
    width = 64
    for stage, channels in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes[f"{name}.conv1.weight"] = (channels, width, 3, 3)
            shapes[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            if width != channels:
                shapes[f"{name}.downsample.0.weight"] = (channels, width, 1, 1)
            for norm in ("bn1", "bn2"):
                shapes[f"{name}.{norm}.weight"] = (channels,)
                shapes[f"{name}.{norm}.bias"] = (channels,)
            width = channels
    return shapes | {"fc.weight": (10, 512), "fc.bias": (10,)}


SHAPES: dict[str, Callable[[], Shapes]] = {
    "lora": _lora,
    "tiny": lambda: _transformer(width=128, depth=2, vocabulary=30_522),
    "resnet18": _resnet18,
    "bert": lambda: _transformer(width=768, depth=12, vocabulary=30_522),
}


def check(name: str, is_true: bool, text: str) -> bool:
    print(f"{'ok  ' if is_true else 'FAIL'} {name}: {text}", flush=True)
    return is_true
