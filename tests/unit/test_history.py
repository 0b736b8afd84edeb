"""Rows and numbers of a federation, read from a bucket that the product's own ledger wrote."""

from pathlib import Path

import pytest

from fedfa import keys, ledger, manifests
from fedfa.canonical import canonical_json, sha256
from fedfa.errors import InvalidInput, NotFound
from fedfa.events import Decision, Job, Stopped
from fedfa.history import HistoryReader, find_model
from fedfa.replica import decide, merge
from fedfa.store import DirectoryStore
from fedfa.summary import headline, metric_names, series, summarize
from fedfa.tensor_files import encode
from tests.unit.builders import ATTEMPT, submitted, update, vector
from tests.unit.sample_run import (
    ABANDONED_AT,
    BORN_AT,
    CREATED_AT,
    born,
    evaluate,
    write_sample_run,
)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_every_decision_is_a_row_in_committed_order(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    # when
    history = HistoryReader(store, "fed").refresh()
    # then
    outcomes = [row.outcome for row in history.rows]
    assert history.state is not None
    assert outcomes.count("merged") == history.state.num_merged == 30
    assert outcomes.count("rejected") == history.state.num_rejected > 0
    assert outcomes[-1] == "stopped"
    assert history.rows[-1].reason == "merged 30 updates"
    assert [row.n for row in history.rows] == sorted(row.n for row in history.rows)
    assert history.born_at == BORN_AT


def test_a_merged_row_says_who_trained_from_what_and_when(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    # when
    rows = HistoryReader(store, "fed").refresh().merged
    # then
    for row in rows:
        assert row.started_at is not None
        assert row.base_version is not None
        assert row.started_at < row.at
        assert row.trainer in ("trainer-1", "trainer-2")
        assert row.train_seconds == 0.3
        assert row.staleness is not None
        assert row.staleness >= 0
    assert max(row.staleness or 0 for row in rows) > 0


def test_an_abandoned_row_names_the_client_whose_job_it_was(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    # when
    rows = HistoryReader(store, "fed").refresh().rows
    # then
    (abandoned,) = [row for row in rows if row.outcome == "abandoned"]
    assert rows.index(abandoned) == ABANDONED_AT - 1
    before = [row for row in rows if row.slot == abandoned.slot and row.n < abandoned.n]
    opened = _client_opened_by(store, before[-1].n if before else 0, abandoned.slot)
    assert abandoned.client == opened


def _client_opened_by(store: DirectoryStore, n: int, slot: int | None) -> str:
    assert slot is not None
    return manifests.read(store, "fed", n).manifest.state.slots[slot].client


def test_a_second_refresh_adds_only_what_is_new(store: DirectoryStore) -> None:
    # given
    held = born(store, "fed")
    reader = HistoryReader(store, "fed")
    first = reader.refresh()
    assert held.replica is not None
    job = Job(0, 1)
    sent = vector(1, scale=0.01)
    key = keys.update("fed", 0, 1, ATTEMPT, sha256(encode(sent)))
    facts = update(held.replica.federation, job, key=key, digest=sha256(encode(sent)))
    replica, decisions = merge(held.replica, facts, sent)
    ledger.commit(store, held, replica, decisions, writer="a", now=1010.0)
    evaluate(store, "fed", 0, at=1011.0)
    # when
    second = reader.refresh()
    # then
    assert first.rows == ()
    assert first.evaluations == ()
    assert [row.outcome for row in second.rows] == ["merged"]
    assert [one.version for one in second.evaluations] == [0]
    assert reader.refresh() == second


def test_what_was_read_once_is_not_read_again(store: DirectoryStore, tmp_path: Path) -> None:
    # given: the history was read, and its manifests are gone but the newest
    write_sample_run(store)
    reader = HistoryReader(store, "fed")
    before = reader.refresh()
    newest = before.rows[-1].n
    for n in range(newest):
        store.delete(keys.manifest("fed", n))
    # when
    after = reader.refresh()
    # then
    assert after == before


def test_an_unknown_federation_is_named_with_its_store(store: DirectoryStore) -> None:
    with pytest.raises(NotFound, match=r"nobody: no such federation in .*fedfa status"):
        HistoryReader(store, "nobody")


def test_a_federation_without_a_model_waits_for_it(store: DirectoryStore) -> None:
    # given
    body = submitted("fed").model_dump_json(by_alias=True).encode()
    store.create(keys.spec("fed"), body)
    # when
    summary = summarize(HistoryReader(store, "fed").refresh(), now=CREATED_AT + 5)
    # then
    assert summary.status == "waiting"
    assert summary.seconds == 5
    assert (summary.merged, summary.open_jobs, summary.metric) == (0, 0, None)


def test_a_failed_evaluation_has_its_error_and_no_metric(store: DirectoryStore) -> None:
    # given
    born(store, "fed")
    failed = {"version": 0, "at": 1005.0, "error": "out of memory"}
    store.put(keys.evaluation("fed", 0), canonical_json(failed).encode())
    # when
    history = HistoryReader(store, "fed").refresh()
    # then
    assert history.evaluations[0].error == "out of memory"
    assert series(history, "accuracy") == []
    assert summarize(history, now=1006.0).latest is None


def test_a_damaged_evaluation_is_named(store: DirectoryStore) -> None:
    born(store, "fed")
    store.put(keys.evaluation("fed", 0), b'{"version": "x"}')
    with pytest.raises(InvalidInput, match=r"fed/evals/0\.json: "):
        HistoryReader(store, "fed").refresh()


def test_a_summary_counts_what_the_rows_say(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    history = HistoryReader(store, "fed").refresh()
    # when
    summary = summarize(history, now=1e9)
    # then
    staleness = [row.staleness or 0 for row in history.merged]
    assert summary.status == "finished"
    assert summary.seconds == history.at - CREATED_AT  # not until now: it is over
    assert summary.merged == 30
    assert summary.staleness_mean == pytest.approx(sum(staleness) / len(staleness))
    assert summary.staleness_max == max(staleness)
    assert summary.open_jobs == 0
    assert summary.updates_per_second == pytest.approx(30 / (history.at - BORN_AT))
    assert summary.progress is None


def test_the_best_value_is_the_greatest_accuracy_and_the_least_loss(
    store: DirectoryStore,
) -> None:
    # given
    born(store, "by-accuracy")
    born(store, "by-loss")
    for version, accuracy, loss in ((0, 0.1, 2.0), (5, 0.9, 0.4), (10, 0.8, 0.5)):
        both = {"version": version, "at": 1010.0, "metrics": {"accuracy": accuracy, "loss": loss}}
        store.put(keys.evaluation("by-accuracy", version), canonical_json(both).encode())
        only = {"version": version, "at": 1010.0, "metrics": {"loss": loss}}
        store.put(keys.evaluation("by-loss", version), canonical_json(only).encode())
    # when
    accuracy_run = summarize(HistoryReader(store, "by-accuracy").refresh(), now=1020.0)
    loss_run = summarize(HistoryReader(store, "by-loss").refresh(), now=1020.0)
    # then
    assert accuracy_run.metric == "accuracy"
    assert accuracy_run.latest is not None
    assert accuracy_run.latest.version == 10
    assert accuracy_run.best is not None
    assert accuracy_run.best.version == 5
    assert loss_run.metric == "loss"
    assert loss_run.best is not None
    assert loss_run.best.version == 5


def test_the_targets_metric_is_shown_first(store: DirectoryStore) -> None:
    # given
    write_sample_run(store, stop={"updates": 10, "target": {"metric": "loss", "value": 9.0}})
    # when
    history = HistoryReader(store, "fed").refresh()
    # then
    assert headline(history) == "loss"
    assert metric_names(history) == ["loss", "accuracy"]


def test_progress_is_that_of_the_nearest_stop_condition(store: DirectoryStore) -> None:
    # given: 50 s of at most 100 s are over, no update of 10 came
    born(store, "fed", stop={"updates": 10, "wall_seconds": 100.0})
    history = HistoryReader(store, "fed").refresh()
    # when
    summary = summarize(history, now=CREATED_AT + 50)
    # then
    assert summary.progress == 0.5
    assert summary.eta_seconds == 50


def test_a_model_is_found_by_its_version(store: DirectoryStore) -> None:
    # given
    write_sample_run(store)
    # when
    models = [find_model(store, "fed", version) for version in range(27)]
    # then
    assert [model.version for model in models] == list(range(27))
    assert all(sha256(store.get(model.key)) == model.digest for model in models)


def test_a_version_that_does_not_exist_yet_is_not_found(store: DirectoryStore) -> None:
    write_sample_run(store)
    with pytest.raises(NotFound, match="no version 1000 yet, the newest is 26"):
        find_model(store, "fed", 1000)


def test_a_version_that_shared_its_commit_has_no_model(store: DirectoryStore) -> None:
    # given: three updates with a window of one, in one commit
    held = born(store, "fed", rule={"name": "fedfa-delta", "window": 1})
    replica = held.replica
    assert replica is not None
    batch: list[Decision] = []
    for slot in range(3):
        sent = vector(slot, scale=0.01)
        replica, decisions = merge(replica, update(replica.federation, Job(slot, 1)), sent)
        batch += decisions
    replica, decisions = decide(replica, Stopped("stopped", "enough", 3))
    ledger.commit(store, held, replica, (*batch, *decisions), writer="a", now=1010.0)
    # when, then
    assert find_model(store, "fed", 3).version == 3
    with pytest.raises(NotFound, match="version 2 shared its commit with version 3"):
        find_model(store, "fed", 2)
