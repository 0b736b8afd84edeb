"""The spec of a federation: one YAML file, one model, one JSON schema (`fedfa schema`).

A spec is validated once, where it enters, and trusted from then on. Errors name the field, the
value and what is allowed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fedfa.complaints import describe
from fedfa.errors import InvalidSpec
from fedfa.messages import FederationId, PoolName, Uid

Scalar = str | int | float | bool | None


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number; YAML reads yes, no, on and off as true and false")
    return value


Int = Annotated[int, BeforeValidator(_no_truth_value)]
Float = Annotated[float, BeforeValidator(_no_truth_value)]
# What may be left out has its bound on the inner type, or its JSON schema says `ge`: no word of it.
AtLeastOne = Annotated[int, Field(ge=1), BeforeValidator(_no_truth_value)]
NotNegative = Annotated[int, Field(ge=0), BeforeValidator(_no_truth_value)]
Seconds = Annotated[float, Field(gt=0), BeforeValidator(_no_truth_value)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TaskChoice(Section):
    """Which task to train, and its own options."""

    name: str = Field(
        default="digits",
        min_length=1,
        max_length=200,
        description="an installed task (`fedfa.tasks` entry point) or module:Class",
    )
    options: dict[str, Scalar] = Field(default={}, description="passed to the task as they are")


class Constant(Section):
    """Every update counts alike."""

    kind: Literal["constant"] = "constant"


class Polynomial(Section):
    """An update counts (1 + staleness)^-exponent."""

    kind: Literal["polynomial"] = "polynomial"
    exponent: Float = Field(default=0.5, gt=0, description="0.5 gives 1 / sqrt(1 + staleness)")


class Hinge(Section):
    """An update counts 1 up to a staleness of b, then 1 / (a (staleness - b) + 1)."""

    kind: Literal["hinge"] = "hinge"
    a: Float = Field(default=10.0, gt=0, description="how fast an update loses weight beyond b")
    b: Int = Field(default=4, ge=0, description="up to this staleness, in versions, it counts 1")


StalenessChoice = Annotated[Constant | Polynomial | Hinge, Field(discriminator="kind")]

STALENESS = "what an update from an old version counts"
FEDNOVA = "weigh deltas by direction, whatever number of local steps made them (FedNova)"
Refill = Literal["at_once", "at_flush"]
Compression = Literal["none", "bf16", "int8"]


class FedfaDelta(Section):
    """FedFa-Delta: w_t = w_{t-1} + (server_lr / K) * mean of the last K deltas."""

    name: Literal["fedfa-delta"] = "fedfa-delta"
    window: Int = Field(default=5, ge=1, description="the paper's K, in updates")
    server_lr: Float = Field(
        default=1.0,
        gt=0,
        description="the paper's eta_g, with FedBuff's meaning; K gives the paper's literal step",
    )
    staleness: StalenessChoice = Field(default=Constant(), description=STALENESS)
    fednova: bool = Field(default=False, description=FEDNOVA)


class FedfaParam(Section):
    """FedFa-Param: w_t = mean of the last K client models."""

    name: Literal["fedfa-param"] = "fedfa-param"
    window: Int = Field(default=5, ge=1, description="the paper's K, in updates")


class FedBuff(Section):
    """FedBuff: every K updates, w_t = w_{t-1} + server_lr * mean of the K discounted deltas."""

    name: Literal["fedbuff"] = "fedbuff"
    window: Int = Field(default=5, ge=1, description="K, the updates that the buffer takes")
    server_lr: Float = Field(default=1.0, gt=0, description="eta_g")
    refill: Refill = Field(
        default="at_once",
        description="a slot opens again at once, or with the others when the buffer is merged",
    )
    staleness: StalenessChoice = Field(default=Polynomial(), description=STALENESS)
    fednova: bool = Field(default=False, description=FEDNOVA)


class FedAvg(Section):
    """FedAvg: rounds of Mc clients; w_t = mean of their models, weighted by examples."""

    name: Literal["fedavg"] = "fedavg"
    fednova: bool = Field(default=False, description=FEDNOVA)


class FedAsync(Section):
    """FedAsync: w_t = (1 - a) w_{t-1} + a w_i at every update, a = alpha * s(staleness)."""

    name: Literal["fedasync"] = "fedasync"
    alpha: Float = Field(default=0.6, gt=0, le=1, description="the weight of an update not stale")
    staleness: StalenessChoice = Field(default=Polynomial(), description=STALENESS)


class Port(Section):
    """Port: every K updates a mean of deltas, weighted by examples, direction and staleness."""

    name: Literal["port"] = "port"
    window: Int = Field(default=5, ge=1, description="K, the updates that the buffer takes")
    refill: Refill = Field(
        default="at_flush",
        description="a slot opens again at once, or with the others when the buffer is merged",
    )
    similarity_weight: Float = Field(
        default=1.0, ge=0, description="of (1 + cosine with the way the model went since) / 2"
    )
    staleness_weight: Float = Field(default=1.0, gt=0, description="of b / (staleness + b)")
    staleness_scale: Float = Field(
        default=10.0, gt=0, description="b: the staleness, in versions, that halves the latter"
    )
    max_staleness: Int = Field(
        default=20, ge=0, description="in versions; an update from an older one is rejected"
    )


RuleChoice = Annotated[
    FedfaDelta | FedfaParam | FedBuff | FedAvg | FedAsync | Port, Field(discriminator="name")
]


class Iid(Section):
    """Every client gets an equal share of a shuffled data set."""

    kind: Literal["iid"] = "iid"


class Dirichlet(Section):
    """Each class is dealt out by shares drawn from Dirichlet(alpha): small alpha, much skew."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Float = Field(gt=0, description="concentration; 0.1 is very skewed, 100 nearly IID")
    min_examples: Int = Field(default=1, ge=1, description="no client gets fewer examples")


