"""Updates in fewer bits: what is lost, and that nothing else is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.compression import BLOCK, PART, to_int8
from fedfa.errors import InvalidSpec, InvalidTensors
from fedfa.spec import parse
from fedfa.tensor_files import SCALES, decode, file_parts, read_header
from fedfa.tensors import FlatModel, Template, Tensor

TEMPLATE = Template(
    (
        Tensor("first", "parameter", "F32", (7, 100)),
        Tensor("second", "parameter", "F32", (BLOCK,)),
        Tensor("mean", "buffer", "F32", (3,)),
        Tensor("count", "integer", "I64", ()),
    )
)


def model(seed: int = 0) -> FlatModel:
    generator = np.random.default_rng(seed)
    floats = generator.standard_t(3, TEMPLATE.num_floats).astype(np.float32)
    return FlatModel(TEMPLATE, floats, np.array([5]))


def through_a_file(sent: FlatModel, compression: str, *, seed: int = 1) -> FlatModel:
    body = b"".join(file_parts(sent, {}, compression=compression, seed=seed))  # type: ignore[arg-type]
    return decode(body, TEMPLATE)


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_buffers_and_integers_travel_as_they_are(compression: str) -> None:
    sent, got = model(), through_a_file(model(), compression)
    assert np.array_equal(got.floats[TEMPLATE.num_parameters :], sent.floats[-3:])
    assert got.integers == sent.integers


def test_bf16_is_the_nearest_with_ties_to_even() -> None:
    template = Template((Tensor("w", "parameter", "F32", (5,)),))
    tie, above = 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-20  # neighbours of 1 are 2^-7 apart
    floats = np.array([1.0, tie, above, 1 + 3 * 2.0**-8, -tie], np.float32)
    body = b"".join(
        file_parts(FlatModel(template, floats, np.zeros(0, np.int64)), compression="bf16")
    )
    expected = [1.0, 1.0, 1 + 2.0**-7, 1 + 2.0**-6, -1.0]
    assert decode(body, template).floats.tolist() == expected


def test_int8_is_off_by_less_than_one_step_of_its_block() -> None:
    sent, got = model(), through_a_file(model(), "int8")
    values = sent.floats[: TEMPLATE.num_parameters]
    error = np.abs(got.floats[: values.size] - values)
    for start in range(0, values.size, BLOCK):
        block = slice(start, start + BLOCK)
        step = np.abs(values[block]).max() / 127
        assert error[block].max() <= step * (1 + 1e-5)


def test_int8_is_right_on_average() -> None:
    sent = model()
    mean = np.mean([through_a_file(sent, "int8", seed=seed).floats for seed in range(400)], axis=0)
    step = np.abs(sent.floats).max() / 127
    assert np.abs(mean - sent.floats).max() < step * 5 * 0.5 / 400**0.5  # 5 sigma of the worst


def test_the_same_seed_gives_the_same_file_and_another_one_does_not() -> None:
    files = [b"".join(file_parts(model(), compression="int8", seed=seed)) for seed in (1, 1, 2)]
    assert files[0] == files[1] != files[2]


@given(st.lists(st.sampled_from([0.0, -0.0, 1e-45, -1e-44, 1e-38, 1.0, -3e38]), min_size=1))
def test_int8_takes_zeros_denormals_and_huge_values(values: list[float]) -> None:
    template = Template((Tensor("w", "parameter", "F32", (len(values),)),))
    sent = FlatModel(template, np.array(values, np.float32), np.zeros(0, np.int64))
    body = b"".join(file_parts(sent, compression="int8", seed=0))
    got = decode(body, template).floats
    largest = float(np.abs(sent.floats).max())
    assert np.abs(got.astype(float) - sent.floats).max() <= largest / 127 * (1 + 1e-5) + 1e-43


def test_parts_of_a_large_vector_continue_each_other() -> None:
    values = np.random.default_rng(0).standard_normal(PART + BLOCK + 3, np.float32)
    codes, scales = to_int8(values, seed=3)
    assert scales.size == PART // BLOCK + 2
    error = np.abs(codes * np.repeat(scales, BLOCK)[: values.size] - values)
    assert error.max() <= scales.max() * (1 + 1e-5)


def test_files_are_smaller() -> None:
    sizes = {
        kind: sum(len(part) for part in file_parts(model(), compression=kind)[1:])
        for kind in ("none", "bf16", "int8")
    }
    kept = 3 * 4 + 8  # buffers and integers
    num = TEMPLATE.num_parameters
    assert sizes == {"none": 4 * num + kept, "bf16": 2 * num + kept, "int8": num + 4 * 4 + kept}


@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e38])
def test_a_forged_scale_is_refused(scale: float) -> None:
    body = bytearray(b"".join(file_parts(model(), compression="int8")))
    start = read_header(body).data_start
    body[start : start + 4] = np.float32(scale).tobytes()
    with pytest.raises(InvalidTensors, match="NaN or infinity"):
        decode(body, TEMPLATE)


def test_codes_without_scales_are_refused() -> None:
    body = b"".join(file_parts(model(), compression="int8")).replace(
        SCALES.encode(), b"x" * len(SCALES)
    )
    with pytest.raises(InvalidTensors, match="unexpected x"):
        decode(body, TEMPLATE)


def test_scales_beside_plain_floats_are_refused() -> None:
    wide = Template((Tensor(SCALES, "parameter", "F32", (4,)), *TEMPLATE.tensors))
    floats = np.zeros(wide.num_floats, np.float32)
    body = b"".join(file_parts(FlatModel(wide, floats, np.array([5]))))
    with pytest.raises(InvalidTensors, match="first: dtype F32, expected I8"):
        decode(body, TEMPLATE)


def test_a_rule_of_whole_models_takes_no_compression() -> None:
    fields = {"clients": 4, "rule": {"name": "fedfa-param"}, "compression": "int8"}
    with pytest.raises(InvalidSpec, match="a rule of deltas"):
        parse(fields)
