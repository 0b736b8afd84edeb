"""The wire: frozen messages <-> msgpack. A few hundred bytes each; tensors never travel here.

Decoding trusts nothing: a size cap, no extension types, bounded containers, then a strict
schema that refuses unknown fields and non-finite numbers. Anything else is InvalidMessage.
"""

from typing import Annotated, Any, Literal, NamedTuple

import msgpack
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedfa.errors import InvalidMessage

MAX_MESSAGE_BYTES = 64 * 1024
MAX_TEXT_CHARACTERS = 4000
MAX_DEPTH = 3  # of containers in containers: a message, its list of jobs, a job

ID_PATTERN = "[a-z0-9][a-z0-9-]{0,62}"
POOL_PATTERN = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

FederationId = Annotated[str, Field(pattern=f"^{ID_PATTERN}$")]
Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Attempt = Annotated[str, Field(pattern=r"^[0-9]{13}-[0-9a-f]{8}-[0-9]{6,}$")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
PoolName = Annotated[str, Field(pattern=f"^{POOL_PATTERN}$")]

Activity = Literal["train", "evaluate", "init"]


class Work(NamedTuple):
    """What a lease is held on. A number that does not belong to the activity is 0."""

    uid: str
    activity: Activity
    slot: int = 0
    generation: int = 0
    version: int = 0


class Message(BaseModel):
    """What every message says: its schema version, its federation and that federation's uid."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    federation: FederationId
    uid: Uid


class JobMessage(Message):
    """A message about one attempt at one job. Attempts compare as text, later ones greater."""

    slot: Count
    generation: Count
    attempt: Attempt

    @property
    def job(self) -> tuple[str, int, int]:
        """(federation uid, slot, generation): what identifies a job everywhere."""
        return (self.uid, self.slot, self.generation)


# -- commands -------------------------------------------------------------------------------


class StartFederation(Message):
    """submit -> scheduler: spec.json is there."""

    kind: Literal["StartFederation"] = "StartFederation"


class InitModel(Message):
    """scheduler -> any trainer: create version 0 and say which clients there are."""

    kind: Literal["InitModel"] = "InitModel"
    attempt: Attempt
    lease_ttl_seconds: Number


class TrainJob(JobMessage):
    """scheduler -> a trainer of the client's pool: train this client."""

    kind: Literal["TrainJob"] = "TrainJob"
    client: Name
    opened_at: Count  # the version when the slot was opened; never train from an older one
    delay_seconds: Number  # simulated; slept after training
    lease_ttl_seconds: Number  # without a heartbeat for this long the job is handed out again


class EvalJob(Message):
    """scheduler -> any trainer: evaluate this version."""

    kind: Literal["EvalJob"] = "EvalJob"
    attempt: Attempt
    version: Count
    key: Name
    digest: Digest
    lease_ttl_seconds: Number


class AbandonJob(JobMessage):
    """scheduler -> aggregator: this job failed too often; close it."""

    kind: Literal["AbandonJob"] = "AbandonJob"
    reason: Text


class StopFederation(Message):
    """scheduler -> aggregator: end the federation. final_version None means the newest one."""

    kind: Literal["StopFederation"] = "StopFederation"
    status: Literal["finished", "stopped", "failed"]
    reason: Text
    final_version: Count | None = None


class MarkPool(Message):
    """scheduler -> aggregator: a pool has no trainer any more, or has one again.

    change counts the pool's changes in this federation, from 1; any other count than the next is
    late.
    """

    kind: Literal["MarkPool"] = "MarkPool"
    pool: PoolName
    change: Annotated[int, Field(ge=1, lt=2**53)]
    outcome: Literal["pool_down", "pool_up"]


class RollCall(BaseModel):
    """scheduler -> every trainer: send a heartbeat for each job that you hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["RollCall"] = "RollCall"


Order = TrainJob | EvalJob | InitModel  # what a trainer is asked to do


# -- facts ----------------------------------------------------------------------------------


class InitReady(Message):
    """trainer -> aggregator: version 0 lies at `key`; its file describes template and clients."""

    kind: Literal["InitReady"] = "InitReady"
    attempt: Attempt
    key: Name
    digest: Digest


class JobFacts(Message):
    """What identifies a piece of a trainer's work. `task` is its activity.

    slot and generation are a training job's, version is an evaluation's; the others are None.
    pools: what the trainer serves, all of which it keeps alive, busy with one of them or not.
    """

    task: Activity
    slot: Count | None = None
    generation: Count | None = None
    version: Count | None = None
    attempt: Attempt
    trainer: Name
    pools: tuple[PoolName, ...] = ()

    @model_validator(mode="after")
    def _names_its_work(self) -> "JobFacts":
        expected = {"train": ["slot", "generation"], "evaluate": ["version"], "init": []}[self.task]
        numbers = {"slot": self.slot, "generation": self.generation, "version": self.version}
        given = [name for name, number in numbers.items() if number is not None]
        if given != expected:
            raise ValueError(f"task: {self.task!r} goes with {expected}, not with {given}")
        return self

    @property
    def work(self) -> Work:
        numbers = self.slot or 0, self.generation or 0, self.version or 0
        return Work(self.uid, self.task, *numbers)


class JobStarted(JobFacts):
    """trainer -> scheduler, and every trainer: I have it. The job's message is acked after."""

    kind: Literal["JobStarted"] = "JobStarted"


class JobHeartbeat(JobFacts):
    """trainer -> scheduler: I still hold it, training, sleeping or undelivered."""

    kind: Literal["JobHeartbeat"] = "JobHeartbeat"


class JobFailed(JobFacts):
    """trainer -> scheduler: it raised, or took too long; counts towards max_attempts."""

    kind: Literal["JobFailed"] = "JobFailed"
    error: Text


class JobReleased(JobFacts):
    """trainer -> scheduler: handed back, not counted. `missing` names a task it does not have."""

    kind: Literal["JobReleased"] = "JobReleased"
    reason: Text
    missing: Name | None = None


class EvalReady(Message):
    """trainer -> scheduler, a hint: evals/{version}.json is there."""

    kind: Literal["EvalReady"] = "EvalReady"
    version: Count


class UpdateReady(JobMessage):
    """trainer -> aggregator: a finished job. The file's metadata holds all fields but two.

    `key` names the object, `digest` is its sha256; an announcement made from the bucket alone
    has no digest, and the aggregator then relies on the key's digits and its own hash.
    Times are unix seconds by the trainer's clock; they inform, and decide nothing.
    """

    kind: Literal["UpdateReady"] = "UpdateReady"
    key: Name
    digest: Digest | None = None
    client: Name
    base_version: Count
    num_examples: Annotated[int, Field(gt=0, lt=2**53)]
    num_steps: Annotated[int, Field(gt=0, lt=2**53)]
    loss: Number
    trainer: Name
    started_at: Number
    train_seconds: Number
    delay_seconds: Number

    def metadata(self) -> dict[str, Any]:
        """What the update's file says about itself: all fields but key and digest."""
        return self.model_dump(by_alias=True, exclude={"key", "digest"})


class ModelReady(Message):
    """aggregator -> everyone, a hint: manifest n is committed and closed these jobs."""

    kind: Literal["ModelReady"] = "ModelReady"
    n: Count
    version: Count
    status: Literal["running", "finished", "stopped", "failed"]
    closed: tuple[tuple[int, int], ...]  # (slot, generation) of every job closed


AnyMessage = (
    StartFederation
    | InitModel
    | TrainJob
    | EvalJob
    | AbandonJob
    | StopFederation
    | MarkPool
    | RollCall
    | InitReady
    | JobStarted
    | JobHeartbeat
    | JobFailed
    | JobReleased
    | EvalReady
    | UpdateReady
    | ModelReady
)

_schema: TypeAdapter[AnyMessage] = TypeAdapter(Annotated[AnyMessage, Field(discriminator="kind")])


def encode(message: AnyMessage) -> bytes:
    """Pack one message. Raises InvalidMessage when it would exceed MAX_MESSAGE_BYTES."""
    body: bytes = msgpack.packb(message.model_dump(by_alias=True), use_bin_type=True)
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidMessage(f"{message.kind}: {len(body)} bytes, at most {MAX_MESSAGE_BYTES}")
    return body


def decode(body: bytes) -> AnyMessage:
    """Unpack one message, or raise InvalidMessage with the first thing that is wrong."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidMessage(f"message of {len(body)} bytes, at most {MAX_MESSAGE_BYTES}")
    try:
        fields = msgpack.unpackb(
            body,
            raw=False,
            use_list=False,  # strict pydantic takes tuples for tuples
            strict_map_key=True,
            max_ext_len=0,
            max_map_len=64,
            max_array_len=4096,
            ext_hook=_refuse_extension,
        )
    except (ValueError, msgpack.exceptions.UnpackException, UnicodeDecodeError) as error:
        raise InvalidMessage(f"not a msgpack message: {error}") from error
    if _is_deeper(fields, MAX_DEPTH):
        raise InvalidMessage("nested too deep")  # Python could neither check nor print it
    try:
        return _schema.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise InvalidMessage(f"{where}: {first['msg']}, got {first['input']!r:.200}") from error


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, tuple | dict):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(each, depth - 1) for each in inner)


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")
