"""Every object key, one function each. A federation's id is its prefix in the bucket."""

DIGEST_DIGITS = 16  # hex digits of the content digest that a key carries


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


def evaluation(federation: str, version: int) -> str:
    return f"{federation}/evals/{version}.json"


def digest_matches(key: str, digest: str) -> bool:
    """Whether a models/ or updates/ key ends with the first digits of this content digest."""
    return key.endswith(f"-{digest[:DIGEST_DIGITS]}.safetensors")
