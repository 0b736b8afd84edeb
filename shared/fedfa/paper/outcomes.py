"""What the logs of runs say: accuracy over time and rounds, and when a target was reached."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfa.history import HistoryReader
from fedfa.paper.plan import Run
from fedfa.paper.profiles import TARGET_SHARE
from fedfa.rows import History
from fedfa.store import DirectoryStore

METRIC = "accuracy"


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluated version: virtual seconds, communication rounds of Mc updates, and accuracy.

    is_due: by the cadence, or as the last version of a whole budget.
    """

    seconds: float
    rounds: float
    accuracy: float
    is_due: bool = True


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
        """Over the evaluations due after version 0; one that an early end took away counts 0."""
        num_due = math.ceil(self.run.updates / self.run.evaluated_every)
        measured = (one.accuracy for one in self.points if one.rounds > 0 and one.is_due)
        return math.fsum(measured) / num_due

    def reached(self, target: float) -> Point | None:
        return next((point for point in self.points if point.accuracy >= target), None)

    def has_diverged(self, target: float) -> bool:
        """Ended early, or nearer to the accuracy of version 0 than to the target."""
        first, last = self.points[0].accuracy, self.points[-1].accuracy
        return bool(self.reason) or last < (first + target) / 2


def read(folder: Path, run: Run) -> Outcome:
    history = HistoryReader(DirectoryStore(folder), run.id).refresh()
    merged_by_version: dict[int, int] = {0: 0}
    for number, row in enumerate(history.merged, 1):
        merged_by_version.setdefault(row.version, number)
    state = history.state
    reason = state.reason if state is not None and state.status == "failed" else ""
    points = tuple(
        Point(
            evaluation.at - history.submission.created_at,
            merged_by_version[evaluation.version] / run.concurrency,
            evaluation.metrics[METRIC],
            evaluation.version % run.every_versions == 0 or not reason,
        )
        for evaluation in history.evaluations
        if METRIC in evaluation.metrics
    )
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


def speed_up(theirs: Sequence[float | None], ours: Sequence[float | None]) -> float | None:
    """How many times sooner ours are than theirs, seed by seed: the median, the lower one of two.

    None in either: not reached, infinitely late. So 0 is "ours never", inf "theirs never". A seed
    in which neither got there says nothing; without any other, None.
    """
    ratios = [
        _ratio(math.inf if their is None else their, math.inf if our is None else our)
        for their, our in zip(theirs, ours, strict=True)
        if their is not None or our is not None
    ]
    return statistics.median_low(ratios) if ratios else None


def _ratio(theirs: float, ours: float) -> float:
    if theirs == ours:
        return 1.0  # at version 0 both times are 0
    return theirs / ours if ours else math.inf
