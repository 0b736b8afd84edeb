"""Reading safetensors trusts nothing; writing them is canonical and readable by anybody."""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from fedfa.errors import InvalidTensors
from fedfa.tensor_files import decode, encode, infer_template, read_header
from fedfa.tensors import FlatModel, Template, Tensor
from tests.unit.builders import TEMPLATE, vector


def file_of(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def rewritten(change: Any) -> bytes:
    """A valid file with its header changed by a function."""
    body = encode(vector(1))
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    change(header)
    return file_of(header, body[8 + length :])


def test_a_model_survives_its_file_bit_for_bit() -> None:
    model = vector(3)
    again = decode(encode(model, {"note": 1}), TEMPLATE)
    assert again.floats.tobytes() == model.floats.tobytes()
    assert again.integers.tolist() == model.integers.tolist()


def test_the_same_model_always_makes_the_same_bytes() -> None:
    metadata = {"b": 1, "a": [1.5, "x"]}
    assert encode(vector(3), metadata) == encode(vector(3), dict(reversed(metadata.items())))


def test_the_safetensors_library_reads_our_files_with_shapes_and_dtypes_kept() -> None:
    template = Template(
        (
            Tensor("w", "parameter", "F32", (3,)),  # an odd count: the int64 is not aligned
            Tensor("count", "integer", "I64", ()),
            Tensor("mask", "integer", "BOOL", (2,)),
        )
    )
    model = FlatModel(template, np.array([1, 2, 3], np.float32), np.array([2**40, 1, 0]))
    read = safetensors.numpy.load(encode(model, {"x": 1}))
    assert read["w"].tolist() == [1, 2, 3]
    assert read["count"].shape == ()
    assert int(read["count"]) == 2**40
    assert read["mask"].dtype == np.bool_


def test_our_reader_reads_the_librarys_files_whatever_their_order() -> None:
    model = vector(5)
    body = safetensors.numpy.save({tensor.name: array for tensor, array in model.named()})
    assert decode(body, TEMPLATE).floats.tobytes() == model.floats.tobytes()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_low_precision_floats_are_widened_exactly(dtype: str) -> None:
    template = Template((Tensor("w", "parameter", "F32", (4,)),))
    values = np.array([1.0, -2.5, 0.0078125, 384.0], np.float32)  # exact in both
    if dtype == "F16":
        data = values.astype(np.float16).tobytes()
    else:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    body = file_of({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, 8]}}, data)
    assert decode(body, template).floats.tolist() == values.tolist()


def entry(header: dict[str, Any], **fields: Any) -> None:
    header["weight"].update(fields)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda header: header.pop("count"), "missing count"),
        (lambda header: header.update(extra=header["count"]), "unexpected extra"),
        (lambda header: entry(header, shape=[3, 2]), "shape"),
        (lambda header: entry(header, shape=[6]), "shape"),
        (lambda header: entry(header, dtype="F64"), "dtype F64"),
        (lambda header: entry(header, dtype="F16"), "bytes for F16"),
        (lambda header: entry(header, data_offsets=[0, 20]), "gap or overlap"),
        (lambda header: entry(header, data_offsets=[-4, 20]), "malformed"),
        (lambda header: entry(header, shape=[2**62, 4]), "malformed"),
        (lambda header: entry(header, more=1), "malformed"),
        (lambda header: header.update(weight=7), "malformed"),
        (lambda header: entry(header, dtype=[]), "malformed"),
        (lambda header: entry(header, dtype="\ud800"), "malformed"),
        (lambda header: header.update({"\ud800": header["count"]}), "malformed"),
        (lambda header: header.update(__metadata__={"fedfa": "[" * 10_000}), "malformed"),
    ],
)
def test_a_header_that_differs_from_the_template_is_refused(change: Any, complaint: str) -> None:
    with pytest.raises(InvalidTensors, match=complaint):
        decode(rewritten(change), TEMPLATE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_value_is_refused_and_its_tensor_named(value: float) -> None:
    model = vector(1)
    model.floats[7] = value
    with pytest.raises(InvalidTensors, match="running_mean: holds NaN or infinity"):
        decode(encode(model), TEMPLATE)


def test_a_huge_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidTensors, match="at most"):
        decode((8 * 2**20).to_bytes(8, "little") + b" " * (8 * 2**20), TEMPLATE)


def test_the_same_key_twice_is_refused() -> None:
    text = b'{"a":1,"a":2}'
    with pytest.raises(InvalidTensors, match="same key twice"):
        read_header(len(text).to_bytes(8, "little") + text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(field=st.sampled_from(["dtype", "shape", "data_offsets"]), value=json_values)
def test_any_json_in_a_header_is_refused_or_well_formed(field: str, value: Any) -> None:
    try:
        decode(rewritten(lambda header: entry(header, **{field: value})), TEMPLATE)
    except InvalidTensors as error:
        str(error).encode()  # whoever logs or sends it must be able to


@given(cut=st.integers(0, len(encode(vector(1))) - 1))
def test_a_file_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(InvalidTensors):
        decode(encode(vector(1))[:cut], TEMPLATE)


@given(at=st.integers(0, len(encode(vector(1))) - 1), byte=st.integers(0, 255))
def test_a_file_with_any_byte_changed_is_refused_or_well_formed(at: int, byte: int) -> None:
    body = bytearray(encode(vector(1)))
    body[at] = byte
    try:
        model = decode(bytes(body), TEMPLATE)
    except InvalidTensors:
        return
    assert model.is_finite


def test_the_template_is_inferred_from_the_first_file() -> None:
    header = read_header(encode(vector(1)))
    assert infer_template(header, num_parameters=1) == TEMPLATE
