"""The `fedfa` command as a person meets it: what it prints, where, and how it ends."""

import io
import json
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.numpy import load_file

from fedfa import keys, submission
from fedfa.canonical import canonical_json
from fedfa.cli import control, local, observe, results, views
from fedfa.errors import Misconfigured, NotFound
from fedfa.history import HistoryReader, find_model
from fedfa.ledger import read_model
from fedfa.manifests import birth_of
from fedfa.rows import is_over
from fedfa.sections import Stop
from fedfa.spec import FederationSpec
from fedfa.store import DirectoryStore
from fedfa.submission import ID, new_id
from fedfa.summary import Summary, summarize
from fedfa.tracebacks import first_line
from tests import tiny
from tests.processes import running
from tests.unit.builders import submitted
from tests.unit.commands import Fedfa, as_process, assert_one_line, nowhere
from tests.unit.sample_run import born, write_sample_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "My Spec.yaml"
    path.write_text(text)
    return path


# -- the command as a process ------------------------------------------------------------------


def test_the_version_is_printed() -> None:
    done = as_process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("fedfa ")


def test_a_spec_without_an_end_is_described_as_one() -> None:
    endless = FederationSpec(clients=8)
    assert control.describe(endless).endswith(
        "Mc = 4, until it is stopped (the spec has no `stop`)"
    )
    assert control.describe(FederationSpec(clients=8, stop=Stop(updates=1))).endswith("Mc = 4")


def test_a_reason_too_long_for_the_log_is_refused(fedfa: Fedfa) -> None:
    done = fedfa("stop", "some-run", "--reason", "x" * 4001, **nowhere())
    assert_one_line(done, "--reason: 4001 characters; give at most 4000")


def test_the_schema_is_that_of_the_spec(fedfa: Fedfa) -> None:
    schema = fedfa("schema").stdout
    assert json.loads(schema) == FederationSpec.model_json_schema()
    assert not re.search('"(ge|gt|le|lt)"', schema)  # which editors do not know


def test_what_is_slow_to_import_is_not_imported_at_start() -> None:
    # given
    slow = ("torch", "matplotlib", "pika", "boto3", "starlette", "uvicorn")
    program = f"import sys, fedfa.cli\nprint([m for m in {slow} if m in sys.modules])"
    # when
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # then
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rule: {name: fedfa-delta, window: 0}\nclients: 4", ["rule.window", "0"]),
        ("clients: 4\nconcurrency: 9", ["concurrency: 9", "at most 4"]),
        ("clients: 4\nwindow: 3", ["window: no such field"]),
        ("clients: 4\nrule: {window: 3}", ["rule: 'name' says which one of fedasync, fedavg"]),
        (
            "clients: 4\nrule: {name: fedavgg}",
            ["rule.name: no such name (did you mean fedavg?)", "port"],
        ),
        ("clients: 4\nlocal: {epoch: 1}", ["local.epoch: no such field", "epochs, steps"]),
        ("clients: 4\ndelay: none", ["delay: must be a mapping of fields", "unit_seconds"]),
        ("clients: 4\ntask: {options: {a: [1]}}", ["task.options.a: give text, a number"]),
        ("clients: 4\nclients: 5", ["'clients' is given twice"]),
        ("- clients", ["must be a mapping of fields; there are: task, rule"]),
        ("", ["must be a mapping of fields"]),
        ("a: " + "[" * 5000, ["nested too deeply"]),
        ("a: &a [x, x]\nb: &b [*a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b]", ["c: no such"]),
        ("clients: [", ["cannot be read as YAML"]),
    ],
)
def test_a_wrong_spec_is_explained_in_one_line(
    fedfa: Fedfa, tmp_path: Path, text: str, parts: list[str]
) -> None:
    path = spec_file(tmp_path, text)
    assert_one_line(fedfa("submit", path, **nowhere()), *parts)


def test_a_missing_spec_is_named(fedfa: Fedfa, tmp_path: Path) -> None:
    assert_one_line(fedfa("submit", tmp_path / "no.yaml", **nowhere()), "no.yaml: no such file")


def test_a_malformed_id_is_refused(fedfa: Fedfa, tmp_path: Path) -> None:
    path = spec_file(tmp_path, "clients: 4")
    assert_one_line(fedfa("submit", path, "--id", "../x", **nowhere()), "'../x'", "a-z")


