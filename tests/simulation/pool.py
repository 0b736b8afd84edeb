"""Many schedules in one process; only what is broken comes back."""

import gc
from collections.abc import Iterable, Iterator
from functools import partial

from tests.simulation.schedule import Mutation, Outcome, run_schedule

COLLECT_EVERY = 50  # greenlets make many cycles


def broken(seeds: Iterable[int]) -> Iterator[Outcome]:
    """The outcomes with violations."""
    gc.collect()
    gc.freeze()  # what is there already will not be garbage
    gc.disable()
    try:
        for count, seed in enumerate(seeds, start=1):
            outcome = run_schedule(seed)
            if outcome.violations:
                yield outcome
            if count % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()


def caught_after(mutation: Mutation, *, at_most: int) -> Outcome | None:
    """The first schedule in which the mutation breaks a rule."""
    outcomes = map(partial(run_schedule, mutation=mutation), range(at_most))
    return next((outcome for outcome in outcomes if outcome.violations), None)
