"""The simulator: real workers train the real digits task; every run is compared byte for byte."""

import json
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfa import keys, manifests, replay
from fedfa.errors import InvalidSpec
from fedfa.events import Abandoned, Merged, Stopped
from fedfa.history import HistoryReader
from fedfa.log import Manifest
from fedfa.simulate.durations import num_steps
from fedfa.simulate.repetition import repeat
from fedfa.simulate.simulation import simulation
from fedfa.simulate.workers import TaskFailed
from fedfa.spec import FederationSpec, parse
from fedfa.store import DirectoryStore
from fedfa.training import _passes
from tests.processes import running
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)  # each worker imports torch, on whatever core is free

FIELDS: dict[str, Any] = {
    "task": {"name": "digits"},
    "clients": 6,
    "concurrency": 3,
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "rule": {"name": "fedfa-delta", "window": 2},
    "local": {"steps": 3, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "pareto"},
    "evaluation": {"every_versions": 4},
    "stop": {"updates": 24},
}
NAME = "sim"


def spec_with(**fields: Any) -> FederationSpec:
    return parse(FIELDS | fields)


def simulate(folder: Path, spec: FederationSpec, **options: Any) -> list[Manifest]:
    """Run it to its end; returns the whole log."""
    with simulation(folder, spec, NAME, **({"num_workers": 1} | options)) as running:
        for _ in running.run():
            pass
    return log(folder)


def log(folder: Path) -> list[Manifest]:
    return [committed.manifest for committed in manifests.log(DirectoryStore(folder), NAME)]


def written(folder: Path) -> dict[str, bytes]:
    """Every file of a run, but for updates of jobs that the end cut off."""
    merged = {
        decision.event.update.key
        for manifest in log(folder)
        for decision in manifest.decisions
        if isinstance(decision.event, Merged)
    }
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in (folder / NAME).rglob("*")
        if path.is_file()
    }
    return {key: body for key, body in files.items() if "/updates/" not in key or key in merged}


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path: Path) -> None:
    # given
    script = tmp_path / "experiment.py"
    script.write_text(
        "from pathlib import Path\n"
        "from fedfa.simulate.simulation import simulation\n"
        "from fedfa.spec import parse\n"
        f"spec = parse({FIELDS})\n"
        f"with simulation(Path({str(tmp_path)!r}), spec, 'sim') as run:\n"
        "    list(run.run())\n"
    )
    # when
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    # then
    *trace, last = done.stderr.splitlines()
    assert last.startswith(f"fedfa.errors.Misconfigured: {script}: ")
    assert 'if __name__ == "__main__":' in last
    assert "multiprocessing" not in "".join(trace)  # nothing of what the processes would say


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    simulate(folder, spec_with())
    return folder


def test_a_simulated_run_is_verified_like_any_other(reference: Path) -> None:
    # when
    verified = list(replay.verify(DirectoryStore(reference), NAME))
    # then
    assert verified[-1].manifest.state.status == "finished"
    assert (
        sum(one.is_new_model for one in verified) == verified[-1].manifest.state.version + 1 == 24
    )
    history = HistoryReader(DirectoryStore(reference), NAME).refresh()
    assert [one.version for one in history.evaluations] == [0, 4, 8, 12, 16, 20, 23]
    assert all(row.staleness is not None for row in history.merged)


def test_clients_are_in_their_pools(tmp_path: Path) -> None:
    pools = {"hospital": ["client-0000", "client-0003"]}
    birth = simulate(tmp_path, spec_with(pools=pools, stop={"updates": 1}))[0].birth
    assert birth is not None
    in_hospital = {client.name for client in birth.clients if client.pool == "hospital"}
    assert in_hospital == {"client-0000", "client-0003"}


def test_the_number_of_workers_changes_no_byte(reference: Path, tmp_path: Path) -> None:
    simulate(tmp_path, spec_with(), num_workers=3)
    assert written(tmp_path) == written(reference)


def test_decisions_follow_the_virtual_clock(reference: Path) -> None:
    manifests_ = log(reference)
    times = [manifest.at for manifest in manifests_]
    assert times == sorted(times)
    for manifest in manifests_[1:]:
        event = manifest.decisions[0].event
        assert isinstance(event, Merged)
        assert manifest.at == event.update.started_at + event.update.delay_seconds
        assert event.update.delay_seconds >= 1  # pareto's least


