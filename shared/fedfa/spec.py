"""The spec of a federation: one YAML file, one model, one JSON schema (`fedfa schema`).

A spec is validated once, where it enters, and trusted from then on. Errors name the field, the
value and what is allowed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from fedfa.complaints import describe
from fedfa.errors import InvalidSpec
from fedfa.messages import FederationId, PoolName, Uid
from fedfa.rule_choices import FedAsync, FedBuff, FedfaDelta, FedfaParam, Port, RuleChoice
from fedfa.sections import (
    AtLeastOne,
    Compression,
    Delay,
    Evaluation,
    Float,
    Iid,
    Int,
    KeepAll,
    Limits,
    LocalTraining,
    PartitionChoice,
    RetentionChoice,
    Section,
    Stop,
    TaskChoice,
)

Pattern = Annotated[str, Field(min_length=1, max_length=200)]  # as in "hospital-a-*"


class FederationSpec(Section):
    """One training run: what to train, by which rule, on whose data, and until when."""

    task: TaskChoice = Field(default=TaskChoice(), description="model, data and evaluation")
    rule: RuleChoice = Field(default=FedfaDelta(), description="how updates become the next model")
    concurrency: Int = Field(default=4, ge=1, description="the paper's Mc: jobs open at any time")
    clients: AtLeastOne | None = Field(
        default=None, description="clients to split the data into; natural splits need none"
    )
    partition: PartitionChoice = Field(default=Iid(), description="which client owns what")
    pools: dict[PoolName, Annotated[tuple[Pattern, ...], Field(min_length=1)]] = Field(
        default={},
        description="which clients' data lies with the trainers of which pool, as patterns of "
        "client names; all others are in `default`",
    )
    local: LocalTraining = Field(default=LocalTraining(epochs=1), description="a client's job")
    compression: Compression = Field(
        default="none",
        description="of updates' parameters on their way: bf16 halves the bytes, int8 (rounded at "
        "random, unbiased) quarters them; only under rules of deltas",
    )
    delay: Delay = Field(default=Delay(), description="simulated, before an upload")
    evaluation: Evaluation = Field(default=Evaluation(), description="which versions are measured")
    stop: Stop = Field(default=Stop(), description="when to end")
    limits: Limits = Field(default=Limits(), description="what is tolerated before it acts")
    retention: RetentionChoice = Field(default=KeepAll(), description="which objects stay")
    seed: Int = Field(
        default=0, ge=0, lt=2**32, description="of the split, the sampling and the training"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "FederationSpec":
        if self.partition.kind != "natural" and self.clients is None:
            raise ValueError(f"clients: needed to split the data ({self.partition.kind})")
        if self.clients is not None and self.concurrency > self.clients:
            raise ValueError(
                f"concurrency: {self.concurrency} jobs cannot be open with {self.clients} clients; "
                f"give at most {self.clients}"
            )
        rule, slots = self.rule, self.concurrency
        if self.compression != "none" and isinstance(rule, FedfaParam | FedAsync):
            raise ValueError(
                f"compression: {self.compression} would round whole models, which is what "
                f"{rule.name} sends, by more than a step; give none, or a rule of deltas"
            )
        if isinstance(rule, FedBuff | Port) and rule.refill == "at_flush" and rule.window > slots:
            raise ValueError(
                f"rule.window: {rule.window} updates never meet while {slots} slots (concurrency) "
                f"wait for them; give at most {slots}, or refill: at_once"
            )
        return self


class Submitted(Section):
    """spec.json: the spec as submitted, with the identity that every message must carry."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    federation: FederationId
    uid: Uid
    created_at: Float = Field(description="unix seconds")
    spec: FederationSpec


def load(path: Path, *, assignments: Sequence[str] = ()) -> FederationSpec:
    """Read a spec from a YAML file, or raise InvalidSpec.

    assignments change or add fields before the check, as in "rule.server_lr=2.0".
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidSpec(f"{path}: no such file") from None
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidSpec(f"{path}: cannot be read as YAML: {_line(error)}") from error
    return loads(text, source=str(path), assignments=assignments)


def loads(text: str, *, source: str = "spec", assignments: Sequence[str] = ()) -> FederationSpec:
    """`load` for YAML that is at hand; source names it in errors."""
    try:
        fields = _read(text)
    except yaml.YAMLError as error:
        raise InvalidSpec(f"{source}: cannot be read as YAML: {_line(error)}") from error
    if isinstance(fields, dict):  # otherwise the text is wrong, and no assignment mends it
        for assignment in assignments:
            _assign(fields, assignment)
    return parse(fields, source=source)


def parse(fields: Any, *, source: str = "spec") -> FederationSpec:
    """Validate a spec, or raise InvalidSpec with every wrong field, its value and the remedy."""
    try:
        return FederationSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidSpec(f"{source}: {describe(error, FederationSpec)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _assign(fields: Any, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    *sections, last = path.strip().split(".")
    for section in sections:
        if isinstance(fields, dict) and fields.get(section) is None:
            fields[section] = {}
        fields = fields[section] if isinstance(fields, dict) else None
    if not equals or not last or not isinstance(fields, dict):
        raise InvalidSpec(f"{assignment!r}: sets no field; write it as in rule.server_lr=2.0")
    try:
        fields[last] = _read(text)
    except yaml.YAMLError as error:
        raise InvalidSpec(
            f"{assignment!r}: its value cannot be read as YAML: {_line(error)}"
        ) from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
