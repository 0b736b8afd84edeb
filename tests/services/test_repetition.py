"""A run of the real services, trained again in the simulator: the same bytes from the log alone."""

from pathlib import Path

import pytest

from fedfa import manifests
from fedfa.events import Merged
from fedfa.local.stack import LocalStack
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings
from fedfa.simulate.repetition import repeat
from fedfa.store import DirectoryStore
from tests.services.runs import begin, ended

pytestmark = pytest.mark.faults  # minutes on two cores

SPEC = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 3},
    "concurrency": 4,
    "clients": 8,
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "local": {"epochs": 2, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "pareto", "unit_seconds": 0.2},
    "evaluation": {"every_versions": 10},
    "stop": {"updates": 30},
}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("servers")
def test_a_real_runs_log_is_trained_again_to_identical_models(
    store: S3Store,
    broker_settings: BrokerSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setenv("FEDFA_TRAINER_TORCH_THREADS", "1")  # the last bits depend on it
    with LocalStack(tmp_path / "stack", trainers=2, jobs_per_trainer=2):
        begin(store, broker_settings, "real", SPEC)
        assert ended(store, "real", seconds=150).state.status == "finished"
        # when
        again = list(repeat(store, "real", tmp_path / "again", num_workers=2, threads=1))
        # then
        recorded = [committed.digest for committed in manifests.log(store, "real")]
        assert [ledger.head.digest for ledger in again] == recorded
        models = {key.key for key in store.list("real/models/")}
    ours = DirectoryStore(tmp_path / "again")
    assert {info.key for info in ours.list("real/models/")} == models
    updates = [
        decision.event.update
        for committed in manifests.log(ours, "real")
        for decision in committed.manifest.decisions
        if isinstance(decision.event, Merged)
    ]
    assert len(updates) == 30
    assert any(update.base_version > 0 for update in updates)
    assert len({update.trainer for update in updates}) == 2