def command(folder: Path, **variables: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    spec = folder / "spec.json"
    spec.write_text(json.dumps(FIELDS))
    return running(
        *("simulate", spec, "--id", NAME, "--out", folder, "--workers", "1"),
        variables=variables,
        stderr=subprocess.STDOUT,
    )


def end(run: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = run.communicate(timeout=140)
    return run.returncode, said


@pytest.mark.timeout(300)
def test_a_run_that_is_interrupted_and_killed_goes_on_to_the_same_bytes(
    reference: Path, tmp_path: Path
) -> None:
    # given
    with command(tmp_path) as run:
        wait_for((tmp_path / keys.manifest(NAME, 3)).exists)
        run.send_signal(signal.SIGINT)
        code, said = end(run)
    assert code == 130
    assert "interrupted; the same command goes on from here" in said
    for place in ("commit.model_put@4", "commit.after_manifest@4", "aggregator.head_put@1"):
        with command(tmp_path, FEDFA_FAILPOINT=place) as run:
            code, said = end(run)
        assert code == -signal.SIGKILL, said
    # when
    with command(tmp_path) as run:
        code, said = end(run)
    # then
    assert code == 0, said
    assert written(tmp_path) == written(reference)


def test_another_spec_does_not_go_on_with_this_run(reference: Path) -> None:
    with pytest.raises(InvalidSpec, match="a run of another spec; choose another --id"):
        simulate(reference, spec_with(seed=7))
    with pytest.raises(InvalidSpec, match="began with --step-seconds 0"):
        simulate(reference, spec_with(), step_seconds=0.5)


def test_a_spec_that_failed_before_its_first_model_may_be_corrected(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match=r"nrm: no such field \(did you mean norm\?\)"):
        simulate(tmp_path, spec_with(task={"name": "digits", "options": {"nrm": "batch"}}))
    whole = simulate(tmp_path, spec_with(stop={"updates": 2}))
    assert whole[-1].state.status == "finished"


def test_a_reached_target_ends_the_run_at_the_evaluated_version(tmp_path: Path) -> None:
    stop = {"updates": 24, "target": {"metric": "accuracy", "value": 0.05}}
    whole = simulate(tmp_path, spec_with(stop=stop, evaluation={"every_versions": 3}))
    event = whole[-1].decisions[-1].event
    assert isinstance(event, Stopped)
    assert (event.status, event.final_version) == ("finished", 0)
    assert event.reason.endswith("reached the target 0.05")
    assert whole[-1].at == whole[-2].at


def test_wall_seconds_are_virtual(tmp_path: Path) -> None:
    whole = simulate(tmp_path, spec_with(stop={"wall_seconds": 3.5}))
    assert whole[-1].state.status == "finished"
    assert whole[-1].at == 3.5
    assert len(whole) > 3


def test_steps_take_their_time(tmp_path: Path) -> None:
    fields = {"delay": {"distribution": "none"}, "stop": {"updates": 5}}
    whole = simulate(tmp_path, spec_with(**fields), step_seconds=0.5)
    assert [manifest.at for manifest in whole] == [0, 1.5, 1.5, 1.5, 3.0, 3.0]
    slots = [
        decision.event.update.job.slot
        for manifest in whole
        for decision in manifest.decisions
        if isinstance(decision.event, Merged)
    ]
    assert slots == [0, 1, 2, 0, 1]  # without a difference in time nobody is overtaken


def test_a_diverging_training_is_abandoned_as_by_the_services(tmp_path: Path) -> None:
    local = {"steps": 3, "optimizer": {"name": "sgd", "learning_rate": 1e30}}
    fields = {"local": local, "limits": {"max_consecutive_rejections": 4}}
    whole = simulate(tmp_path, spec_with(**fields))
    assert [type(manifest.decisions[0].event) for manifest in whole[1:]] == [Abandoned] * 4
    assert whole[-1].state.status == "failed"
    assert "training diverged" in whole[-1].state.reason


def test_a_failing_task_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    task = "tests.services.tasks:Hopeless"
    with pytest.raises(TaskFailed, match=r"nobody kept the test images|upside down"):
        simulate(tmp_path, spec_with(task={"name": task}), task_allow=["tests.services.tasks"])


def test_bounded_retention_keeps_few_files_and_all_that_an_interrupted_run_needs(
    tmp_path: Path,
) -> None:
    # given
    retention = {"keep": "bounded", "keep_last": 2}
    spec = spec_with(retention=retention, stop={"updates": 80}, local={"steps": 1})
    whole = simulate(tmp_path / "whole", spec)
    with simulation(tmp_path / "cut", spec, NAME, num_workers=1) as running:
        for _ in zip(range(60), running.run(), strict=False):
            pass
    # when
    again = simulate(tmp_path / "cut", spec)
    # then
    assert again == whole
    for run in ("whole", "cut"):
        num_models = len(list((tmp_path / run / NAME / "models").iterdir()))
        num_updates = len(list((tmp_path / run / NAME / "updates").rglob("*.safetensors")))
        assert num_models <= 4
        assert num_updates <= 10
        assert list(replay.verify(DirectoryStore(tmp_path / run), NAME))[-1].is_new_model


def test_a_recorded_run_is_trained_again_to_the_same_bytes(reference: Path, tmp_path: Path) -> None:
    # when
    again = list(repeat(DirectoryStore(reference), NAME, tmp_path, num_workers=1))
    # then
    assert len(again) == 25
    ours, theirs = written(tmp_path), written(reference)
    assert ours == {key: theirs[key] for key in ours}
    assert {key for key in theirs if key not in ours} == {
        f"{NAME}/simulation.json",
        *(key for key in theirs if "/evals/" in key),
    }


def test_a_repetition_tells_the_first_difference(reference: Path, tmp_path: Path) -> None:
    # given the same log, said to come from another learning rate
    source = DirectoryStore(tmp_path / "source")
    for key, body in written(reference).items():
        source.put(key, body.replace(b'"learning_rate":0.1', b'"learning_rate":0.2'))
    # when, then
    with pytest.raises(replay.Mismatch, match=r"slot \d, generation 1 .*values differ, by at most"):
        list(repeat(source, NAME, tmp_path / "again", num_workers=1))


def copy(run: Path, folder: Path) -> DirectoryStore:
    store = DirectoryStore(folder)
    for key, body in written(run).items():
        store.put(key, body)
    return store


def recorded_otherwise(source: DirectoryStore, n: int) -> None:
    """Manifest n says another time, as if another log had been recorded here."""
    manifest = manifests.read(source, NAME, n).manifest
    source.put(keys.manifest(NAME, n), manifests.encode(replace(manifest, at=manifest.at + 1)))


def test_a_resumed_repetition_compares_what_lies_there(reference: Path, tmp_path: Path) -> None:
    # given a whole repetition, and a source that differs at its end
    source, again = copy(reference, tmp_path / "source"), tmp_path / "again"
    list(repeat(source, NAME, again, num_workers=1))
    last = manifests.read(source, NAME, 24).manifest
    assert len(list(repeat(source, NAME, again, num_workers=1))) == 1  # compared, not made
    # when, then
    recorded_otherwise(source, last.n)
    with pytest.raises(replay.Mismatch, match=f"manifest {last.n}: differs: at"):
        list(repeat(source, NAME, again, num_workers=1))
    source.delete(keys.manifest(NAME, last.n))
    with pytest.raises(replay.Mismatch, match=f"manifest {last.n}: .* the recorded log ends"):
        list(repeat(source, NAME, again, num_workers=1))


def test_what_differs_is_not_committed(reference: Path, tmp_path: Path) -> None:
    # given a recorded state that does not follow
    source, again = copy(reference, tmp_path / "source"), tmp_path / "again"
    manifest = manifests.read(source, NAME, 3).manifest
    state = replace(manifest.state, num_rejected=1)
    source.put(keys.manifest(NAME, 3), manifests.encode(replace(manifest, state=state)))
    # when, then
    for _ in range(2):  # nor does the second attempt find it there
        with pytest.raises(replay.Mismatch, match="manifest 3: differs: state"):
            list(repeat(source, NAME, again, num_workers=1))
        newest = manifests.newest(DirectoryStore(again), NAME)
        assert newest is not None
        assert newest.manifest.n == 2


def test_a_difference_whose_update_was_deleted_is_told_too(reference: Path, tmp_path: Path) -> None:
    source = DirectoryStore(tmp_path / "source")
    for key, body in written(reference).items():
        if "/updates/" not in key:
            source.put(key, body.replace(b'"learning_rate":0.1', b'"learning_rate":0.2'))
    with pytest.raises(replay.Mismatch, match=r"has deleted the update.*--threads"):
        list(repeat(source, NAME, tmp_path / "again", num_workers=1))


def cli(*arguments: str) -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "fedfa.cli", "simulate", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=140, check=False)


def test_one_json_document_tells_the_bound_too(tmp_path: Path) -> None:
    spec = tmp_path / "few.yaml"
    spec.write_text(json.dumps(FIELDS | {"stop": {"updates": 10}}))
    done = cli(str(spec), "--out", str(tmp_path), "--workers", "1", "--bound", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["merged"] == 10
    assert told["bound"]["lines"][0]["version"] == 4


@pytest.mark.parametrize("option", [["--bound"], ["--step-seconds", "0.5"]])
def test_a_repetition_takes_no_clock_and_no_bound(
    reference: Path, tmp_path: Path, option: list[str]
) -> None:
    done = cli("--like", str(reference / NAME), "--out", str(tmp_path), *option)
    assert done.returncode not in (0, 1)
    assert "no --step-seconds and no --bound" in " ".join(done.stderr.split())


@pytest.mark.parametrize("num_examples", [1, 31, 32, 33, 64, 65, 100])
@pytest.mark.parametrize(
    "local", [{"epochs": 1}, {"epochs": 3, "max_examples": 33}, {"steps": 7, "batch_size": 10}]
)
def test_steps_are_counted_as_they_are_trained(num_examples: int, local: dict[str, Any]) -> None:
    choice = spec_with(local=local).local
    used = min(num_examples, choice.max_examples or num_examples)
    passes = _passes(torch.arange(used), choice, torch.Generator())
    assert num_steps(choice, num_examples) == sum(map(len, passes))
