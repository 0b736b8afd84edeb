"""Models and updates as safetensors files, of which the same model always makes the same bytes.

Reading trusts nothing: capped header, exact key set, dtypes and shapes, no gaps, no overlaps,
finite floats. Everything wrong is InvalidTensors.
"""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfa.canonical import canonical_json
from fedfa.compression import from_bf16, from_int8, num_scales, to_bf16, to_int8
from fedfa.errors import InvalidTensors
from fedfa.kernel import Floats
from fedfa.memory import Bytes
from fedfa.sections import Compression
from fedfa.tensors import INTEGER_DTYPES, FlatModel, Kind, Template, Tensor, new_floats

METADATA_KEY = "fedfa"
SCALES = "fedfa.int8_scales"  # beside parameters that are stored as I8
MAX_HEADER_BYTES = 16 * 1024 * 1024  # of version 0, which also lists the clients

_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2} | {
    name: dtype.itemsize for name, dtype in INTEGER_DTYPES.items()
}


def encode(model: FlatModel, metadata: dict[str, Any] | None = None) -> bytes:
    """The safetensors file of a model: canonical order, at most one metadata key."""
    return b"".join(file_parts(model, metadata))


def file_parts(
    model: FlatModel,
    metadata: dict[str, Any] | None = None,
    *,
    compression: Compression = "none",
    seed: int = 0,
) -> tuple[Bytes, ...]:
    """The same file in parts, the floats as a view of the model: nothing large is copied.

    compression is that of the parameters; buffers and integers are as they are. seed: of int8's
    rounding.
    """
    template = model.template
    note = {} if metadata is None else {"__metadata__": {METADATA_KEY: canonical_json(metadata)}}
    integers = [
        model.integers[where].astype(INTEGER_DTYPES[tensor.dtype]).tobytes()
        for tensor, where in template.slices()
        if tensor.kind == "integer"
    ]
    floats = np.ascontiguousarray(model.floats, dtype="<f4")
    parameters, buffers = np.split(floats, [template.num_parameters])
    stored: tuple[npt.NDArray[Any], ...]
    match compression:
        case "none":
            stored = (floats,)
        case "bf16":
            stored = (to_bf16(parameters), buffers)
        case "int8":
            codes, scales = to_int8(parameters, seed=seed)
            stored = (scales.astype("<f4", copy=False), codes, buffers)
    arrays = (each.data.cast("B") for each in stored if each.size)
    return _framed(note | _entries(template, compression)), *arrays, b"".join(integers)


