"""The sections of a spec, but for its rule's: each field with its default, limits and meaning."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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


Compression = Literal["none", "bf16", "int8"]


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
        description="most that a job's training, a whole evaluation or the initialisation may "
        "compute, once the task is loaded; longer is a failure, and a trainer that still computes "
        "then ends; none waits for ever",
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


RetentionChoice = Annotated[KeepAll | KeepBounded, Field(discriminator="keep")]
