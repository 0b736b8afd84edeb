"""A federation's log copied, as it grows, to where people look at trainings: TensorBoard, MLflow.

Both get the same: each evaluated metric and each merged update's staleness, at the step of their
version and the time of the log. To copy again, after an interruption, adds nothing twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedfa.errors import Misconfigured
from fedfa.rows import History
from fedfa.spec import Submission

STALENESS = "staleness"
OURS = ".fedfa"  # how the names of our event files end
UID_TAG = "fedfa.uid"
MAX_PARAMETER = 500  # characters that MLflow takes of a parameter
BATCH = 1000  # metrics that MLflow takes at once
STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a version; at: unix seconds."""

    name: str
    version: int
    at: float
    value: float


class Sink(Protocol):
    """Where points go."""

    where: str  # for people

    def write(self, points: list[Point]) -> None: ...

    def close(self, status: str) -> None:
        """The federation ended; or "running", when nobody follows it any more."""
        ...


class Tracker:
    """Writes to a sink what a history has beyond the one before."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._num_rows = 0
        self._measured: set[int] = set()

    def update(self, history: History) -> int:
        """Returns the number of points written."""
        points = [*self._new(history)]
        if points:
            self._sink.write(points)
        return len(points)

    def _new(self, history: History) -> Iterator[Point]:
        for row in history.rows[self._num_rows :]:
            if row.outcome == "merged" and row.staleness is not None:
                yield Point(STALENESS, row.version, row.at, row.staleness)
        self._num_rows = len(history.rows)
        for evaluation in history.evaluations:
            if evaluation.version not in self._measured:
                self._measured.add(evaluation.version)
                for name, value in evaluation.metrics.items():
                    yield Point(name, evaluation.version, evaluation.at, value)


class TensorBoard:
    """Event files in a folder of the federation's name."""

    def __init__(self, folder: Path, submitted: Submission) -> None:
        """What was written here before is written anew. Raises Misconfigured."""
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise Misconfigured(
                f"--tensorboard: {error}; in FedFa's checkout: pip install -e '.[tensorboard]'"
            ) from error
        place = folder / submitted.federation
        self.where = f"{place}; look at it by: tensorboard --logdir {folder}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            for file in place.glob(f"events.*{OURS}"):
                file.unlink()
            self._writer = EventFileWriter(str(place), filename_suffix=OURS)
        except OSError as error:
            raise Misconfigured(
                f"--tensorboard {folder}: cannot be written: {error.strerror}; name another place"
            ) from error

    def write(self, points: list[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            value = Summary.Value(tag=point.name, simple_value=point.value)
            event = Event(wall_time=point.at, step=point.version, summary=Summary(value=[value]))
            self._writer.add_event(event)
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()


class MLflow:
    """A run on an MLflow server, or wherever the URI points, found again by its uid."""

    def __init__(self, uri: str, submitted: Submission, *, experiment: str = "fedfa") -> None:
        """Raises Misconfigured."""
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise Misconfigured(
                f"--mlflow: {error}; in FedFa's checkout: pip install -e '.[mlflow]'"
            ) from error
        self._error = MlflowException
        self._uri = uri
        self._known: dict[str, set[int]] = {}  # the versions that the server has of a metric
        try:
            self._client = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            of = found.experiment_id if found else self._client.create_experiment(experiment)
            self._run = self._find(of, submitted) or self._create(of, submitted)
        except MlflowException as error:
            raise self._failed(error) from error
        self.where = f"{uri}, experiment {experiment}, run {submitted.federation} ({self._run})"

    def write(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        try:
            metrics = [
                Metric(point.name, point.value, int(point.at * 1000), point.version)
                for point in points
                if point.version not in self._versions_of(point.name)
            ]
            for start in range(0, len(metrics), BATCH):
                self._client.log_batch(self._run, metrics=metrics[start : start + BATCH])
        except self._error as error:
            raise self._failed(error) from error
        for point in points:
            self._known[point.name].add(point.version)

    def close(self, status: str) -> None:
        if status in STATUSES:
            try:
                self._client.set_terminated(self._run, STATUSES[status])
            except self._error as error:
                raise self._failed(error) from error

    def _find(self, experiment: str, submitted: Submission) -> str | None:
        found = self._client.search_runs([experiment], f"tags.`{UID_TAG}` = '{submitted.uid}'")
        return str(found[0].info.run_id) if found else None

    def _create(self, experiment: str, submitted: Submission) -> str:
        run = self._client.create_run(
            experiment,
            start_time=int(submitted.created_at * 1000),
            run_name=submitted.federation,
            tags={UID_TAG: submitted.uid},
        )
        for name, value in flat(submitted.spec.model_dump(mode="json", exclude_none=True)):
            self._client.log_param(run.info.run_id, name, str(value)[:MAX_PARAMETER])
        return str(run.info.run_id)

    def _versions_of(self, name: str) -> set[int]:
        if name not in self._known:
            history = self._client.get_metric_history(self._run, name)
            self._known[name] = {metric.step for metric in history}
        return self._known[name]

    def _failed(self, error: Exception) -> Misconfigured:
        return Misconfigured(
            f"--mlflow {self._uri}: {' '.join(str(error).split()):.500}; the same command goes on "
            "from here"
        )


def flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of nested sections as rule.window, 5 and so on."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