def _framed(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def _entries(template: Template, compression: Compression) -> dict[str, dict[str, Any]]:
    """The header's entry of each tensor, in canonical order; the scales, if any, are in front."""
    parameter = {"none": "F32", "bf16": "BF16", "int8": "I8"}[compression]
    stored = [
        (tensor.name, parameter if tensor.kind == "parameter" else tensor.dtype, tensor.shape)
        for tensor in template.tensors
    ]
    if compression == "int8":
        stored.insert(0, (SCALES, "F32", (num_scales(template.num_parameters),)))
    entries, end = {}, 0
    for name, dtype, shape in stored:
        start, end = end, end + math.prod(shape) * _ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return entries


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed safetensors header. entries: name -> (dtype, shape, start, end), data offsets."""

    entries: dict[str, tuple[str, tuple[int, ...], int, int]]
    metadata: dict[str, Any]
    data_start: int


def read_header(body: Bytes, *, max_header_bytes: int = MAX_HEADER_BYTES) -> Header:
    """Parse and check the header at the start of a (possibly longer or cut) safetensors file."""
    if len(body) < 8:
        raise InvalidTensors(f"safetensors: {len(body)} bytes, a file has at least 8")
    length = int.from_bytes(body[:8], "little")
    if length > max_header_bytes:
        raise InvalidTensors(f"safetensors: header of {length} bytes, at most {max_header_bytes}")
    if len(body) < 8 + length:
        raise InvalidTensors(f"safetensors: cut off inside its header of {length} bytes")
    try:
        text = bytes(body[8 : 8 + length])
        fields = json.loads(text, object_pairs_hook=_without_duplicates)
        raw = fields.pop("__metadata__", {})
        metadata = json.loads(raw[METADATA_KEY]) if METADATA_KEY in raw else {}
        entries = {_encodable(name): _entry(value) for name, value in fields.items()}
        if not isinstance(metadata, dict):
            raise ValueError("metadata is not an object")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidTensors(f"safetensors: malformed header: {error}") from error
    return Header(entries, metadata, 8 + length)


def _encodable(name: str) -> str:
    name.encode()  # JSON can hold lone surrogates, which no message and no log line could carry
    return name


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("the same key twice")
    return fields


def _entry(value: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
    dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
    if set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"unexpected fields {sorted(value)}")
    if not isinstance(dtype, str) or not dtype.isascii():
        raise ValueError(f"dtype {dtype!r:.60}")
    numbers = [*shape, start, end]
    if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"shape {shape!r:.60} or offsets {start!r:.60}, {end!r:.60} are not sizes")
    return dtype, tuple(shape), start, end


def max_update_bytes(template: Template) -> int:
    """The size that no update of this template can exceed: all data, and a generous header."""
    return template.size_bytes + max_update_header_bytes(template)


def max_update_header_bytes(template: Template) -> int:
    return 16_384 + sum(len(tensor.name) * 6 + 256 for tensor in template.tensors)


def decode(body: Bytes, template: Template, *, max_header_bytes: int | None = None) -> FlatModel:
    """Read a model or update that must match the template exactly.

    Floats may be stored as F16 or BF16 and are widened exactly; nothing else may differ. Where
    the file stores them as a FlatModel does, the model's floats are a view of the body.
    """
    header = read_header(
        body, max_header_bytes=max_header_bytes or max_update_header_bytes(template)
    )
    return decode_data(body, header, template)


def decode_data(body: Bytes, header: Header, template: Template) -> FlatModel:
    """`decode` for who has read the header already."""
    expected = {tensor.name for tensor in template.tensors}
    has_scales = SCALES in header.entries and SCALES not in expected
    if has_scales:
        expected.add(SCALES)
    if set(header.entries) != expected:
        missing, extra = expected - set(header.entries), set(header.entries) - expected
        raise InvalidTensors(f"tensors: missing {_some(missing)}, unexpected {_some(extra)}")
    data = memoryview(body)[header.data_start :]
    _check_layout(header, len(data))
    for tensor in template.tensors:
        _check_entry(header, tensor, has_scales=has_scales)
    if has_scales:
        scales = (num_scales(template.num_parameters),)
        _check_entry(header, Tensor(SCALES, "buffer", "F32", scales), has_scales=False)
    integers = np.empty(template.num_integers, np.int64)
    for tensor, where in template.slices():
        if tensor.kind == "integer":
            dtype, _, start, end = header.entries[tensor.name]
            integers[where] = np.frombuffer(data[start:end], INTEGER_DTYPES[dtype])
    floats = _stored_floats(data, header, template)
    if floats is None:
        floats = _gathered_floats(data, header, template)
    model = FlatModel(template, floats, integers)
    if not model.is_finite:
        bad = [t.name for t, array in model.named() if not np.isfinite(array).all()]
        raise InvalidTensors(f"{_some(bad)}: holds NaN or infinity")
    return model


def _check_entry(header: Header, tensor: Tensor, *, has_scales: bool) -> None:
    dtype, shape, start, end = header.entries[tensor.name]
    if tensor.name == SCALES or tensor.kind == "integer":
        allowed = {tensor.dtype}
    elif has_scales and tensor.kind == "parameter":
        allowed = {"I8"}
    else:
        allowed = {"F32", "F16", "BF16"}
    if dtype not in allowed:
        expected = " or ".join(sorted(allowed, reverse=True))
        raise InvalidTensors(f"{tensor.name}: dtype {dtype}, expected {expected}")
    if shape != tensor.shape:
        raise InvalidTensors(f"{tensor.name}: shape {list(shape)}, expected {list(tensor.shape)}")
    if end - start != tensor.size * _ITEM_BYTES[dtype]:
        raise InvalidTensors(f"{tensor.name}: {end - start} bytes for {dtype}{list(shape)}")


def _stored_floats(data: memoryview, header: Header, template: Template) -> Floats | None:
    """The floats where they lie: little-endian float32 in canonical order, aligned; else None."""
    if sys.byteorder != "little":
        return None
    for tensor, where in template.slices():
        dtype, _, start, _ = header.entries[tensor.name]
        if tensor.kind != "integer" and (dtype, start) != ("F32", where.start * 4):
            return None
    floats: Floats = np.frombuffer(data, np.float32, template.num_floats)
    return floats if floats.flags.aligned else None


def _gathered_floats(data: memoryview, header: Header, template: Template) -> Floats:
    floats = new_floats(template.num_floats)
    for tensor, where in template.slices():
        if tensor.kind == "integer":
            continue
        dtype, _, start, end = header.entries[tensor.name]
        stored, part = data[start:end], floats[where]
        match dtype:
            case "BF16":
                from_bf16(np.frombuffer(stored, "<u2"), part)
            case "I8":
                _, _, first, last = header.entries[SCALES]
                scales = np.frombuffer(data[first:last], "<f4").astype(np.float32, copy=False)
                from_int8(np.frombuffer(stored, np.int8), scales, part, first=where.start)
            case _:
                part[...] = np.frombuffer(stored, "<f4" if dtype == "F32" else "<f2")
    return floats


def _check_layout(header: Header, num_bytes: int) -> None:
    at = 0
    for start, end in sorted((start, end) for _, _, start, end in header.entries.values()):
        if start != at or end < start:
            raise InvalidTensors(f"safetensors: gap or overlap at byte {start} of the data")
        at = end
    if at != num_bytes:
        raise InvalidTensors(f"safetensors: {num_bytes} bytes of data, the header promises {at}")


def infer_template(header: Header, *, num_parameters: int) -> Template:
    """The template of version 0: its first `num_parameters` float tensors in file order train."""
    tensors: list[Tensor] = []
    for name, (dtype, shape, _, _) in sorted(header.entries.items(), key=lambda item: item[1][2:]):
        floats_before = sum(tensor.kind != "integer" for tensor in tensors)
        kind: Kind = "parameter" if floats_before < num_parameters else "buffer"
        tensors.append(Tensor(name, "integer" if dtype in INTEGER_DTYPES else kind, dtype, shape))
    return Template(tuple(tensors))


def _some(names: Iterable[str]) -> str:
    """A few names for an error text, never an unbounded list from outside."""
    names = sorted(names)
    shown = ", ".join(f"{name:.60}" for name in names[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
