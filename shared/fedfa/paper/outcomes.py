"""What the logs of runs say: accuracy over time and rounds, and when a target was reached."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfa.history import History, HistoryReader
from fedfa.paper.plan import Run
from fedfa.paper.profiles import TARGET_SHARE
from fedfa.store import DirectoryStore

METRIC = "accuracy"


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluated version: virtual seconds, communication rounds of Mc updates, and accuracy."""

    seconds: float
    rounds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """reason: why the run ended before its budget, "" if it did not."""

    run: Run
    points: tuple[Point, ...]
    history: History
    reason: str

    @property
    def best(self) -> float:
        return max((point.accuracy for point in self.points), default=0.0)

    @property
    def mean(self) -> float:
        """Over the evaluations, those that an early end took away counted as failures."""
        expected = self.run.updates // self.run.benchmark.evaluated_every
        return sum(point.accuracy for point in self.points[1:]) / max(expected, 1)

    def reached(self, target: float) -> Point | None:
        return next((point for point in self.points if point.accuracy >= target), None)


def read(folder: Path, run: Run) -> Outcome:
    history = HistoryReader(DirectoryStore(folder), run.id).refresh()
    merged_by_version: dict[int, int] = {0: 0}
    for number, row in enumerate(history.merged, 1):
        merged_by_version.setdefault(row.version, number)
    points = tuple(
        Point(
            evaluation.at - history.submission.created_at,
            merged_by_version[evaluation.version] / run.concurrency,
            evaluation.metrics[METRIC],
        )
        for evaluation in history.evaluations
        if METRIC in evaluation.metrics
    )
    state = history.state
    reason = state.reason if state is not None and state.status == "failed" else ""
    return Outcome(run, points, history, reason)


def target(fedavg: Sequence[Outcome]) -> float:
    """A share of what FedAvg reaches within the budget, in the mean over its seeds."""
    best = statistics.fmean(outcome.best for outcome in fedavg)
    return math.floor(TARGET_SHARE * best * 1000) / 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the runs that have a value: mean, standard deviation (0 for one), how many of how many."""

    mean: float | None
    deviation: float
    having: int
    of: int


def spread(values: Sequence[float | None]) -> Spread:
    there = [value for value in values if value is not None]
    if not there:
        return Spread(None, 0.0, 0, len(values))
    deviation = statistics.stdev(there) if len(there) > 1 else 0.0
    return Spread(statistics.fmean(there), deviation, len(there), len(values))
