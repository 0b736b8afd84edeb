"""Follows one federation's log in bounded memory, whatever the number of its versions.

First the newest manifest, then an evenly spaced sample of the log and its newest stretch, which is
enough to draw by; then, as there is time, all the manifests between. New ones are read as they
come. What has been read is evenly spread at any time, and in the end it is everything.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from math import gcd, sqrt

from fedfa import manifests
from fedfa.dashboard.bounded import Thinned, Totals
from fedfa.dashboard.evaluations import Evaluations
from fedfa.dashboard.rows import JsonRow, Openings, as_json, rows_alone
from fedfa.events import Merged
from fedfa.log import Birth, Manifest
from fedfa.store import ObjectStore
from fedfa.submission import read_submission

POINTS = 400  # of a curve
SAMPLE = 400  # manifests
NEWEST = 250  # manifests that are read one after the other at the first look
ROWS = 600
CHUNK = 32  # manifests between two looks at how far it is
MOST_BEHIND = 5_000  # manifests; whoever is further behind begins anew


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a federation stood at a manifest; `at` in unix seconds."""

    at: float
    version: int
    merged: int
    refused: int


class Follower:
    """Its public attributes are for reading; look(), read() and read_older() change them."""

    def __init__(self, store: ObjectStore, federation: str, *, readers: Executor) -> None:
        """Raises NotFound when there is no such federation."""
        self._store = store
        self._readers = readers
        self.federation = federation
        self._begin()

    def _begin(self) -> None:
        self.submission = read_submission(self._store, self.federation)
        self.birth: Birth | None = None
        self.pool_of: dict[str, str] = {}  # client -> pool
        self.born_at: float | None = None
        self.newest: Manifest | None = None  # known to exist; read up to `_next`
        self.marks: Thinned[Mark] = Thinned(POINTS)
        self.totals = Totals()
        self.rows: deque[JsonRow] = deque(maxlen=ROWS)
        self.openings = Openings(None)
        self.evaluations = Evaluations(
            self._store,
            self.federation,
            every_versions=self.submission.spec.evaluation.every_versions,
            most=POINTS,
            readers=self._readers,
        )
        self._sample: Iterator[int] = iter(())
        self._older: Iterator[int] = iter(())
        self._next = manifests.FIRST  # the number from which on the log is read one by one
        self.is_drawable = False  # whether the sample and the newest stretch were read

    def curve(self) -> list[Mark]:
        """The marks in order, the newest manifest's at last."""
        marks = self.marks.values()
        if self.newest is not None and (not marks or marks[-1].version < self.newest.state.version):
            marks.append(_mark(self.newest))
        return marks

    @property
    def coverage(self) -> float:
        """The fraction of the decisions that was read."""
        if self.newest is None or not self.newest.state.num_decisions:
            return 1.0
        return min(1.0, self.totals.decisions / self.newest.state.num_decisions)

    def look(self) -> bool:
        """Find the newest manifest and evaluations; whether anything is new."""
        known = self.newest.n if self.newest else manifests.FIRST
        found = manifests.newest(self._store, self.federation, known=known)
        if found is None:
            self._begin()  # nothing is known yet, or its folder was emptied
            return False
        newest = found.manifest
        is_another = newest.uid != self.submission.uid or newest.n < known
        if is_another or (self.newest is not None and newest.n > known + MOST_BEHIND):
            self._begin()
        is_new = self.newest is None or newest.n > self.newest.n
        if self.newest is None:
            self._open(newest)
        self.newest = newest
        has_evaluations = self.evaluations.refresh(newest.state.version)
        return is_new or has_evaluations

    def read(self) -> bool:
        """Read a chunk of what is new or was not sampled yet; False when there is none."""
        if self.newest is None:
            return False
        chunk = list(islice(self._sample, CHUNK))
        if chunk:
            self._add_alone(chunk)
            return True
        end = min(self._next + CHUNK, self.newest.n + 1)
        if self._next < end:
            self._add_next(range(self._next, end))
            self.is_drawable = end > self.newest.n
            return True
        self.is_drawable = True
        return False

    def read_older(self) -> bool:
        """Read a chunk of what lies between the sampled manifests; False when all was read."""
        chunk = list(islice(self._older, CHUNK))
        self._add_alone(chunk)
        return bool(chunk)

    def _open(self, newest: Manifest) -> None:
        first = manifests.read(self._store, self.federation, manifests.FIRST).manifest
        self.birth, self.born_at = first.birth, first.at
        if first.birth is not None:
            self.pool_of = {client.name: client.pool for client in first.birth.clients}
        end = newest.n + 1 - NEWEST
        if end > SAMPLE:
            spread = _spread(end)
            self._sample, self._older = iter(list(islice(spread, SAMPLE))), spread
            self._next = end
            before = manifests.read(self._store, self.federation, end - 1).manifest
            self.openings = Openings(before)

    def _add_next(self, numbers: range) -> None:
        for manifest in self._read(numbers):
            found = self.openings.add(manifest)
            self.rows += as_json(found, self.submission.created_at)
            self._count(manifest)
            self.totals.add([row for row, _ in found], has_new_model=_has_new_model(manifest))
            self._next = manifest.n + 1

    def _add_alone(self, numbers: Iterable[int]) -> None:
        for manifest in self._read(numbers):
            self._count(manifest)
            rows = rows_alone(self._store, manifest)
            self.totals.add(rows, has_new_model=_has_new_model(manifest))

    def _count(self, manifest: Manifest) -> None:
        self.marks.add(manifest.n, _mark(manifest))

    def _read(self, numbers: Iterable[int]) -> Iterator[Manifest]:
        read = manifests.read
        for committed in self._readers.map(
            lambda n: read(self._store, self.federation, n), numbers
        ):
            yield committed.manifest


def _mark(manifest: Manifest) -> Mark:
    state = manifest.state
    refused = state.num_rejected + state.num_abandoned
    return Mark(manifest.at, state.version, state.num_merged, refused)


def _spread(end: int) -> Iterator[int]:
    """Every number from 0 below `end` once, in an order whose beginnings are evenly spread too.

    By the golden ratio, which falls into step with no pattern that the log may have.
    """
    step = round(end * (sqrt(5) - 1) / 2)
    while gcd(step, end) != 1:
        step += 1
    at = 0
    for _ in range(end):
        yield at
        at = (at + step) % end


def _has_new_model(manifest: Manifest) -> bool:
    if manifest.n == manifests.FIRST:
        return manifest.model is not None
    events = [decision.event for decision in manifest.decisions]
    return any(isinstance(event, Merged) and event.step_norm is not None for event in events)
