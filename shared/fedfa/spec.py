"""The spec of a federation: one model, one JSON schema (`fedfa schema`). PURE.

A spec is validated once, where it enters, and trusted from then on. Errors name the field, the
value and what is allowed.
"""

from typing import Annotated, Any, Literal

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


class Submission(Section):
    """spec.json: the spec as submitted, with the identity that every message must carry."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    federation: FederationId
    uid: Uid
    created_at: Float = Field(description="unix seconds")
    spec: FederationSpec


def parse(fields: Any, *, source: str = "spec") -> FederationSpec:
    """Validate a spec, or raise InvalidSpec with every wrong field, its value and the remedy."""
    try:
        return FederationSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidSpec(f"{source}: {describe(error, FederationSpec)}") from error