class Natural(Section):
    """The task's data already says which client owns what."""

    kind: Literal["natural"] = "natural"


PartitionChoice = Annotated[Iid | Dirichlet | Natural, Field(discriminator="kind")]


class Sgd(Section):
    """torch.optim.SGD, new for each job."""

    name: Literal["sgd"] = "sgd"
    learning_rate: Float = Field(default=0.01, gt=0, description="the clients' (eta_l)")
    momentum: Float = Field(default=0.0, ge=0, lt=1, description="within one job")
    weight_decay: Float = Field(default=0.0, ge=0, description="L2 penalty, towards zero")


class AdamW(Section):
    """torch.optim.AdamW, new for each job."""

    name: Literal["adamw"] = "adamw"
    learning_rate: Float = Field(default=0.001, gt=0, description="the clients' (eta_l)")
    weight_decay: Float = Field(default=0.01, ge=0, description="decoupled, towards zero")


OptimizerChoice = Annotated[Sgd | AdamW, Field(discriminator="name")]


class LocalTraining(Section):
    """What a client does with a job: the paper's Algorithm 2."""

    epochs: AtLeastOne | None = Field(default=None, description="passes over the shard")
    steps: AtLeastOne | None = Field(default=None, description="mini-batches; instead of epochs")
    batch_size: Int = Field(default=32, ge=1, description="examples in a mini-batch")
    max_examples: AtLeastOne | None = Field(
        default=None, description="use at most this many of a client's examples in one job"
    )
    optimizer: OptimizerChoice = Field(default=Sgd(), description="of the clients")
    proximal: Float = Field(
        default=0.0,
        ge=0,
        description="FedProx's mu: adds mu/2 * ||w - w_base||^2 to the loss of each batch",
    )

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> "LocalTraining":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self

    @model_validator(mode="after")
    def _proximal_only_pulls(self) -> "LocalTraining":
        rate = self.optimizer.learning_rate
        if isinstance(self.optimizer, Sgd) and self.proximal * rate >= 1:
            raise ValueError(
                f"proximal: {self.proximal:g} times the learning rate {rate:g} is 1 or more, so "
                f"that a step pulls beyond its base; give less than {1 / rate:g}"
            )
        return self


