"""`fedfa track`: a federation's metrics in TensorBoard or MLflow, by following the bucket."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedfa import connections
from fedfa.cli import EXIT_INTERRUPTED, console, observe
from fedfa.cli.control import Folder, Id
from fedfa.errors import InvalidInput, Unavailable
from fedfa.history import HistoryReader
from fedfa.rows import is_over
from fedfa.tracking import MLflow, Sink, TensorBoard, Tracker


def track(
    federation: Id,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write event files in FOLDER/ID", show_default=False),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="log a run to this MLflow server", show_default=False),
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow's")] = "fedfa",
    folder: Folder = None,
) -> None:
    """Copy a federation's metrics to TensorBoard or MLflow, until it has ended.

    It reads the bucket and nothing else, so it may run anywhere, start late and start again.
    """
    if tensorboard is None and mlflow is None:
        raise InvalidInput("track: nowhere to write to; give --tensorboard FOLDER or --mlflow URI")
    reader = HistoryReader(connections.store(folder), federation)
    sinks: list[Sink] = []
    if tensorboard is not None:
        sinks.append(TensorBoard(tensorboard, reader.submission))
    if mlflow is not None:
        sinks.append(MLflow(mlflow, reader.submission, experiment=experiment))
    for sink in sinks:
        console.say(f"{federation}: to {sink.where}")
    status = "running"
    try:
        status = _follow(reader, [Tracker(sink) for sink in sinks])
    except KeyboardInterrupt:
        console.error(f"{federation}: interrupted; the same command goes on from here")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        for sink in sinks:
            sink.close(status)
    console.say(f"{federation}: {status}")


def _follow(reader: HistoryReader, trackers: list[Tracker]) -> str:
    """Returns the federation's last status."""
    while True:
        with suppress(Unavailable):  # the services do not mind an outage either
            history = reader.refresh()
            for tracker in trackers:
                tracker.update(history)
            if history.state is not None and is_over(history, now=time.time()):
                return history.state.status
        time.sleep(observe.LOOK_SECONDS)
