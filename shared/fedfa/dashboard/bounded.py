"""Series and counts that stay small however long a federation runs."""

from bisect import insort
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedfa.rows import Row

T = TypeVar("T")

MOST_BINS = 64
MOST_TRAINERS = 200
MOST_NOTABLE = 200
NOTABLE = frozenset({"rejected", "abandoned", "pool_down", "pool_up", "stopped"})


class Thinned(Generic[T]):
    """At most `most` values of a numbered series: one for each stretch of `width` numbers.

    It is that of the lowest number, whatever the order in which they came. Stretches become twice
    as wide whenever they are too many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.width = 1
        self._values: dict[int, tuple[int, T]] = {}  # stretch -> number, value

    def missing(self, numbers: list[int]) -> list[int]:
        """The first number, of these ascending ones, in each stretch that has no value yet.

        Widens the stretches beforehand, so that no more of them are found than fit.
        """
        while len({number // self.width for number in numbers}) > self._most:
            self._widen()
        first: dict[int, int] = {}
        for number in numbers:
            first.setdefault(number // self.width, number)
        return [number for stretch, number in first.items() if stretch not in self._values]

    def add(self, number: int, value: T) -> None:
        self._put(number, value)
        while len(self._values) > self._most:
            self._widen()

    def values(self) -> list[T]:
        return [self._values[stretch][1] for stretch in sorted(self._values)]

    def _put(self, number: int, value: T) -> None:
        kept = self._values.get(number // self.width)
        if kept is None or number < kept[0]:
            self._values[number // self.width] = number, value

    def _widen(self) -> None:
        self.width *= 2
        before, self._values = self._values, {}
        for number, value in before.values():
            self._put(number, value)


class Histogram:
    """Counts of numbers from 0 in bins of one width, which doubles when they are too many."""

    def __init__(self) -> None:
        self.width = 1
        self.counts: list[int] = []
        self.total = self.sum = self.max = 0

    def add(self, value: int) -> None:
        while value // self.width >= MOST_BINS:
            pairs = [*self.counts, 0][: len(self.counts) + len(self.counts) % 2]
            self.counts = [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
            self.width *= 2
        bin_of = value // self.width
        self.counts += [0] * (bin_of + 1 - len(self.counts))
        self.counts[bin_of] += 1
        self.total += 1
        self.sum += value
        self.max = max(self.max, value)


@dataclass(slots=True)
class ClientTotals:
    """last_version: of its newest merged update."""

    merged: int = 0
    refused: int = 0
    last_version: int | None = None


@dataclass(slots=True)
class TrainerTotals:
    """Times in unix seconds. client: the one it trained for last."""

    first_started: float
    merged: int = 0
    refused: int = 0
    busy_seconds: float = 0.0
    last_at: float = 0.0
    client: str = ""


@dataclass(slots=True)
class Totals:
    """What the decisions that were read add up to, in any order."""

    decisions: int = 0
    manifests: int = 0
    models: int = 0  # manifests with a new model
    staleness: Histogram = field(default_factory=Histogram)
    clients: dict[str, ClientTotals] = field(default_factory=dict)
    trainers: dict[str, TrainerTotals] = field(default_factory=dict)
    notable: list[tuple[int, int, Row]] = field(default_factory=list)  # the newest, ascending

    def add(self, rows: list[Row], *, has_new_model: bool) -> None:
        """One manifest's decisions."""
        self.manifests += 1
        self.models += has_new_model
        for at, row in enumerate(rows):
            self.decisions += 1
            if row.client:
                self._count_client(row, row.client)
            if row.trainer is not None:
                self._count_trainer(row, row.trainer)
            if row.outcome == "merged" and row.staleness is not None:
                self.staleness.add(row.staleness)
            if row.outcome in NOTABLE:
                insort(self.notable, (row.n, at, row))
                del self.notable[:-MOST_NOTABLE]

    def _count_client(self, row: Row, name: str) -> None:
        client = self.clients.setdefault(name, ClientTotals())
        if row.outcome == "merged":
            client.merged += 1
            client.last_version = max(client.last_version or 0, row.version)
        else:
            client.refused += 1

    def _count_trainer(self, row: Row, name: str) -> None:
        started, train_seconds = row.started_at or row.at, row.train_seconds or 0.0
        trainer = self.trainers.setdefault(name, TrainerTotals(started))
        trainer.first_started = min(trainer.first_started, started)
        trainer.busy_seconds += train_seconds
        trainer.merged += row.outcome == "merged"
        trainer.refused += row.outcome != "merged"
        if row.at >= trainer.last_at:
            trainer.last_at, trainer.client = row.at, row.client or ""
        if len(self.trainers) > MOST_TRAINERS:  # pods come and go, each with a name of its own
            del self.trainers[min(self.trainers, key=lambda name: self.trainers[name].last_at)]