@pytest.mark.parametrize("id", ["", "../x", "A", "\uff11"])
@pytest.mark.parametrize(
    "command", ["status", "watch", "stop", "report", "export", "verify", "submit", "local"]
)
def test_what_cannot_be_an_id_is_refused_before_anything_else(
    fedfa: Fedfa, tmp_path: Path, command: str, id: str
) -> None:
    spec = spec_file(tmp_path, "clients: 4")
    arguments = {
        "submit": ["submit", spec, "--id", id],
        "local": ["local", "run", spec, "--id", id],
    }
    done = fedfa(*arguments.get(command, [command, id]), **nowhere())
    assert_one_line(done, f"id: {id!r}", "a-z, 0-9 and -")


def test_an_assignment_whose_value_is_no_yaml_is_named(fedfa: Fedfa, tmp_path: Path) -> None:
    path = spec_file(tmp_path, "clients: 4")
    assert_one_line(fedfa("submit", path, "--set", "seed=[", **nowhere()), "'seed=['")


@pytest.mark.parametrize(
    "arguments", [["local", "up", "--data"], ["local", "run", "SPEC", "--out"]]
)
def test_a_folder_that_cannot_be_made_is_named_before_anything_starts(
    fedfa: Fedfa, tmp_path: Path, arguments: list[str]
) -> None:
    # given a file where the folder should be
    spec = spec_file(tmp_path, "clients: 4")
    words = [spec if word == "SPEC" else word for word in arguments]
    # when
    done = fedfa(*words, spec / "folder")
    # then
    assert_one_line(done, arguments[-1], str(spec / "folder"), "name another place")


@pytest.mark.parametrize("assignment", ["rule.window", "=3", "clients.x=1"])
def test_an_assignment_that_sets_no_field_is_refused(
    fedfa: Fedfa, tmp_path: Path, assignment: str
) -> None:
    path = spec_file(tmp_path, "clients: 4")
    done = fedfa("submit", path, "--set", assignment, **nowhere())
    assert_one_line(done, assignment, "rule.server_lr=2.0")


def test_an_assignment_is_checked_like_the_file(fedfa: Fedfa, tmp_path: Path) -> None:
    path = spec_file(tmp_path, "clients: 4\nrule: {name: fedfa-delta}")
    done = fedfa("submit", path, "--set", "rule.window=0", **nowhere())
    assert_one_line(done, "rule.window")


@pytest.mark.parametrize("command", [["status"], ["watch", "x"], ["verify", "x"], ["report", "x"]])
def test_an_unreachable_store_is_named(fedfa: Fedfa, command: list[str]) -> None:
    settings = nowhere()
    assert_one_line(fedfa(*command, **settings), settings["FEDFA_S3_ENDPOINT"])


def test_an_endpoint_that_is_no_address_is_named_and_not_the_credentials(fedfa: Fedfa) -> None:
    settings = nowhere() | {"FEDFA_S3_ENDPOINT": "http://127.0.0.1:99999999"}
    done = fedfa("status", **settings)
    assert_one_line(done, "correct FEDFA_S3_ENDPOINT")
    assert "SECRET_KEY" not in done.stderr


def test_a_wrong_setting_is_named_with_its_purpose_and_without_its_value(fedfa: Fedfa) -> None:
    done = fedfa("status", FEDFA_S3_ENDPOINT="http://me:secret@host")
    assert_one_line(done, "FEDFA_S3_ENDPOINT", "URL of the S3 server, without credentials")
    assert "secret" not in done.stderr


def test_a_task_that_no_local_trainer_has_ends_a_local_run_at_once(
    fedfa: Fedfa, tmp_path: Path
) -> None:
    path = spec_file(tmp_path, "task: {name: nonsense}\nclients: 4")
    assert_one_line(fedfa("local", "run", path), "task.name: nonsense", "digits")


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("task.options.model=resnet19", "resnet19 is not in torchvision (did you mean resnet18?)"),
        ("task.options.data=picture", "no data at"),
        ("concurrency=9", "9 jobs cannot be open with 3 clients"),
    ],
)
def test_what_no_trainer_could_begin_is_told_before_a_local_run_starts_a_server(
    tmp_path: Path, assignment: str, complaint: str
) -> None:
    # given the pictures of three clients
    tiny.write_pictures(tmp_path / "pictures", each=4)
    options = "{data: pictures, image_size: 32}"
    text = f"task: {{name: images, options: {options}}}\npartition: {{kind: natural}}"
    path = spec_file(tmp_path, f"{text}\nconcurrency: 2")
    nothing = dict.fromkeys(("FEDFA_AMQP_URL", "FEDFA_S3_ENDPOINT", "FEDFA_S3_BUCKET"), "")
    # when
    done = as_process(
        *("local", "run", path, "--set", assignment),
        *("--data", tmp_path / "servers", "--out", tmp_path / "out"),
        FEDFA_DATA=str(tmp_path),
        **nothing,
    )
    # then
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "servers").iterdir()) == []


