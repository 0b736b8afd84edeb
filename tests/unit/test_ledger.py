"""Births, commits and fences on a real (directory) store, and what `verify` says of the log."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedfa import keys, ledger, manifests
from fedfa.canonical import canonical_json, sha256
from fedfa.errors import Fenced, InvalidInput
from fedfa.events import Abandoned, Job, Rejected
from fedfa.ledger import Ledger
from fedfa.log import ModelRef
from fedfa.replay import Mismatch, verify
from fedfa.replica import decide
from fedfa.store import DirectoryStore
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel
from tests.unit.builders import birth, submitted, update, vector
from tests.unit.logs import commit, falsify, merged, run


def begin(store: DirectoryStore, name: str = "fed", **fields: object) -> Ledger:
    """A submitted and born federation."""
    submission = submitted(name, **fields)
    store.create(keys.spec(name), submission.model_dump_json(by_alias=True).encode())
    model = vector(0)
    body = encode(model, ledger.birth_metadata(birth()))
    reference = ModelRef(0, keys.model(name, 0, sha256(body)), sha256(body))
    store.put(reference.key, body)
    certificate, start = ledger.birth_from(body)
    return ledger.bear(store, submission, reference, certificate, start, writer="a", now=1.0)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.mark.parametrize("rule", ["fedfa-delta", "fedfa-param"])
def test_a_run_verifies_from_version_zero(store: DirectoryStore, rule: str) -> None:
    held = run(store, begin(store, rule={"name": rule, "window": 3}), 12)
    verified = list(verify(store, "fed"))
    assert [entry.manifest.n for entry in verified] == list(range(13))
    assert held.state.version == 10


def test_batched_and_unbatched_runs_make_the_same_decisions_and_bits(tmp_path: Path) -> None:
    finals = []
    for batch in (1, 4):
        store = DirectoryStore(tmp_path / str(batch))
        held = run(store, begin(store, rule={"name": "fedfa-delta", "window": 3}), 12, batch=batch)
        list(verify(store, "fed"))
        decisions = [d for entry in manifests.log(store, "fed") for d in entry.manifest.decisions]
        finals.append((decisions, held.head.manifest.state, held.head.manifest.model))
    assert finals[0] == finals[1]


def test_a_restarted_writer_goes_on_to_the_same_bits(store: DirectoryStore, tmp_path: Path) -> None:
    straight = DirectoryStore(tmp_path / "straight")
    uninterrupted = run(straight, begin(straight), 9)
    held = run(store, begin(store), 4)
    loaded = ledger.load(store, held.submission)
    assert loaded is not None
    for seed in range(4, 9):
        assert loaded is not None
        assert loaded.replica is not None
        loaded = commit(store, loaded, *merged(store, loaded.replica, seed + 1, slot=seed % 3))
        loaded = ledger.load(store, held.submission)
    assert loaded is not None
    assert loaded.head.manifest.model == uninterrupted.head.manifest.model


def test_the_second_of_two_writers_is_fenced_and_changes_nothing(store: DirectoryStore) -> None:
    held = run(store, begin(store), 3)
    assert held.replica is not None
    first = commit(store, held, *merged(store, held.replica, 50))
    with pytest.raises(Fenced, match="committed by a"):
        ledger.commit(store, held, *merged(store, held.replica, 60, slot=1), writer="b", now=3.0)
    newest = manifests.newest(store, "fed")
    assert newest is not None
    assert newest.digest == first.head.digest


def test_a_writer_meets_its_own_success_when_it_commits_again(store: DirectoryStore) -> None:
    held = run(store, begin(store), 3)
    assert held.replica is not None
    replica, decisions = merged(store, held.replica, 50)
    assert (
        commit(store, held, replica, decisions).head == commit(store, held, replica, decisions).head
    )


@pytest.mark.parametrize("hint", [None, 0, 3, 10_000, "torn", b'{"n": 1e999}', b"[" * 9000])
def test_the_newest_manifest_is_found_whatever_the_hint_says(
    store: DirectoryStore, hint: object
) -> None:
    held = run(store, begin(store), 11)
    if hint is None:
        store.delete(keys.head("fed"))
    else:
        body = hint if isinstance(hint, bytes) else canonical_json({"n": hint}).encode()
        store.put(keys.head("fed"), body)
    newest = manifests.newest(store, "fed")
    assert newest is not None
    assert newest.digest == held.head.digest


def test_a_log_that_was_copied_under_another_id_is_refused(store: DirectoryStore) -> None:
    """Its next commit would go into the folder that it was copied from."""
    run(store, begin(store), 3)
    for info in list(store.list("fed/")):
        store.put(info.key.replace("fed/", "copy/", 1), store.get(info.key))
    with pytest.raises(InvalidInput, match=r"copy/manifests/0+\.json: this is manifest 0 of fed"):
        ledger.load(store, submitted("copy"))


def test_rejections_and_abandonments_are_part_of_the_log(store: DirectoryStore) -> None:
    held = run(store, begin(store), 5)
    assert held.replica is not None
    job = Job(0, held.state.slots[0].generation)
    held = commit(
        store, held, *decide(held.replica, Rejected(update(held.replica.federation, job), "norm"))
    )
    assert held.replica is not None
    job = Job(1, held.state.slots[1].generation)
    held = commit(store, held, *decide(held.replica, Abandoned(job, "died")))
    run(store, held, 3)
    assert len(list(verify(store, "fed"))) == 11


def test_the_run_stops_by_itself_and_nothing_follows(store: DirectoryStore) -> None:
    held = run(store, begin(store, stop={"updates": 6}), 6)
    assert held.replica is None
    assert held.state.status == "finished"
    assert held.state.slots == ()
    assert [entry.manifest.state.status for entry in verify(store, "fed")][-1] == "finished"


def test_a_runaway_update_is_rejected_for_its_norm(store: DirectoryStore) -> None:
    held = run(store, begin(store), 15)
    assert held.replica is not None
    replica, decisions = merged(store, held.replica, 99, scale=1e6)
    assert decisions[0].event.outcome == "rejected"
    assert replica.model is held.replica.model


def test_a_diverging_run_ends_as_failed_with_its_last_good_model(store: DirectoryStore) -> None:
    held = run(store, begin(store, limits={"step_norm_factor": 3, "update_norm_factor": 1e9}), 20)
    assert held.replica is not None
    replica, decisions = merged(store, held.replica, 99, scale=1e3)
    held = commit(store, held, replica, decisions)
    assert [decision.event.outcome for decision in decisions] == ["rejected", "stopped"]
    assert held.state.status == "failed"
    assert "lower rule.server_lr" in held.state.reason
    assert held.state.final_version == held.state.version
    assert len(list(verify(store, "fed"))) == 22


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda f: f.update(at=99.0), "predecessor"),
        (lambda f: f["state"].update(num_merged=99), "does not follow"),
        (lambda f: f["model"].update(digest="00" * 32), "replays to|not the bytes"),
        (lambda f: f["decisions"][0].update(staleness=7), "replays to"),
        (lambda f: f["decisions"][0]["event"].update(norm=7.0), "norm"),
        (lambda f: f["decisions"][0]["event"]["update"].update(client="client-0007"), "not open"),
        (lambda f: f.update(uid="f" * 32), "uid or number"),
    ],
)
def test_verify_finds_a_changed_manifest(
    store: DirectoryStore, change: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    run(store, begin(store, rule={"name": "fedfa-delta", "window": 2}), 5)
    falsify(store, 4, change)
    with pytest.raises(Mismatch, match=complaint):
        list(verify(store, "fed"))


def test_verify_finds_an_update_file_with_other_bytes(store: DirectoryStore) -> None:
    held = run(store, begin(store), 5)
    store.put(held.state.window[0].key, encode(vector(77)))
    with pytest.raises(InvalidInput, match="hash to"):
        list(verify(store, "fed"))


@pytest.mark.parametrize(
    ("number", "concurrency", "empty", "complaint"),
    [(8, 3, True, "no examples"), (2, 3, False, "at most 2"), (8, 3, False, None)],
)
def test_clients_that_cannot_make_a_federation_are_named(
    number: int, concurrency: int, empty: bool, complaint: str | None
) -> None:
    certificate = birth(number)
    if empty:
        first = replace(certificate.clients[0], num_examples=0)
        certificate = replace(certificate, clients=(first, *certificate.clients[1:]))
    reason = ledger.why_unborn(submitted(concurrency=concurrency), certificate)
    assert (reason is None) == (complaint is None)
    assert complaint is None or complaint in str(reason)


def test_a_name_that_two_clients_have_is_told() -> None:
    certificate = birth(4)
    first = certificate.clients[0]
    doubled = replace(certificate, clients=(*certificate.clients, first))
    reason = ledger.why_unborn(submitted(), doubled)
    assert reason == f"2 clients have the name {first.name}; give each one of its own"


@pytest.mark.parametrize(
    "client", [["x" * 300, 1, "default"], ["a", 1, "No Pool!"], ["a", -1, "default"], ["a"]]
)
def test_a_birth_certificate_with_a_client_that_no_message_could_name_is_refused(
    client: list[object],
) -> None:
    metadata = ledger.birth_metadata(birth())
    metadata["birth"]["clients"] = [client]  # type: ignore[index]
    with pytest.raises(InvalidInput, match="malformed birth certificate"):
        ledger.birth_from(encode(vector(0), metadata))


def test_a_stillborn_federation_is_a_log_of_one(store: DirectoryStore) -> None:
    submission = submitted()
    store.create(keys.spec("fed"), submission.model_dump_json(by_alias=True).encode())
    ledger.stillborn(store, submission, status="failed", reason="no model", writer="a", now=1.0)
    loaded = ledger.load(store, submission)
    assert loaded is not None
    assert loaded.replica is None
    assert (loaded.state.status, loaded.state.slots) == ("failed", ())
    assert len(list(verify(store, "fed"))) == 1


def test_a_vector_is_refused_when_its_bytes_changed(store: DirectoryStore) -> None:
    body = encode(vector(1))
    store.put("fed/models/1-x.safetensors", encode(vector(2)))
    with pytest.raises(InvalidInput, match="hash to"):
        ledger.read_vector(store, "fed/models/1-x.safetensors", sha256(body), birth().template)


def bits(model: FlatModel) -> bytes:
    return model.floats.tobytes() + model.integers.tobytes()


def test_what_is_loaded_is_what_was_committed(store: DirectoryStore) -> None:
    held = run(store, begin(store), 8)
    loaded = ledger.load(store, held.submission)
    assert loaded is not None
    assert loaded.replica is not None
    assert held.replica is not None
    assert loaded.replica.federation.state == held.replica.federation.state
    assert bits(loaded.replica.model) == bits(held.replica.model)
    assert list(map(bits, loaded.replica.window)) == list(map(bits, held.replica.window))
