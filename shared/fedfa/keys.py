"""Every object key, one function each. PURE. A federation's id is its prefix in the bucket."""

import re
from dataclasses import dataclass

DIGEST_DIGITS = 16  # hex digits of the content digest that a key carries

_NUMBER = r"(0|[1-9][0-9]*)"
_MODEL = re.compile(rf"models/{_NUMBER}-[0-9a-f]{{16}}\.safetensors")
_UPDATE = re.compile(rf"updates/{_NUMBER}-{_NUMBER}/[^/]+\.safetensors")
_EVALUATION = re.compile(rf"evals/{_NUMBER}\.json")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One entry of a listing; `modified` is in unix seconds, by the store's clock."""

    key: str
    size_bytes: int
    modified: float


def spec(federation: str) -> str:
    return f"{federation}/spec.json"


def head(federation: str) -> str:
    return f"{federation}/HEAD.json"


def stop(federation: str) -> str:
    return f"{federation}/stop.json"


def manifest(federation: str, n: int) -> str:
    return f"{federation}/manifests/{n:020d}.json"


def model(federation: str, version: int, digest: str) -> str:
    return f"{federation}/models/{version}-{digest[:DIGEST_DIGITS]}.safetensors"


def updates_of(federation: str, slot: int, generation: int) -> str:
    """The prefix under which every finished attempt of one job lies."""
    return f"{federation}/updates/{slot}-{generation}/"


def update(federation: str, slot: int, generation: int, attempt: str, digest: str) -> str:
    prefix = updates_of(federation, slot, generation)
    return f"{prefix}{attempt}-{digest[:DIGEST_DIGITS]}.safetensors"


def models(federation: str) -> str:
    """The prefix of every model."""
    return f"{federation}/models/"


def updates(federation: str) -> str:
    """The prefix of every update."""
    return f"{federation}/updates/"


def version_of(federation: str, key: str) -> int | None:
    """The version in the key of one of this federation's models; None for any other key."""
    match = _MODEL.fullmatch(_inside(federation, key))
    return int(match[1]) if match else None


def job_of(federation: str, key: str) -> tuple[int, int] | None:
    """Slot and generation in the key of one of this federation's updates; None for any other."""
    match = _UPDATE.fullmatch(_inside(federation, key))
    return (int(match[1]), int(match[2])) if match else None


def evaluation(federation: str, version: int) -> str:
    return f"{evaluations(federation)}{version}.json"


def evaluations(federation: str) -> str:
    """The prefix of every evaluation."""
    return f"{federation}/evals/"


def evaluated_version(federation: str, key: str) -> int | None:
    """The version in the key of one of this federation's evaluations; None for any other key."""
    match = _EVALUATION.fullmatch(_inside(federation, key))
    return int(match[1]) if match else None


def simulation(federation: str) -> str:
    return f"{federation}/simulation.json"


def is_update(key: str, federation: str, slot: int, generation: int, attempt: str) -> bool:
    """Whether a key is the whole and exact name of a file of this attempt at this job."""
    name = key.removeprefix(f"{updates_of(federation, slot, generation)}{attempt}-")
    return name != key and re.fullmatch(r"[0-9a-f]{16}\.safetensors", name) is not None


def digest_matches(key: str, digest: str) -> bool:
    """Whether a models/ or updates/ key ends with the first digits of this content digest."""
    return key.endswith(f"-{digest[:DIGEST_DIGITS]}.safetensors")


def _inside(federation: str, key: str) -> str:
    prefix = f"{federation}/"
    return key.removeprefix(prefix) if key.startswith(prefix) else ""
