"""`fedfa local run` and the stack behind it: real servers, real services, a real (small) model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import load_file

from fedfa.errors import Misconfigured
from fedfa.history import HistoryReader
from fedfa.local.stack import LocalStack
from fedfa.spec import parse
from fedfa.submission import submit
from tests.processes import running

pytestmark = pytest.mark.usefixtures("servers")

TINY = """
task: {name: digits}
clients: 6
concurrency: 4
local: {steps: 4}
evaluation: {every_versions: 5}
stop: {updates: 20}
"""


def local_run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    spec = folder / "tiny.yaml"
    spec.write_text(TINY)
    command = [sys.executable, "-m", "fedfa.cli", "local", "run", spec, "--out", folder / "out"]
    return subprocess.run(
        [*map(str, command), *options], capture_output=True, text=True, timeout=110
    )


def test_a_local_run_leaves_report_model_numbers_and_logs(tmp_path: Path) -> None:
    # when
    task = "task.name=tests.services.tasks:Worsening"
    done = local_run(tmp_path, "--id", "local", "--trainers", "1", "--verify", "--set", task)
    # then
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: merged 20 updates" in done.stdout
    assert "replay bit for bit" in done.stdout
    out = tmp_path / "out"
    assert "finished" in (out / "report.html").read_text()
    assert load_file(out / "model.safetensors")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["merged"], summary["latest"]["version"]) == (20, summary["version"])
    best = summary["best"]["version"]
    assert f"fedfa export local --version {best}\n" in done.stdout
    assert best < summary["version"]
    assert done.stdout.count("merged 20 updates") == 1
    logs = {path.name for path in (out / "logs").iterdir()}
    assert logs == {"aggregator.log", "scheduler.log", "trainer-1.log"}


def test_a_service_that_is_killed_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    # given
    with LocalStack(tmp_path, trainers=1) as stack:
        store = stack.store()
        submit(store, parse({"clients": 6, "stop": {"updates": 12}}), "killed")
        pid = stack.processes["aggregator"].pid
        # when
        os.kill(pid, signal.SIGKILL)
        said: list[str] = []
        reader = HistoryReader(store, "killed")
        deadline = time.monotonic() + 90
        while not reader.refresh().has_ended and time.monotonic() < deadline:
            said += stack.supervise()
            time.sleep(0.5)
        # then
        assert reader.refresh().has_ended
        assert said == ["aggregator died and was started again"]
        assert stack.processes["aggregator"].pid != pid


def test_processes_are_gone_after_the_stack(tmp_path: Path) -> None:
    with LocalStack(tmp_path, trainers=1) as stack:
        assert stack.rabbitmq is None  # the environment names a broker and a bucket
        assert stack.seaweedfs is None
        processes = list(stack.processes.values())
        assert all(process.is_running for process in processes)
    assert not any(process.is_running for process in processes)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, ending: signal.Signals) -> None:
    # given a run whose federation was submitted
    spec, temporary = tmp_path / "tiny.yaml", tmp_path / "tmp"
    spec.write_text(TINY)
    temporary.mkdir()
    with running(
        *("local", "run", spec, "--trainers", "1"),
        cwd=tmp_path,
        variables={"TMPDIR": str(temporary)},
        stderr=subprocess.STDOUT,
    ) as run:
        assert run.stdout is not None
        while "version 0" not in run.stdout.readline():  # it is followed
            assert run.poll() is None
        children = psutil.Process(run.pid).children(recursive=True)
        # when
        run.send_signal(ending)
        said, _ = run.communicate(timeout=60)
    # then
    assert run.returncode == 130, said
    assert "interrupted; all processes are stopped" in said
    assert "Traceback" not in said
    assert len(children) == 5  # three services, and two processes that fork trainers
    assert not psutil.wait_procs(children, timeout=5)[1]
    left = {path.name for path in temporary.iterdir()}
    assert all(name.startswith("torchinductor_") for name in left)  # a cache that torch makes


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path: Path) -> None:
    # given
    script = tmp_path / "experiment.py"
    script.write_text(
        "from pathlib import Path\n"
        "from fedfa.local.stack import LocalStack\n"
        f"with LocalStack(Path({str(tmp_path)!r}), trainers=1) as stack:\n"
        "    print(stack.description)\n"
    )
    # when
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    # then
    *trace, last = done.stderr.splitlines()
    assert last.startswith(f"fedfa.errors.Misconfigured: {script}: ")
    assert 'if __name__ == "__main__":' in last
    assert "multiprocessing" not in "".join(trace)


def test_a_service_that_cannot_start_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFA_S3_SECRET_KEY", "wrong")
    with pytest.raises(Misconfigured, match=r"aggregator ended with code(.|\n)*SECRET_KEY"):
        LocalStack(tmp_path, trainers=0).__enter__()
