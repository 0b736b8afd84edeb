"""`fedfa compare`, `fedfa track`, completion, and `import fedfa` on runs that have ended."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedfa as library
from fedfa.errors import InvalidInput, InvalidSpec, Misconfigured, NotFound
from fedfa.history import HistoryReader
from fedfa.rows import History
from fedfa.store import DirectoryStore
from fedfa.summary import series
from tests.unit.commands import Fedfa, as_process, assert_one_line
from tests.unit.sample_run import born, write_sample_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs that ended, one longer than the other."""
    for name, updates in (("short", 20), ("long", 40)):
        write_sample_run(DirectoryStore(tmp_path / "runs"), name, stop={"updates": updates})
    return tmp_path / "runs"


def history(runs: Path, name: str) -> History:
    return HistoryReader(DirectoryStore(runs), name).refresh()


# -- comparing ---------------------------------------------------------------------------------


def test_runs_are_compared_in_a_table_and_a_figure(fedfa: Fedfa, runs: Path) -> None:
    figure = runs / "figures" / "both.png"
    done = fedfa("compare", "short", "long", "--in", runs, "--out", figure)
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["federation", "task", "rule", "K"]
    assert [line.split()[0] for line in lines[1:3]] == ["short", "long"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_comparison_says_when_each_was_as_good_as_the_worst_best(
    fedfa: Fedfa, runs: Path
) -> None:
    done = fedfa("compare", runs / "short", runs / "long", "--json")
    told = json.loads(done.stdout)
    short, long = told["runs"]
    best = max(point.value for point in series(history(runs, "short"), "accuracy"))
    assert told["metric"] == "accuracy"
    assert told["level"] == short["best"] == best < long["best"]
    first = next(
        point for point in series(history(runs, "long"), "accuracy") if point.value >= best
    )
    assert long["reached_seconds"] == first.seconds < long["seconds"]


def test_a_run_that_is_not_there_is_named(fedfa: Fedfa, runs: Path) -> None:
    assert_one_line(fedfa("compare", "none", "--in", runs), "none: no such federation")


# -- tracking ----------------------------------------------------------------------------------


def expected(runs: Path, name: str, metric: str) -> list[tuple[int, float]]:
    if metric == "staleness":
        return [(row.version, float(row.staleness or 0)) for row in history(runs, name).merged]
    return [(point.version, point.value) for point in series(history(runs, name), metric)]


def assert_same(points: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    assert [version for version, _ in points] == [version for version, _ in wanted]
    assert dict(points) == pytest.approx(dict(wanted), rel=1e-6)


@pytest.mark.parametrize("times", [1, 2])
def test_tensorboard_shows_the_logs_values(
    fedfa: Fedfa, runs: Path, tmp_path: Path, times: int
) -> None:
    for _ in range(times):  # the second time writes the same anew
        done = fedfa("track", "short", "--in", runs, "--tensorboard", tmp_path / "tb")
        assert done.code == 0, done.stderr
    assert "tensorboard --logdir" in done.stdout
    shown = EventAccumulator(str(tmp_path / "tb" / "short"))
    shown.Reload()
    for metric in ("accuracy", "loss", "staleness"):
        points = [(event.step, event.value) for event in shown.Scalars(metric)]
        assert_same(points, expected(runs, "short", metric))  # as float32
    last = history(runs, "short").evaluations[-1]
    assert shown.Scalars("accuracy")[-1].wall_time == last.at


@pytest.mark.parametrize("times", [1, 2])
def test_mlflow_shows_the_logs_values(
    fedfa: Fedfa, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server would need a database
    uri = f"file:{tmp_path / 'mlruns'}"
    for _ in range(times):  # the second time finds the run and adds nothing
        done = fedfa("track", "short", "--in", runs, "--mlflow", uri, "--experiment", "mine")
        assert done.code == 0, done.stderr
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("mine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "short"
    assert run.info.status == "FINISHED"
    assert run.data.params["rule.name"] == history(runs, "short").submission.spec.rule.name
    for metric in ("accuracy", "loss", "staleness"):
        logged = client.get_metric_history(run.info.run_id, metric)
        points = sorted((each.step, each.value) for each in logged)
        assert_same(points, expected(runs, "short", metric))
    last = history(runs, "short").evaluations[-1]
    assert run.data.metrics["accuracy"] == last.metrics["accuracy"]


def test_tracking_to_nowhere_is_refused(fedfa: Fedfa, runs: Path) -> None:
    assert_one_line(fedfa("track", "short", "--in", runs), "give --tensorboard FOLDER or --mlflow")


def test_a_server_that_is_not_there_is_named(
    fedfa: Fedfa, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = fedfa("track", "short", "--in", runs, "--mlflow", "http://127.0.0.1:9")
    assert_one_line(done, "--mlflow http://127.0.0.1:9", "the same command goes on from here")


# -- shells ------------------------------------------------------------------------------------


def test_commands_are_completed() -> None:
    done = as_process(_FEDFA_COMPLETE="complete_bash", COMP_WORDS="fedfa comp", COMP_CWORD="1")
    assert done.stdout.split() == ["compare"]


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_pipe_gets_no_live_drawing_even_where_colours_are_forced(
    runs: Path, command: str
) -> None:
    coloured = as_process(command, "short", "--in", runs, FORCE_COLOR="1", TERM="xterm")
    plain = as_process(command, "short", "--in", runs, FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert "\x1b[" in coloured.stdout
    for done in (coloured, plain):
        assert "\x1b[?25l" not in done.stdout + done.stderr  # hides the cursor, to draw anew
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain.stdout)


# -- from Python -------------------------------------------------------------------------------


def test_importing_fedfa_loads_nothing_heavy() -> None:
    program = (
        "import sys, fedfa\n"
        "few = len(sys.modules)\n"
        "assert callable(fedfa.submit)\n"
        "heavy = ('torch', 'pandas', 'matplotlib', 'pika', 'boto3')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print('pydantic' in sys.modules and few < 120)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"], done.stdout + done.stderr


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(library, name) for name in library.__all__)
    assert set(library.__all__) <= set(dir(library))
    with pytest.raises(AttributeError, match="no attribute 'sbumit'"):
        library.sbumit  # noqa: B018


def test_a_run_is_followed_version_by_version(runs: Path) -> None:
    followed = list(library.Federation("short", runs=runs).follow())
    log = history(runs, "short")
    assert [each.version for each in followed if not each.metrics] == [
        0,
        *(row.version for row in log.merged),
    ]
    assert [each.version for each in followed if each.metrics] == [
        evaluation.version for evaluation in log.evaluations
    ]
    assert followed[1].client == log.merged[0].client
    assert followed[0].seconds > 0


def test_tables_without_pandas_say_what_to_install(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    run = library.Federation("short", runs=runs)
    for table in (run.decisions, run.metrics):
        with pytest.raises(Misconfigured, match=r"pip install pandas.*history\(\)"):
            table()
    assert len(run.history().rows) > 20


def test_results_models_and_tables_of_a_run(runs: Path, tmp_path: Path) -> None:
    run = library.Federation("short", runs=runs)
    result = run.result(timeout_seconds=5)
    file = run.export(tmp_path / "model.safetensors")
    decisions, metrics = run.decisions(), run.metrics()

    assert (result.status, result.merged) == ("finished", 20)
    assert load_file(file)
    assert isinstance(decisions, pd.DataFrame)
    assert (decisions.outcome == "merged").sum() == 20
    assert metrics.accuracy.iloc[-1] == pytest.approx(result.metrics["accuracy"])
    assert list(metrics.columns) == ["version", "seconds", "accuracy", "loss"]


def test_a_run_that_goes_on_is_not_waited_for_longer_than_asked(runs: Path) -> None:
    born(DirectoryStore(runs), "open")
    run = library.Federation("open", runs=runs)
    with pytest.raises(TimeoutError, match="open: goes on after 0 s"):
        run.result(timeout_seconds=0)
    assert next(run.follow()).version == 0


def test_runs_are_compared_from_python(runs: Path) -> None:
    short, long = (library.Federation(name, runs=runs) for name in ("short", "long"))
    compared = library.compare(short, long)
    assert [line.federation for line in compared.lines] == ["short", "long"]
    assert "<td>short</td>" in compared._repr_html_()
    assert (compared._repr_png_() or b"").startswith(b"\x89PNG")
    with pytest.raises(InvalidInput, match="no run; name at least one"):
        library.compare()


@pytest.mark.parametrize(
    ("what", "complaint"),
    [({"clients": 0}, "clients: .*greater than or equal to 1"), ("no.yaml", "no.yaml: no such")],
)
def test_a_wrong_spec_is_refused_before_anything_is_sent(what: Any, complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        library.submit(what)


def test_a_federation_that_is_not_there_is_named(runs: Path) -> None:
    with pytest.raises(NotFound, match="none: no such federation in"):
        library.Federation("none", runs=runs)
