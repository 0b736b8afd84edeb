"""Reads a federation's past from the bucket alone, incrementally: what was read is immutable."""

from concurrent.futures import ThreadPoolExecutor

from pydantic import TypeAdapter, ValidationError

from fedfa import keys, manifests
from fedfa.complaints import describe
from fedfa.errors import InvalidInput, NotFound
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.rows import History, Row, clients_of, rows_of
from fedfa.store import ObjectStore
from fedfa.submission import read_submission

READERS = 16  # parallel reads of small objects

_evaluation: TypeAdapter[Evaluation] = TypeAdapter(Evaluation)


class HistoryReader:
    """Reads a federation's past, and on every further refresh() only what is new."""

    def __init__(self, store: ObjectStore, federation: str) -> None:
        """Raises NotFound when there is no such federation."""
        self._store = store
        self._federation = federation
        self.submission = read_submission(store, federation)
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
