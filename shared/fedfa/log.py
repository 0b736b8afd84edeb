"""What a federation's folder records, as values: its log of manifests, and evaluations. PURE."""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from fedfa.events import Decision
from fedfa.federation import Client, State
from fedfa.tensors import Template


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Where a version's model lies, and the sha256 of its file."""

    version: int
    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Birth:
    """What manifest 0 fixes for ever: the clients, the template, the frozen weights' digest."""

    clients: tuple[Client, ...]
    template: Template
    frozen_digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Commit n of a federation.

    previous: digest of manifest n - 1 ("" for the first). writer: who committed it.
    at: unix seconds by the writer's clock; it informs and decides nothing.
    model: the newest version with an object; None only if the federation ended before its birth.
    birth: in manifest 0 only.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    federation: str
    uid: str
    n: int
    previous: str
    writer: str
    at: float
    decisions: tuple[Decision, ...]
    model: ModelRef | None
    state: State
    birth: Birth | None = None
    schema: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Committed:
    """A manifest as it lies in the bucket, with the digest of its bytes."""

    manifest: Manifest
    digest: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """evals/{version}.json: the metrics of a version, or why there are none."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    version: int
    at: float
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