def test_errors_are_red_only_where_colour_is_wanted(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    coloured = as_process("submit", missing, FORCE_COLOR="1", TERM="xterm")
    plain = as_process("submit", missing, FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert "\x1b[1;31merror: " in coloured.stderr
    assert "31m" not in plain.stderr


# -- parts of it, on a store in a folder -------------------------------------------------------


def test_a_new_id_is_readable_and_valid() -> None:
    for stem in ("My Spec", "digits", "---", "x" * 200):
        assert ID.fullmatch(new_id(stem))
    assert new_id("My Spec").startswith("my-spec-")
    assert new_id("digits") != new_id("digits")


def test_an_exported_model_loads_without_us(store: DirectoryStore, tmp_path: Path) -> None:
    # given
    write_sample_run(store)
    path = tmp_path / "out" / "model.safetensors"
    # when
    text = results.export_model(store, "fed", None, path)
    # then
    expected = read_model(store, find_model(store, "fed", 26), birth_of(store, "fed").template)
    tensors = load_file(path)
    assert set(tensors) == {"weight", "running_mean", "count"}
    for tensor, array in expected.named():
        assert tensors[tensor.name].dtype == array.dtype
        assert tensors[tensor.name].tobytes() == array.tobytes()
    assert "version 26" in text
    assert "6 trained parameters" in text


def test_a_model_that_cannot_be_written_is_told_in_a_line(
    store: DirectoryStore, tmp_path: Path
) -> None:
    write_sample_run(store)
    with pytest.raises(Misconfigured, match=r"--out .* cannot be written: Is a directory"):
        results.export_model(store, "fed", None, tmp_path)


def test_any_version_can_be_exported(store: DirectoryStore, tmp_path: Path) -> None:
    write_sample_run(store)
    first = results.export_model(store, "fed", 0, tmp_path / "first.safetensors")
    assert "version 0" in first
    assert (
        load_file(tmp_path / "first.safetensors")["weight"].tobytes()
        == read_model(store, find_model(store, "fed", 0), birth_of(store, "fed").template)
        .floats[:6]
        .tobytes()
    )


def test_nothing_can_be_exported_before_the_first_model(
    store: DirectoryStore, tmp_path: Path
) -> None:
    store.create(keys.spec("fed"), submitted("fed").model_dump_json(by_alias=True).encode())
    with pytest.raises(NotFound, match="fed: has no model yet"):
        results.export_model(store, "fed", None, tmp_path / "model.safetensors")


def test_an_honest_federation_is_confirmed_whole(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    # when
    *_, last = results.confirm(store, "fed")
    # then
    history = HistoryReader(store, "fed").refresh()
    assert last.mismatch is None
    assert last.manifests == history.rows[-1].n + 1
    assert last.updates == 30
    assert last.version == 26
    assert last.models == 27  # version 0 as well


def test_a_lost_update_is_a_mismatch_and_what_was_confirmed_is_told(
    store: DirectoryStore,
) -> None:
    # given
    write_sample_run(store)
    victim = next(iter(store.list("fed/updates/2-3/"))).key
    store.delete(victim)
    # when
    *_, last = results.confirm(store, "fed")
    # then
    assert last.mismatch is not None
    assert victim in last.mismatch
    assert 0 < last.updates < 30
    assert last.text.startswith("not verified after ")


def test_a_federation_is_over_when_its_last_version_is_evaluated(store: DirectoryStore) -> None:
    # given: the clock of the sample is long past, so no evaluation is waited for
    born(store, "running")
    write_sample_run(store)
    running = HistoryReader(store, "running").refresh()
    ended = HistoryReader(store, "fed").refresh()
    # when, then
    assert not is_over(running, now=1e9)
    assert is_over(ended, now=0)
    assert observe.exit_code(ended) == 0


def test_a_line_says_all_that_matters(store: DirectoryStore) -> None:
    # given
    write_sample_run(store, stop={"updates": 30})
    summary = summarize(HistoryReader(store, "fed").refresh(), now=0)
    # when
    line = views.line(summary)
    # then
    for part in (
        "finished",
        "version 26",
        "updates 30",
        "accuracy 0.8636",
        "staleness",
        "open 0/3",
    ):
        assert part in line
    assert "\n" not in line


def test_the_json_of_a_summary_is_plain(store: DirectoryStore) -> None:
    write_sample_run(store)
    summary = summarize(HistoryReader(store, "fed").refresh(), now=0)
    assert json.loads(json.dumps(summary.as_json())) == asdict(summary)
    assert isinstance(summary, Summary)


def test_a_refused_job_and_a_failed_evaluation_show_why_without_lines_of_code(
    store: DirectoryStore,
) -> None:
    # given
    write_sample_run(store)
    reason = 'failed 3 times, at last: KeyError: x\n  File "task.py", line 9, in evaluate\n    x'
    body = canonical_json({"version": 99, "at": 1e6, "error": reason}).encode()
    store.put(keys.evaluation("fed", 99), body)
    # when
    summary = summarize(HistoryReader(store, "fed").refresh(), now=0)
    # then
    assert summary.evaluation_error == reason
    assert first_line(reason) == "failed 3 times, at last: KeyError: x"
    assert "evaluation failed 3 times, at last: KeyError: x" in views.line(summary)
    assert "task.py" not in views.line(summary)
    assert summary.refusal


def test_what_failed_is_told_once(store: DirectoryStore) -> None:
    # given a federation that ended by refused jobs
    write_sample_run(store)
    summary = summarize(HistoryReader(store, "fed").refresh(), now=0)
    error = "failed 3 times, at last: KeyError: x"
    lines = '\n  File "task.py", line 9, in loss\n    x'
    for code in ("", lines):
        refusal = error + code
        reason = f"2 updates in a row were rejected or abandoned, at last: {refusal}"
        failed = replace(summary, status="failed", refusal=refusal, reason=reason)
        page = Console(width=200, record=True, file=io.StringIO())
        # when
        page.print(views.details(failed))
        # then
        text = page.export_text()
        assert text.count("KeyError: x") == 1
        assert text.count("task.py") == bool(code)
        assert text.count("2 updates in a row") == 1
        assert "client-0006" in text


def test_a_version_better_than_the_exported_one_is_told(
    store: DirectoryStore,
) -> None:
    # given a run whose final version is its best, and what else could have been measured
    write_sample_run(store)
    final_is_best = summarize(HistoryReader(store, "fed").refresh(), now=0)
    assert final_is_best.best is not None
    earlier = replace(final_is_best.best, version=15, value=0.9)
    # when, then
    assert local.better_version(final_is_best) is None
    told = local.better_version(replace(final_is_best, best=earlier))
    assert told == "version 26 was exported; version 15 has the best accuracy, 0.9000"
    as_good = replace(earlier, value=final_is_best.best.value)
    assert local.better_version(replace(final_is_best, best=as_good)) is None


def test_a_federation_that_waits_long_for_its_first_model_says_where_to_look(
    store: DirectoryStore,
) -> None:
    submission.submit(store, FederationSpec(clients=4), "fed")
    created = submission.read_submission(store, "fed").created_at
    soon, late = (
        summarize(HistoryReader(store, "fed").refresh(), now=created + seconds).reason
        for seconds in (1, 60)
    )
    assert "has the task digits" in soon
    assert "logs" not in soon
    assert "logs" in late


def test_durations_are_short() -> None:
    shown = [views.duration(seconds) for seconds in (4.21, 185, 7620)]
    assert shown == ["4.2s", "3m05s", "2h07m"]


def test_a_spark_line_rises_with_its_values() -> None:
    assert views.spark([0.0, 1.0]) == views.SPARKS[0] + views.SPARKS[-1]
    assert views.spark([1.0, 1.0]) == views.SPARKS[0] * 2
    assert len(views.spark([float(at) for at in range(500)])) == views.SPARK_WIDTH


def test_the_dashboard_serves_a_folder_until_it_is_interrupted(
    store: DirectoryStore, tmp_path: Path
) -> None:
    # given
    write_sample_run(store)
    token = {"FEDFA_DASHBOARD_TOKEN": "of no use for a folder"}
    with running("dashboard", "--in", tmp_path / "bucket", variables=token) as serving:
        assert serving.stdout is not None
        url = serving.stdout.readline().split()[-1]
        # when
        with urllib.request.urlopen(f"{url}api/federations/fed", timeout=60) as answer:
            view = json.load(answer)
        with urllib.request.urlopen(f"{url}api/access", timeout=60) as answer:
            access = json.load(answer)
        serving.send_signal(signal.SIGINT)
        # then
        assert serving.wait(60) == 130
    assert view["merged"] == 30
    assert access == {"can_control": False, "is_allowed": False}


def test_the_dashboards_token_is_long_or_refused_without_being_shown(fedfa: Fedfa) -> None:
    ended = fedfa("dashboard", FEDFA_DASHBOARD_TOKEN="short-secret", FEDFA_S3_ENDPOINT="http://x")
    assert ended.code == 2
    assert "FEDFA_DASHBOARD_TOKEN: " in ended.stderr
    assert "16" in ended.stderr
    assert "short-secret" not in ended.stderr
