"""A federation's past as plain rows: its log of decisions and its evaluations.

Read from the bucket alone, and incrementally: what was read once is immutable. No plotting, no
printing; `status`, `watch` and the report all look at these rows.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedfa import keys, manifests
from fedfa.complaints import describe
from fedfa.errors import InvalidInput, NotFound
from fedfa.events import Abandoned, Event, Merged, PoolChanged, Rejected, Stopped
from fedfa.federation import State
from fedfa.manifests import Manifest, ModelRef
from fedfa.spec import Submitted
from fedfa.store import ObjectStore
from fedfa.submission import submitted

READERS = 16  # parallel reads of small objects
FINAL_EVALUATION_SECONDS = 60.0  # how long an ended federation may take to be evaluated


@dataclass(frozen=True, slots=True)
class Row:
    """One decision. Times are unix seconds: `at` by the aggregator's clock, started_at by the
    trainer's. What an outcome does not have is None.
    """

    n: int
    at: float
    outcome: str
    version: int
    staleness: int | None = None
    slot: int | None = None
    generation: int | None = None
    client: str | None = None
    trainer: str | None = None
    base_version: int | None = None
    started_at: float | None = None
    train_seconds: float | None = None
    delay_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """evals/{version}.json: the metrics of a version, or why there are none."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    version: int
    at: float
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None


_evaluation: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)


@dataclass(frozen=True, slots=True)
class History:
    """All that is known now. state and born_at are None before the first model.

    at: when the newest manifest was committed, or the federation submitted.
    """

    submission: Submitted
    born_at: float | None
    at: float
    state: State | None
    has_model: bool
    rows: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]  # by version

    @property
    def has_ended(self) -> bool:
        return self.state is not None and self.state.status != "running"

    @property
    def merged(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "merged"]


class HistoryReader:
    """Reads a federation's past, and on every further refresh() only what is new."""

    def __init__(self, store: ObjectStore, federation: str) -> None:
        """Raises NotFound when there is no such federation."""
        self._store = store
        self._federation = federation
        self.submission = submitted(store, federation)
        self.latest: History | None = None  # what the last refresh() saw
        self._newest: Manifest | None = None
        self._born_at: float | None = None
        self._clients: dict[int, str] = {}  # whom each slot is open for
        self._rows: list[Row] = []
        self._evaluations: dict[int, Evaluation] = {}

    def refresh(self) -> History:
        with ThreadPoolExecutor(READERS) as readers:
            self._read_log(readers)
            self._read_evaluations(readers)
        newest = self._newest
        self.latest = History(
            submission=self.submission,
            born_at=self._born_at,
            at=newest.at if newest else self.submission.created_at,
            state=newest.state if newest else None,
            has_model=newest is not None and newest.model is not None,
            rows=tuple(self._rows),
            evaluations=tuple(self._evaluations[version] for version in sorted(self._evaluations)),
        )
        return self.latest

    def _read_log(self, readers: ThreadPoolExecutor) -> None:
        known = self._newest.n if self._newest else manifests.FIRST
        newest = manifests.newest(self._store, self._federation, known=known)
        if newest is None:
            return
        start = known + 1 if self._newest else manifests.FIRST
        numbers = range(start, newest.manifest.n + 1)
        for committed in readers.map(
            lambda n: manifests.read(self._store, self._federation, n), numbers
        ):
            self._add(committed.manifest)

    def _add(self, manifest: Manifest) -> None:
        if manifest.n == manifests.FIRST:
            self._born_at = manifest.at
            self._clients = clients_of(manifest)
        self._rows += rows_of(manifest, self._clients)
        self._newest = manifest

    def _read_evaluations(self, readers: ThreadPoolExecutor) -> None:
        unread = evaluated_versions(self._store, self._federation) - self._evaluations.keys()
        for evaluation in readers.map(
            lambda version: read_evaluation(self._store, self._federation, version), unread
        ):
            self._evaluations[evaluation.version] = evaluation


