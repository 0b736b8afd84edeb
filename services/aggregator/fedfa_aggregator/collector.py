"""Deletes what a federation's retention lets go, beside the aggregator's loop.

Nothing durable: each sweep reads the newest manifest, walks back as far as it needs, lists what
there is and asks `fedfa.retention`. Wherever a sweep ends, the next one goes on.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from types import TracebackType
from typing import Self

from fedfa import history, keys, manifests, retention
from fedfa.errors import InvalidInput, NotFound, StoreUnavailable
from fedfa.failpoints import reach
from fedfa.keys import ObjectInfo
from fedfa.ledger import Ledger
from fedfa.log import Evaluation
from fedfa.retention import Kept
from fedfa.sections import KeepBounded
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa_aggregator import metrics

logger = logging.getLogger(__name__)

SHORTEST_REST_SECONDS = 1.0  # between two sweeps of a federation
LONGEST_REST_SECONDS = 60.0
PLAN_SECONDS = 60.0  # after that the folder may be another federation's, of the same name
PORTION = 100  # deletions between two looks at the clock
DELETERS = 4  # one request at a time would be slower than a busy federation makes objects
TURN_SECONDS = 0.5


@dataclass(slots=True)
class Tended:
    """A federation with bounded retention, and what was read of it.

    known: a manifest that exists. evaluations: of models that exist. settled: the committed key
    of a version that has several models, "" for none. has_ended: nothing more will be committed.
    ended_at: when that was first seen, on the monotonic clock.
    """

    submission: Submission
    policy: KeepBounded
    known: int = manifests.FIRST
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    settled: dict[int, str] = field(default_factory=dict)
    has_ended: bool = False
    ended_at: float | None = None


def plan(store: ObjectStore, tended: Tended, *, now: float) -> Iterator[str]:
    """The keys that may go, by what the bucket shows from now on; `now` in unix seconds."""
    submission, policy = tended.submission, tended.policy
    federation = submission.federation
    head = manifests.newest(store, federation, known=tended.known)
    if head is None or head.manifest.uid != submission.uid or head.manifest.model is None:
        tended.has_ended = True  # deleted, or unborn for ever
        return
    tended.known = head.manifest.n
    tended.has_ended = head.manifest.state.status != "running"
    commits = retention.recent(manifests.backwards(store, head), policy.keep_last)
    models = list(store.list(keys.models(federation)))
    kept = retention.keep(
        policy,
        submission.spec,
        head.manifest,
        commits,
        models,
        now=now,
        evaluation_of=_evaluations(store, tended),
    )
    kept = _settle(store, tended, kept, models)
    listing = chain(models, store.list(keys.updates(federation)))
    yield from retention.deletable(kept, listing, now=now)


def _evaluations(store: ObjectStore, tended: Tended) -> Callable[[int], Evaluation | None]:
    """Reads what is not in `tended` yet, and leaves only what was asked for there."""
    federation = tended.submission.federation
    before, tended.evaluations = tended.evaluations, {}

    def evaluation_of(version: int) -> Evaluation | None:
        found = before.get(version) or history.evaluation_or_none(store, federation, version)
        if found is not None:
            tended.evaluations[version] = found
        return found

    return evaluation_of


def _settle(store: ObjectStore, tended: Tended, kept: Kept, models: Iterable[ObjectInfo]) -> Kept:
    """Of several models of one old version all but the committed one are leftovers."""
    federation = tended.submission.federation
    held = (info for info in models if kept.holds(info.key))
    times = Counter(version for version in _versions(federation, held) if version < kept.oldest)
    doubles = [version for version, count in times.items() if count > 1]
    for version in doubles:
        if version not in tended.settled:
            try:
                tended.settled[version] = history.find_model(store, federation, version).key
            except NotFound:  # it shared its commit with a later version
                tended.settled[version] = ""
    return replace(kept, settled={version: tended.settled[version] for version in doubles})


def _versions(federation: str, models: Iterable[ObjectInfo]) -> Iterator[int]:
    for info in models:
        version = keys.version_of(federation, info.key)
        if version is not None:
            yield version


class Collector:
    """A context manager: entered, it tends federations in a thread of its own.

    A thread, because a listing or a thousand deletions must not delay an acknowledgement. It
    shares nothing with the loop but the bucket, where its look is as good as any other's.
    Outages and unreadable federations are tried again. Anything else ends it, calls `on_end`,
    and is raised on leaving.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        on_end: Callable[[], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._on_end = on_end
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tended: dict[str, Tended] = {}
        self._due_at: dict[str, float] = {}
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(1 + DELETERS, "collector")
        self._loop: Future[None] | None = None

    def tend(self, ledger: Ledger) -> None:
        """See to this federation from now on, until it has ended and is swept. From any thread."""
        submission = ledger.submission
        policy = submission.spec.retention
        if not isinstance(policy, KeepBounded):
            return
        with self._lock:
            tended = self._tended.get(submission.federation)
            if tended is None or tended.submission.uid != submission.uid:
                self._tended[submission.federation] = Tended(submission, policy)
                self._due_at[submission.federation] = self._monotonic() + _rest_seconds(policy)

    def __enter__(self) -> Self:
        self._loop = self._threads.submit(self._run)
        self._loop.add_done_callback(lambda _: self._on_end())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._threads.shutdown()
        if error is None and self._loop is not None:
            self._loop.result()

    def _run(self) -> None:
        while not self._stopping.wait(TURN_SECONDS):
            with self._lock:
                now = self._monotonic()
                due = [self._tended[name] for name, at in self._due_at.items() if at <= now]
            for tended in due:
                self._sweep(tended)

    def _sweep(self, tended: Tended) -> None:
        federation, started = tended.submission.federation, self._monotonic()
        is_done = False
        try:
            with metrics.sweep_seconds.time():
                num_deleted = self._delete(plan(self._store, tended, now=self._clock()))
            if tended.has_ended:
                tended.ended_at = started if tended.ended_at is None else tended.ended_at
                is_aged = started - tended.ended_at >= tended.policy.min_age_seconds
                is_done = is_aged and num_deleted == 0
        except (StoreUnavailable, InvalidInput, NotFound) as error:
            extra = {"federation": federation, "reason": str(error)}
            logger.warning("nothing more collected for now", extra=extra)
        with self._lock:
            if self._tended.get(federation) is not tended:
                return
            if is_done:
                del self._tended[federation], self._due_at[federation]
            else:
                self._due_at[federation] = self._monotonic() + _rest_seconds(tended.policy)

    def _delete(self, doomed: Iterator[str]) -> int:
        started = self._monotonic()
        num_deleted = 0
        while portion := list(islice(doomed, PORTION)):
            if self._stopping.is_set() or self._monotonic() - started > PLAN_SECONDS:
                break
            list(self._threads.map(self._delete_one, portion))
            num_deleted += len(portion)
            logger.debug("collected", extra={"keys": portion})
            metrics.collected.inc(len(portion))
        return num_deleted

    def _delete_one(self, key: str) -> None:
        self._store.delete(key)
        reach("aggregator.collected")


def _rest_seconds(policy: KeepBounded) -> float:
    """A tenth of the age floor: sweeping more often would find little."""
    return min(max(policy.min_age_seconds / 10, SHORTEST_REST_SECONDS), LONGEST_REST_SECONDS)
