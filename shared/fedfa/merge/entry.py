"""What a rule sees of an update: the numbers, never the vector."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A window entry: one file, made of one client's update (or, one day, of a block's sum).

    staleness, in versions, and cosine are fixed when the update arrives: a rule that looks at an
    entry again later gives it the same weight. cosine: of the way that the model went since
    base_version with the update's own; 1 under rules that do not ask for it.
    """

    key: str
    digest: str
    base_version: int
    staleness: int
    num_examples: int
    num_steps: int
    clients: tuple[str, ...]
    cosine: float = 1.0
