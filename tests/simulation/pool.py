"""Many schedules on every core, in fresh processes; only what is broken comes back."""

import gc
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.schedule import Mutation, Outcome, run_schedule

CHUNK = 100


def broken(seeds: Iterable[int]) -> Iterator[Outcome]:
    """The outcomes with violations. Ends early after a few."""
    seeds = list(seeds)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for outcomes in pool.map(run_chunk, chunks):
            yield from outcomes


def run_chunk(seeds: list[int]) -> list[Outcome]:
    gc.disable()  # greenlets make many cycles, and one collection for each chunk is cheaper
    outcomes = [run_schedule(seed) for seed in seeds]
    gc.collect()
    return [outcome for outcome in outcomes if outcome.violations]


def caught_after(mutation: Mutation, *, at_most: int) -> Outcome | None:
    """The first schedule in which the mutation breaks a rule."""
    outcomes = map(partial(run_schedule, mutation=mutation), range(at_most))
    return next((outcome for outcome in outcomes if outcome.violations), None)
