"""Decoding the same bytes twice gives equal values: in one simulation they are decoded once.

A dozen processes read the same objects and messages. What is shared is immutable: frozen values,
and arrays that refuse to be written.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, wraps
from typing import Any
from unittest.mock import patch

from fedfa import ledger, manifests, messages, tensor_files
from fedfa.errors import FedfaError
from fedfa.memory import Bytes
from fedfa.spec import Submission
from fedfa.tensor_files import Header
from fedfa.tensors import FlatModel, Template
from fedfa_aggregator import inspection
from fedfa_scheduler import bucket
from tests.simulation import checker

REMEMBERED = 512  # of each kind; a schedule has fewer objects and forgets messages soon


def once(decode: Callable[..., Any]) -> Callable[..., Any]:
    """Remembered by all arguments but `key`, which only error texts name."""

    @lru_cache(REMEMBERED)
    def remembered(*arguments: Any, **named: Any) -> Any:
        value = decode(*arguments, **named)
        if isinstance(value, FlatModel):
            value.floats.flags.writeable = value.integers.flags.writeable = False
        return value

    @wraps(decode)
    def decoded(*arguments: Any, key: str = "", **named: Any) -> Any:
        try:
            return remembered(*arguments, **named)
        except FedfaError:
            if not key:
                raise
        return decode(*arguments, key=key, **named)

    return decoded


_manifest, _message = once(manifests.decode), once(messages.decode)
_header, _vector = once(tensor_files.read_header), once(tensor_files.decode)
_submitted = once(Submission.model_validate_json)


def _data(body: Bytes, header: Header, template: Template) -> FlatModel:
    found: FlatModel = _vector(body, template, max_header_bytes=header.data_start)
    return found


_REPLACED: tuple[tuple[Any, str, Any], ...] = (
    (manifests, "decode", _manifest),
    (messages, "decode", _message),
    (Submission, "model_validate_json", _submitted),
    (ledger, "decode", _vector),
    (inspection, "decode_data", _data),
    (ledger, "read_header", _header),
    (inspection, "read_header", _header),
    (bucket, "read_header", _header),
    (checker, "read_header", _header),
)


@contextmanager
def memo() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, decoded in _REPLACED:
            stack.enter_context(patch.object(module, name, decoded))
        yield
