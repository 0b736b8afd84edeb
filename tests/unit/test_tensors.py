"""What a template refuses, and the norm of a flat vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.errors import InvalidTensors
from fedfa.tensors import Template, Tensor, norm


def test_a_template_without_trainable_floats_is_refused() -> None:
    with pytest.raises(InvalidTensors, match="no float parameter"):
        Template((Tensor("n", "integer", "I64", ()),))


@given(st.integers(0, 200_000), st.integers(0, 9))
def test_the_norm_equals_the_exact_one_to_nine_digits(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    assert norm(values) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), 1e-9)