class Delay(Section):
    """A simulated delay between training and upload, drawn once per client (paper, section 5.2)."""

    distribution: Literal["none", "pareto", "zipf", "exponential", "uniform"] = Field(
        default="none", description="what each client's delay is drawn from, by the seed"
    )
    shape: Float = Field(
        default=1.5,
        ge=0.1,
        le=100,
        description="tail exponent of pareto and zipf (at least 1.1); the smaller, the longer",
    )
    unit_seconds: Float = Field(
        default=1.0,
        ge=0,
        le=86_400,
        description="multiplies the draw; pareto and zipf are at least 1 unit",
    )

    @model_validator(mode="after")
    def _zipf_has_a_sum(self) -> "Delay":
        if self.distribution == "zipf" and self.shape < 1.1:
            raise ValueError(
                f"shape: {self.shape:g} is no zipf exponent (its probabilities have no sum at 1 "
                "or below); give at least 1.1"
            )
        return self


class Evaluation(Section):
    every_versions: Int = Field(default=10, ge=1, description="evaluate each so many versions")


class Target(Section):
    """Stop once an evaluated metric is at least this."""

    metric: str = Field(default="accuracy", description="a name that the task's evaluation gives")
    value: Float = Field(description="reached at this value or above")


class Stop(Section):
    """When to end; whichever comes first. Without any, `fedfa stop` ends it."""

    target: Target | None = Field(default=None, description="an evaluated metric's value")
    updates: AtLeastOne | None = Field(default=None, description="merged updates")
    versions: AtLeastOne | None = Field(default=None, description="global models after the first")
    wall_seconds: Seconds | None = Field(default=None, description="since submission")


class Limits(Section):
    """What a federation tolerates before it acts."""

    max_attempts: Int = Field(
        default=3, ge=1, description="failures of one job before it is abandoned"
    )
    job_seconds: Seconds | None = Field(
        default=None,
        description="most that a job's training or an evaluation may compute; longer is a failure, "
        "and a trainer that still computes then ends; none waits for ever",
    )
    set_aside_after: Int = Field(
        default=3, ge=1, description="rejections in a row before a client is set aside"
    )
    set_aside_decisions: Int = Field(
        default=100, ge=1, description="for how many decisions a client is set aside"
    )
    max_consecutive_rejections: Int = Field(
        default=50, ge=1, description="rejections in a row that end the federation as failed"
    )
    update_norm_factor: Float = Field(
        default=100.0, gt=1, description="reject an update this many times above the usual norm"
    )
    step_norm_factor: Float = Field(
        default=20.0, gt=1, description="end as diverged at a step this many times the usual one"
    )
    max_batch: Int = Field(
        default=16, ge=1, le=1000, description="most updates that share one commit"
    )


class KeepAll(Section):
    """Nothing is ever deleted: `fedfa verify` replays the whole run, from version 0."""

    keep: Literal["all"] = "all"


class KeepBounded(Section):
    """Models and updates that nothing can need any more are deleted; the log stays whole.

    Also kept, whatever these say: what the window holds, what is open, the best evaluated
    model, those that wait for their evaluation, and the final one.
    """

    keep: Literal["bounded"] = "bounded"
    keep_last: Int = Field(
        default=20, ge=1, description="newest models kept, with the updates that `verify` needs"
    )
    keep_every: NotNegative | None = Field(
        default=None,
        description="keep for ever the model of each version that this divides; 0: none",
    )
    min_age_seconds: Float = Field(
        default=3600.0,
        ge=0,
        description="nothing younger is deleted; longer than an evaluation or a download takes",
    )


Pattern = Annotated[str, Field(min_length=1, max_length=200)]  # as in "hospital-a-*"

RetentionChoice = Annotated[KeepAll | KeepBounded, Field(discriminator="keep")]


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


def parse(fields: Any, *, source: str = "spec") -> FederationSpec:
    """Validate a spec, or raise InvalidSpec with every wrong field, its value and the remedy."""
    try:
        return FederationSpec.model_validate(fields)
    except ValidationError as error:
        raise InvalidSpec(f"{source}: {describe(error, FederationSpec)}") from error
