"""What a template refuses, and the norm of a flat vector."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.errors import InvalidTensors
from fedfa.tensors import Kind, Template, Tensor, norm


def test_a_template_without_trainable_floats_is_refused() -> None:
    with pytest.raises(InvalidTensors, match="no float parameter"):
        Template((Tensor("n", "integer", "I64", ()),))


@pytest.mark.parametrize(
    ("kinds", "complaint"),
    [
        (
            ["integer", "parameter"],
            r"t1 \(parameter\) comes after t0 \(integer\); the order is param",
        ),
        (["buffer", "parameter"], r"t1 \(parameter\) comes after t0 \(buffer\)"),
    ],
)
def test_a_template_out_of_order_is_refused(kinds: list[Kind], complaint: str) -> None:
    dtypes = {"integer": "I64"}
    tensors = [
        Tensor(f"t{at}", kind, dtypes.get(kind, "F32"), (1,)) for at, kind in enumerate(kinds)
    ]
    with pytest.raises(InvalidTensors, match=complaint):
        Template(tuple(tensors))


def test_a_name_that_two_tensors_have_is_told() -> None:
    with pytest.raises(InvalidTensors, match="2 tensors have the name weight"):
        Template(tuple(Tensor("weight", "parameter", "F32", (size,)) for size in (1, 2)))


@given(st.integers(0, 200_000), st.integers(0, 9))
def test_the_norm_equals_the_exact_one_to_nine_digits(size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    assert norm(values) == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), 1e-9)
