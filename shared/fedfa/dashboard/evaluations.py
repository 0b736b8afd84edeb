"""A federation's metrics, read from the bucket incrementally, and never more than fit a screen."""

import time
from collections.abc import Callable
from concurrent.futures import Executor

from fedfa.dashboard.bounded import Thinned
from fedfa.history import evaluated_versions, evaluation_or_none
from fedfa.log import Evaluation
from fedfa.store import ObjectStore

LIST_ALL_SECONDS = 60.0  # evaluations may finish out of order; between, only the newest are listed
NEAR_EVALUATIONS = 20  # so many are in a block that is listed
NEWEST = 4  # read at the first look whatever the spacing


class Evaluations:
    """points: at most `most` of them, evenly spaced. latest: the newest that has metrics.

    failed: the newest that has an error.
    """

    def __init__(
        self,
        store: ObjectStore,
        federation: str,
        *,
        every_versions: int,
        most: int,
        readers: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._federation = federation
        self._readers = readers
        self._clock = clock
        self._points: Thinned[Evaluation] = Thinned(most)
        self._listed_at = float("-inf")
        self._newest = -1
        self._block = 10
        while self._block < NEAR_EVALUATIONS * every_versions:
            self._block *= 10
        self.latest: Evaluation | None = None
        self.failed: Evaluation | None = None

    def refresh(self, version: int) -> bool:
        """Read what is new while the federation is at this version; whether anything was."""
        listed = self._listed(version)
        if self._newest < 0 and len(listed) > NEWEST:
            self._newest = listed[-NEWEST - 1]
        newer = [each for each in listed if each > self._newest]
        wanted = dict.fromkeys([*self._points.missing(listed), *newer])
        found = self._readers.map(
            lambda each: evaluation_or_none(self._store, self._federation, each), wanted
        )
        for each in found:
            if each is not None:
                self._take(each)
        return bool(wanted)

    def values(self) -> list[Evaluation]:
        """By version: the points, and the newest one."""
        values = self._points.values()
        if self.latest and (not values or self.latest.version > values[-1].version):
            values.append(self.latest)
        return values

    def _take(self, evaluation: Evaluation) -> None:
        self._newest = max(self._newest, evaluation.version)
        self._points.add(evaluation.version, evaluation)
        if evaluation.error is not None:
            if self.failed is None or evaluation.version > self.failed.version:
                self.failed = evaluation
        elif self.latest is None or evaluation.version > self.latest.version:
            self.latest = evaluation

    def _listed(self, version: int) -> list[int]:
        """Versions with a result: all once in a while, else those near this one."""
        now, block = self._clock(), version // self._block
        if now - self._listed_at > LIST_ALL_SECONDS or block == 0:
            self._listed_at = now
            starts = [""]
        else:
            starts = [str(each) for each in (block - 1, block) if each]
        found = (evaluated_versions(self._store, self._federation, digits=each) for each in starts)
        return sorted(set[int]().union(*found))
