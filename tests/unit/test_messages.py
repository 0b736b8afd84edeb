"""The wire: everything valid comes back equal, anything else is one clear InvalidMessage."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.errors import InvalidMessage
from fedfa.messages import (
    MAX_MESSAGE_BYTES,
    AbandonJob,
    AnyMessage,
    JobFailed,
    ModelReady,
    RollCall,
    StopFederation,
    TrainJob,
    UpdateReady,
    decode,
    encode,
)
from tests.unit.builders import ATTEMPT, DIGEST, UID

UPDATE: dict[str, Any] = {
    "federation": "fed",
    "uid": UID,
    "slot": 1,
    "generation": 2,
    "attempt": ATTEMPT,
    "key": "fed/updates/1-2/a-b.safetensors",
    "digest": DIGEST,
    "client": "client-1",
    "base_version": 3,
    "num_examples": 4,
    "num_steps": 5,
    "loss": 0.5,
    "trainer": "trainer-1",
    "started_at": 1.0,
    "train_seconds": 2.0,
    "delay_seconds": 0.0,
}
MESSAGES: list[AnyMessage] = [
    UpdateReady(**UPDATE),
    UpdateReady(**(UPDATE | {"digest": None})),
    RollCall(),
    ModelReady(
        federation="fed", uid=UID, n=1, version=2, status="running", closed=((0, 1), (2, 3))
    ),
    StopFederation(federation="fed", uid=UID, status="finished", reason="done"),
    AbandonJob(federation="fed", uid=UID, slot=0, generation=1, attempt=ATTEMPT, reason="x"),
    TrainJob(
        federation="fed",
        uid=UID,
        slot=0,
        generation=1,
        attempt=ATTEMPT,
        client="client-1",
        opened_at=0,
        delay_seconds=0.5,
        lease_ttl_seconds=60.0,
    ),
    JobFailed(
        federation="fed",
        uid=UID,
        task="evaluate",
        version=3,
        attempt=ATTEMPT,
        trainer="t",
        error="x",
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_comes_back_equal_and_small(message: AnyMessage) -> None:
    body = encode(message)
    assert decode(body) == message
    assert len(body) < 1000


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema": 2}, "schema"),
        ({"loss": float("nan")}, "loss"),
        ({"slot": -1}, "slot"),
        ({"slot": "1"}, "slot"),
        ({"uid": "no"}, "uid"),
        ({"federation": "../other"}, "federation"),
        ({"surprise": 1}, "surprise"),
        ({"kind": "Nonsense"}, "Nonsense"),
        ({"num_examples": 0}, "num_examples"),
    ],
)
def test_a_wrong_field_is_refused_and_named(changes: dict[str, Any], complaint: str) -> None:
    fields = msgpack.unpackb(encode(UpdateReady(**UPDATE))) | changes
    with pytest.raises(InvalidMessage, match=complaint):
        decode(msgpack.packb(fields))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2}),
        msgpack.packb(msgpack.ExtType(1, b"x")),
        msgpack.packb({"kind": msgpack.Timestamp(1)}),
        b"\x91" * 5000,
        b"\x91" * 1000 + b"\xc0",  # msgpack's own limit is deeper than Python can print
        b"\x82\xa4kind\xabUpdateReady\xa4slot" + b"\x91" * 1000 + b"\xc0",
        b"x" * (MAX_MESSAGE_BYTES + 1),
    ],
)
def test_what_is_not_a_message_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(body)


@given(st.binary(max_size=300))
def test_random_bytes_are_never_a_message_and_never_crash(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(body)


@given(at=st.integers(0, len(encode(UpdateReady(**UPDATE))) - 1), byte=st.integers(0, 255))
def test_a_flipped_byte_gives_a_valid_message_or_invalid_message(at: int, byte: int) -> None:
    body = bytearray(encode(UpdateReady(**UPDATE)))
    body[at] = byte
    try:
        decode(bytes(body))
    except InvalidMessage:
        return


@pytest.mark.parametrize(
    "numbers",
    [
        {"task": "train"},
        {"task": "train", "slot": 1},
        {"task": "init", "slot": 1},
        {"task": "evaluate", "version": 1, "slot": 1},
    ],
)
def test_a_fact_must_name_exactly_its_work(numbers: dict[str, Any]) -> None:
    fields = {"federation": "fed", "uid": UID, "attempt": ATTEMPT, "trainer": "t"}
    body = msgpack.packb({"schema": 1, "kind": "JobStarted", **fields, **numbers})
    with pytest.raises(InvalidMessage, match=rf"task: '{numbers['task']}' goes with .*, not with"):
        decode(body)


def test_an_oversized_message_is_refused_when_it_is_written() -> None:
    closed = tuple((at, at) for at in range(40_000))
    big = ModelReady(federation="fed", uid=UID, n=1, version=1, status="running", closed=closed)
    with pytest.raises(InvalidMessage, match="at most"):
        encode(big)