def is_over(history: History, *, now: float) -> bool:
    """Whether it has ended and nothing more is to be expected from it. now: unix seconds."""
    state = history.state
    if state is None or state.status == "running":
        return False
    evaluated = any(one.version == state.final_version for one in history.evaluations)
    is_evaluated = evaluated or state.final_version is None or state.status == "failed"
    return is_evaluated or now > history.at + FINAL_EVALUATION_SECONDS


def evaluated_versions(store: ObjectStore, federation: str, *, digits: str = "") -> set[int]:
    """The versions that have a result; of these first digits alone, where some are given."""
    listed = store.list(f"{keys.evaluations(federation)}{digits}")
    versions = (keys.evaluated_version(federation, info.key) for info in listed)
    return {version for version in versions if version is not None}


def read_evaluation(store: ObjectStore, federation: str, version: int) -> Evaluation:
    """Raises NotFound before there is a result, and InvalidInput where it is malformed."""
    key = keys.evaluation(federation, version)
    try:
        evaluation = _evaluation.validate_json(store.get(key))
    except ValidationError as error:
        raise InvalidInput(f"{key}: {describe(error)}") from error
    if evaluation.version != version:
        raise InvalidInput(f"{key}: this is the evaluation of version {evaluation.version}")
    return evaluation


def evaluation_or_none(store: ObjectStore, federation: str, version: int) -> Evaluation | None:
    """None before there is a result; the error of one that is malformed says so."""
    try:
        return read_evaluation(store, federation, version)
    except NotFound:
        return None
    except InvalidInput as error:  # there will be no other: it is create-once
        return Evaluation(version, at=0.0, error=str(error))


def find_model(store: ObjectStore, federation: str, version: int) -> ModelRef:
    """Where the model of a version lies. The log's versions never fall, so bisect it."""
    newest = manifests.newest(store, federation)
    model = newest.manifest.model if newest else None
    if newest is None or model is None:
        raise NotFound(f"{federation}: has no model yet")
    low, high = manifests.FIRST, newest.manifest.n
    while low < high:
        middle = (low + high) // 2
        candidate = manifests.read(store, federation, middle).manifest.model
        if candidate is not None and candidate.version >= version:
            high, model = middle, candidate
        else:
            low = middle + 1
    if model.version < version:
        raise NotFound(f"{federation}: no version {version} yet, the newest is {model.version}")
    if model.version > version:
        raise NotFound(
            f"{federation}: version {version} shared its commit with version {model.version} and "
            f"has no model of its own"
        )
    return model


def clients_of(manifest: Manifest) -> dict[int, str]:
    """Whom each slot is open for after a manifest: slot -> client, "" while it waits."""
    return {at: slot.client for at, slot in enumerate(manifest.state.slots)}


def rows_of(manifest: Manifest, clients: dict[int, str]) -> list[Row]:
    """A manifest's decisions in order.

    clients: clients_of the manifest before, which this brings up to date.
    """
    rows = []
    for decision in manifest.decisions:
        rows.append(_row(manifest, decision.event, decision.version, decision.staleness, clients))
        for opened in decision.opened:
            clients[opened.job.slot] = opened.client
    return rows


def _row(
    manifest: Manifest,
    event: Event,
    version: int,
    staleness: int | None,
    clients: dict[int, str],
) -> Row:
    n, at, outcome = manifest.n, manifest.at, event.outcome
    match event:
        case Merged(update) | Rejected(update):
            return Row(
                n,
                at,
                outcome,
                version,
                staleness,
                slot=update.job.slot,
                generation=update.job.generation,
                client=update.client,
                trainer=update.trainer,
                base_version=update.base_version,
                started_at=update.started_at,
                train_seconds=update.train_seconds,
                delay_seconds=update.delay_seconds,
                reason=event.reason if isinstance(event, Rejected) else None,
            )
        case Abandoned(job, reason):
            client = clients[job.slot]
            return Row(
                n,
                at,
                outcome,
                version,
                slot=job.slot,
                generation=job.generation,
                client=client,
                reason=reason,
            )
        case PoolChanged(pool):
            return Row(n, at, outcome, version, reason=f"pool {pool}")
        case Stopped(_, reason):
            return Row(n, at, outcome, version, reason=reason)
