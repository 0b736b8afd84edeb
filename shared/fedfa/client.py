"""Federations from Python, as `import fedfa` offers them: submit, follow, stop, results, compare.

Broker and bucket are those of the environment, as for the command line; a folder of simulated runs
may stand in for the bucket. Nothing here imports torch.
"""

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfa import connections, exports, spec, spec_files, submission
from fedfa.comparison import Comparison
from fedfa.errors import Misconfigured, Unavailable
from fedfa.history import HistoryReader
from fedfa.log import Evaluation
from fedfa.rows import History, Row, is_over
from fedfa.settings import BrokerSettings
from fedfa.spec import FederationSpec, Submission
from fedfa.store import ObjectStore
from fedfa.summary import Summary, summarize

if TYPE_CHECKING:
    import pandas

LOOK_SECONDS = 0.5  # between two looks at the bucket

Spec = FederationSpec | Mapping[str, Any] | str | Path


@dataclass(frozen=True, slots=True)
class Version:
    """A global model: when it came, and from whose update; version 0 is from nobody's.

    seconds: since submission. staleness: of the update, in versions. metrics: what its evaluation
    gave, by name; empty for one that is not evaluated, or not yet.
    """

    version: int
    seconds: float
    client: str | None = None
    staleness: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Federation:
    """One federation, by its id. Every method reads the bucket again; nothing is kept running."""

    def __init__(self, id: str, *, runs: str | Path | None = None) -> None:
        """runs: a folder of simulated runs, in place of the bucket. Raises NotFound."""
        self.id = id
        self._store = connections.store(None if runs is None else Path(runs))
        self._reader = HistoryReader(self._store, id)
        self._is_simulated = runs is not None

    def __repr__(self) -> str:
        return f"Federation({self.id!r})"

    @property
    def spec(self) -> FederationSpec:
        return self._reader.submission.spec

    def history(self) -> History:
        """All that its log says now: decisions and evaluations."""
        return self._reader.refresh()

    def summary(self) -> Summary:
        """Status, progress and quality now, as `fedfa status --json` shows them."""
        return self._summary(self.history())

    def follow(self, *, timeout_seconds: float | None = None) -> Iterator[Version]:
        """Each version as it comes, from the first one on; ends with the federation.

        A version is given once more when its metrics are known, which may be much later. An
        outage of the bucket is waited for. Raises TimeoutError.
        """
        reader = HistoryReader(self._store, self.id)
        num_rows, measured, is_born = 0, set[int](), False
        for history in self._looks(reader, timeout_seconds):
            start = history.submission.created_at
            if history.has_model and not is_born and history.born_at is not None:
                is_born = True
                yield Version(0, history.born_at - start)
            for row in history.rows[num_rows:]:
                if row.outcome == "merged":
                    yield Version(row.version, row.at - start, row.client, row.staleness)
            num_rows = len(history.rows)
            for evaluation in history.evaluations:
                if evaluation.version not in measured and evaluation.metrics:
                    measured.add(evaluation.version)
                    yield _measured(evaluation, history)

    def result(self, *, timeout_seconds: float | None = None) -> Summary:
        """Wait for its end and the last evaluation. Raises TimeoutError."""
        for history in self._looks(self._reader, timeout_seconds):
            latest = history
        return self._summary(latest)

    def stop(self, reason: str = "stopped from Python") -> None:
        """Ask it to end with what it has; `result()` waits until it did."""
        broker = connections.broker_settings()
        _announce(submission.request_stop(self._store, self.id, reason), broker)

    def export(
        self,
        path: str | Path | None = None,
        *,
        version: int | None = None,
        pretrained: str | Path | None = None,
    ) -> Path:
        """Write a model, the final or newest one by default, as a safetensors file.

        path: runs/ID/model.safetensors by default. pretrained: also a folder that the model's own
        library loads, which needs the trainer's packages and the task's data here.
        """
        stored = exports.stored(self._store, self.id, version)
        file = Path("runs") / self.id / "model.safetensors" if path is None else Path(path)
        exports.write_model(stored, file)
        if pretrained is not None:
            exports.write_pretrained(stored, Path(pretrained), connections.task_allow())
        return file

    def decisions(self) -> "pandas.DataFrame":
        """Every decision of its log, a row each; see fedfa.rows.Row.

        Raises Misconfigured without pandas.
        """
        return _frame([asdict(row) for row in self.history().rows], list(Row.__slots__))

    def metrics(self) -> "pandas.DataFrame":
        """Every evaluated version, a row each: version, seconds and the metrics.

        Raises Misconfigured without pandas.
        """
        history = self.history()
        rows = [_measured(one, history) for one in history.evaluations if one.metrics]
        return _frame(
            [{"version": one.version, "seconds": one.seconds, **one.metrics} for one in rows],
            ["version", "seconds"],
        )

    def _summary(self, history: History) -> Summary:
        return summarize(history, now=history.at if self._is_simulated else time.time())

    def _looks(self, reader: HistoryReader, timeout_seconds: float | None) -> Iterator[History]:
        """What is there at each look, until it is over."""
        deadline = time.monotonic() + (float("inf") if timeout_seconds is None else timeout_seconds)
        while True:
            try:
                history = reader.refresh()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            else:
                yield history
                if is_over(history, now=time.time()):
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.id}: goes on after {timeout_seconds:g} s")
            time.sleep(LOOK_SECONDS)


def submit(what: Spec, *, id: str | None = None) -> Federation:
    """Check a spec and start a federation of it.

    what: a YAML file's path, its fields, or a FederationSpec. id: by default the file's name, or
    the task's, and a few digits. Raises InvalidSpec with the wrong field and the remedy.
    """
    checked = _checked(what)
    stem = Path(what).stem if isinstance(what, str | Path) else checked.task.name
    federation = submission.new_id(stem) if id is None else submission.check_id(id)
    broker = connections.broker_settings()
    store: ObjectStore = connections.store()
    if caution := submission.caution(checked):  # first: a warning may be made an error
        warnings.warn(caution, stacklevel=2)
    submitted = submission.submit(store, checked, federation)
    _announce(submitted, broker)
    return Federation(federation)


def compare(*federations: Federation | str) -> Comparison:
    """Their results side by side; in a notebook it shows a table and the curves.

    A str is an id in the bucket, or the folder of a simulated run.
    """
    histories = []
    for each in federations:
        if isinstance(each, str):
            histories.append(HistoryReader(*connections.find_run(each)).refresh())
        else:
            histories.append(each.history())
    return Comparison.of(histories)


def _announce(submitted: Submission, broker: BrokerSettings) -> None:
    if trouble := connections.announce(submitted, broker):
        warnings.warn(f"{submitted.federation}: {trouble}", stacklevel=3)


def _checked(what: Spec) -> FederationSpec:
    match what:
        case FederationSpec():
            return what
        case str() | Path():
            return spec_files.load(Path(what))
    return spec.parse(what)


def _measured(evaluation: Evaluation, history: History) -> Version:
    seconds = evaluation.at - history.submission.created_at
    return Version(evaluation.version, seconds, metrics=evaluation.metrics)


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> "pandas.DataFrame":
    try:
        import pandas  # slow to import, and not everybody wants it
    except ImportError as error:
        raise Misconfigured(
            f"pandas: {error}; install it (pip install pandas), or use history()"
        ) from error
    return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=columns)
