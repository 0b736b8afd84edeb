"""The rules that a spec may choose, with their parameters; `fedfa.merge` has what they do."""

from typing import Annotated, Literal

from pydantic import Field

from fedfa.sections import Float, Int, Section


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
