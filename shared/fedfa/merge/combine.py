"""What every merge rule does to the vectors: a weighted sum in float64, rounded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfa.kernel import kernel
from fedfa.tensors import FlatModel, new_floats

Reopens = Literal["own", "waiting", "none"]


@dataclass(frozen=True, slots=True)
class Combination:
    """What a rule does to the model, as numbers.

    parameters: w_t = keep * w_{t-1} + step * (sum_i weights_i x_i) / divisor
    buffers:    b_t = (1 - beta) * b_{t-1} + beta * (sum_i shares_i b_i) / (sum_i shares_i)
    integers:   max(previous, all i)

    i runs over the merged updates in commit order; x_i is what trainers send under the rule
    (models or deltas). One weight and one share for each merged update. With beta in [0, 1] and
    positive shares buffers stay in the convex hull of what was seen: variances stay positive.
    """

    keep: float
    step: float
    weights: tuple[float, ...]
    divisor: float
    beta: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule's answer to one more update in the window.

    combination: None leaves model and version as they are (the window is still filling).
    It applies to the newest `len(weights)` updates. kept: how many of the newest updates stay
    in the window afterwards. reopens: the update's own slot, every waiting slot (its own too),
    or none, so that its own waits.
    """

    combination: Combination | None
    kept: int
    reopens: Reopens


def combine(model: FlatModel, updates: Sequence[FlatModel], combination: Combination) -> FlatModel:
    """The next model. float64 accumulation in commit order, one rounding to float32.

    Elementwise, so the block size never changes a bit. All arguments share one template.
    """
    assert len(updates) == len(combination.weights) == len(combination.shares)
    split = model.template.num_parameters
    floats = new_floats(model.floats.size)
    kernel.weighted_sum(
        floats[:split],
        model.floats[:split],
        [update.floats[:split] for update in updates],
        combination.weights,
        keep=combination.keep,
        step=combination.step,
        divisor=combination.divisor,
    )
    kernel.weighted_sum(
        floats[split:],
        model.floats[split:],
        [update.floats[split:] for update in updates],
        combination.shares,
        keep=1.0 - combination.beta,
        step=combination.beta,
        divisor=sum(combination.shares),
    )
    integers = np.maximum.reduce([model.integers, *(update.integers for update in updates)])
    return FlatModel(model.template, floats, integers)
