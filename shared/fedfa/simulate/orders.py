"""What a worker process is asked to do, and what it answers: its pipe carries these values."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from fedfa.events import Update
from fedfa.log import ModelRef

Answer = TypeVar("Answer")


class Order(Generic[Answer]):
    """Something to do, whose answer is an Answer."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The answer where the numbers that came out are not all finite."""

    reason: str


Trained = Update | NotFinite
Evaluated = dict[str, float] | NotFinite


@dataclass(frozen=True, slots=True)
class Check(Order[None]):
    """Raise what would keep a federation from its birth."""


@dataclass(frozen=True, slots=True)
class Initialise(Order[ModelRef]):
    """Make version 0, as a trainer does."""


@dataclass(frozen=True, slots=True)
class Measure(Order[float]):
    """Time one optimizer step, in seconds."""


@dataclass(frozen=True, slots=True)
class Train(Order[Trained]):
    """Train a client from `base`, and write its update.

    update: what it says of itself. Its key, digest, num_examples, num_steps and loss do not
    matter: they come of the training.
    """

    base: ModelRef
    update: Update


@dataclass(frozen=True, slots=True)
class Evaluate(Order[Evaluated]):
    """Measure a model. with_gradient: squared_gradient_norm too, of the whole objective."""

    model: ModelRef
    with_gradient: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to any order whose task or data raised."""

    error: str
