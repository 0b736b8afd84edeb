"""What every merge rule does to the vectors: a weighted sum in float64, rounded once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedfa.kernel import Floats, kernel
from fedfa.tensors import FlatModel, new_floats


@dataclass(frozen=True, slots=True)
class Combination:
    """What a rule does to the model, as numbers.

    parameters: w_t = keep * w_{t-1} + step * (sum_i weights_i x_i) / divisor
    buffers:    b_t = (1 - beta) * b_{t-1} + beta * mean_i b_i
    integers:   max(previous, all i)

    i runs over the merged updates in commit order; x_i is what trainers send under the rule
    (models or deltas). One weight for each merged update.
    """

    keep: float
    step: float
    weights: tuple[float, ...]
    divisor: float
    beta: float


@dataclass(frozen=True, slots=True)
class Merge:
    """A rule's answer to one more update in the window.

    combination: None leaves model and version as they are (the window is still filling).
    It applies to the newest `len(weights)` updates. kept: how many of the newest updates stay
    in the window afterwards.
    """

    combination: Combination | None
    kept: int


def combine(model: FlatModel, updates: Sequence[FlatModel], combination: Combination) -> FlatModel:
    """The next model. float64 accumulation in commit order, one rounding to float32.

    Elementwise, so the block size never changes a bit. All arguments share one template.
    """
    assert len(updates) == len(combination.weights)
    split = model.template.num_parameters
    floats = new_floats(model.floats.size)
    _weighted(
        floats[:split],
        model.floats[:split],
        [update.floats[:split] for update in updates],
        combination,
    )
    buffers = Combination(
        keep=1.0 - combination.beta,
        step=combination.beta,
        weights=(1.0,) * len(updates),
        divisor=float(len(updates)),
        beta=combination.beta,
    )
    _weighted(
        floats[split:],
        model.floats[split:],
        [update.floats[split:] for update in updates],
        buffers,
    )
    integers = np.maximum.reduce([model.integers, *(update.integers for update in updates)])
    return FlatModel(model.template, floats, integers)


def _weighted(
    out: Floats, previous: Floats, vectors: Sequence[Floats], combination: Combination
) -> None:
    kernel.weighted_sum(
        out,
        previous,
        vectors,
        combination.weights,
        divisor=combination.divisor,
        step=combination.step,
        keep=combination.keep,
    )
