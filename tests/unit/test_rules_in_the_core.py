"""Every rule through the one core: slots that wait, clients that wait, bases, replay, retention."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa import keys, ledger, manifests, submission
from fedfa.canonical import sha256
from fedfa.cli import observe
from fedfa.errors import InvalidSpec
from fedfa.events import Abandoned, Event, Job, Merged, Rejected, Stopped
from fedfa.federation import Federation, apply_rule, excess_step, found, sample, step
from fedfa.history import HistoryReader, find_model
from fedfa.ledger import Ledger
from fedfa.merge import rule_of
from fedfa.replay import Mismatch, verify
from fedfa.replica import Replica, merge, needs_base, update_cosine
from fedfa.sections import KeepBounded
from fedfa.spec import parse
from fedfa.stops import due_stop
from fedfa.store import DirectoryStore
from fedfa.summary import held_up, summarize
from fedfa.tensor_files import encode
from fedfa.tensors import cosine
from fedfa_aggregator.collector import Tended, plan
from tests.unit.builders import ATTEMPT, clients, federation, spec, update, vector
from tests.unit.logs import falsify
from tests.unit.sample_run import born, write_sample_run

RULES: dict[str, dict[str, Any]] = {
    "fedfa-delta": {"name": "fedfa-delta", "window": 3},
    "discounted": {"name": "fedfa-delta", "window": 3, "staleness": {"kind": "polynomial"}},
    "fedfa-param": {"name": "fedfa-param", "window": 3},
    "fedbuff at once": {"name": "fedbuff", "window": 3},
    "fedbuff at flush": {"name": "fedbuff", "window": 2, "refill": "at_flush", "fednova": True},
    "fedavg": {"name": "fedavg"},
    "fedasync": {"name": "fedasync", "staleness": {"kind": "hinge"}},
    "port": {"name": "port", "window": 2, "max_staleness": 5},
}
WAIT = ("fedbuff at flush", "fedavg", "port")
ROUNDS = {"rule": RULES["fedavg"], "concurrency": 3}


def merged(value: Federation, job: Job, **fields: Any) -> Merged:
    needs_cosine = rule_of(value.spec).needs_cosine
    event = Merged(update(value, job, **fields), 1.0, None, 0.5 if needs_cosine else None)
    verdict, _ = apply_rule(value, event)
    step_norm = None if verdict.combination is None else 1.0
    return Merged(event.update, 1.0, step_norm, event.cosine)


def is_open(value: Federation) -> list[bool]:
    return [slot.is_open for slot in value.state.slots]


def test_a_round_of_all_clients_is_held_up_by_one_that_always_fails_up_to_the_limit() -> None:
    # given
    fields = {
        "rule": RULES["fedavg"],
        "concurrency": 3,
        "limits": {"max_consecutive_rejections": 4},
    }
    value = federation(3, **fields)
    assert held_up(value.state) == ""
    failing = value.state.slots[2].client
    for slot in (0, 1):
        value, _ = step(value, merged(value, Job(slot, 1)))
    assert held_up(value.state) == f"2 of 3 slots wait for {failing} (job 2-1)"
    # when it fails again and again
    for generation in range(1, 4):
        abandoned = Abandoned(Job(2, generation), "failed 3 times, at last: no data")
        value, decision = step(value, abandoned)
        assert decision.opened[0].client == failing
        assert due_stop(value, abandoned) is None
    # then
    assert held_up(value.state).endswith("(job 2-4); jobs refused in a row: 3")
    last = Abandoned(Job(2, 4), "failed 3 times, at last: no data")
    value, _ = step(value, last)
    stopped = due_stop(value, last)
    assert stopped is not None
    assert stopped.reason.startswith("4 updates in a row were rejected or abandoned")
    told = submission.caution(value.spec)
    assert told is not None
    assert told.startswith("concurrency: all 3 clients are in each round of fedavg")
    assert "until 4 refused jobs in a row end the federation" in told


def test_only_a_round_of_all_clients_is_cautioned_against() -> None:
    assert submission.caution(spec(clients=4, concurrency=3, rule=RULES["fedavg"])) is None
    at_flush = {"name": "fedbuff", "window": 3, "refill": "at_flush"}
    assert submission.caution(spec(clients=3, concurrency=3, rule=at_flush)) is None


# -- slots that wait ----------------------------------------------------------------------------


def test_a_round_closes_when_all_have_reported_and_then_opens_every_slot() -> None:
    value = federation(8, **ROUNDS)
    for number, still_open in [(1, [True, False, True]), (0, [False, False, True])]:
        value, decision = step(value, merged(value, Job(number, 1)))
        assert (is_open(value), decision.opened, decision.version) == (still_open, (), 0)
        assert value.standing(Job(number, 1)) == "late"
        assert value.standing(Job(number, 2)) == "ahead"  # nobody can have it yet
    assert [job for job, _ in value.open_jobs()] == [Job(2, 1)]
    value, decision = step(value, merged(value, Job(2, 1)))
    assert is_open(value) == [True] * 3
    assert [opened.job for opened in decision.opened] == [Job(0, 2), Job(1, 2), Job(2, 2)]
    assert [slot.client for slot in value.state.slots] == [o.client for o in decision.opened]
    assert {slot.opened_at for slot in value.state.slots} == {1}
    assert value.state.window == ()


@pytest.mark.parametrize("outcome", ["rejected", "abandoned"])
def test_a_refused_job_reopens_its_own_slot_at_once_under_a_rule_that_waits(outcome: str) -> None:
    value = federation(8, **ROUNDS)
    value, _ = step(value, merged(value, Job(0, 1)))
    job, event = Job(1, 1), Abandoned(Job(1, 1), "failed")
    refused: Event = event if outcome == "abandoned" else Rejected(update(value, job), "norm")
    value, decision = step(value, refused)
    assert is_open(value) == [False, True, True]
    assert [opened.job for opened in decision.opened] == [Job(1, 2)]


def test_a_client_that_has_reported_is_not_sampled_again_in_its_round() -> None:
    value = federation(4, **ROUNDS)
    reported = {value.state.slots[0].client, value.state.slots[1].client}
    for number in (0, 1):
        value, _ = step(value, merged(value, Job(number, 1)))
    for generation in range(1, 40):
        assert value.state.slots[2].client not in reported
        assert sample(value, Job(2, generation + 1)) not in reported
        value, _ = step(value, Abandoned(Job(2, generation), "failed"))


def test_with_as_many_clients_as_slots_a_round_takes_every_client_once() -> None:
    value = found(spec(clients=3, **ROUNDS), clients(3))
    for generation in range(1, 5):
        names = {value.state.slots[number].client for number in range(3)}
        assert len(names) == 3
        for number in range(3):
            value, _ = step(value, merged(value, Job(number, generation)))
    assert value.state.version == 4


def test_fedbuff_at_flush_opens_k_slots_together_and_leaves_the_others_at_work() -> None:
    value = federation(8, rule=RULES["fedbuff at flush"], concurrency=3)
    value, first = step(value, merged(value, Job(2, 1)))
    value, second = step(value, merged(value, Job(0, 1)))
    assert first.opened == ()
    assert [opened.job for opened in second.opened] == [Job(0, 2), Job(2, 2)]
    assert value.state.slots[1].generation == 1
    assert value.state.version == 1


def test_a_stop_closes_waiting_slots_too() -> None:
    value = federation(8, **ROUNDS)
    value, _ = step(value, merged(value, Job(0, 1)))
    value, _ = step(value, Stopped("stopped", "enough", 0))
    assert value.state.slots == ()
    assert value.open_jobs() == []
    assert value.standing(Job(0, 2)) == "late"


def test_what_waits_is_no_open_job_in_the_summary_and_in_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DirectoryStore(tmp_path)
    held = born(store, "fed", **ROUNDS)
    held = deliver(store, held, Job(0, 1))
    summary = summarize(HistoryReader(store, "fed").refresh(), now=1010.0)
    assert (summary.open_jobs, summary.concurrency, summary.merged) == (2, 3, 1)

    observe.status(as_json=True, folder=tmp_path)
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["open_jobs"], listed["merged"]) == (2, 1)


outcomes = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["merge", "merge", "reject", "abandon"])),
    max_size=60,
)


@pytest.mark.parametrize("name", RULES)
@given(outcomes=outcomes, seed=st.integers(0, 1000))
def test_open_and_waiting_slots_are_mc_for_distinct_clients_under_every_rule(
    name: str, outcomes: list[tuple[int, str]], seed: int
) -> None:
    value = federation(6, concurrency=4, rule=RULES[name], seed=seed)
    for pick, kind in outcomes:
        jobs = [job for job, _ in value.open_jobs()]
        assert jobs, "a federation that nobody can move"
        job = jobs[pick % len(jobs)]
        event: Event
        if kind == "merge":
            event = merged(value, job)
        elif kind == "reject":
            event = Rejected(update(value, job), "x")
        else:
            event = Abandoned(job, "x")
        value, decision = step(value, event)
        assert value.standing(job) == "late"
        assert all(value.standing(opened.job) == "open" for opened in decision.opened)
        waiting = [slot for slot in value.state.slots if not slot.is_open]
        holders = [slot.client for slot in value.state.slots if slot.is_open]
        assert len(holders) + len(waiting) == 4
        assert len(set(holders)) == len(holders)
        assert len(waiting) == (len(value.state.window) if name in WAIT else 0)


# -- port: bases, cosines, staleness ------------------------------------------------------------


def deliver(
    store: DirectoryStore, held: Ledger, job: Job, *, base: int | None = None, seed: int = 1
) -> Ledger:
    """Commit one good update as the aggregator does."""
    assert held.replica is not None
    sent = vector(seed, scale=0.01)
    body = encode(sent)
    key = keys.update("fed", job.slot, job.generation, ATTEMPT, sha256(body))
    store.put(key, body)
    version = held.replica.version if base is None else base
    facts = update(held.replica.federation, job, key=key, digest=sha256(body), base_version=version)
    start = None
    if needs_base(held.replica, version):
        template = held.replica.model.template
        start = ledger.read_model(store, find_model(store, "fed", version), template)
    replica, decisions = merge(held.replica, facts, sent, base=start)
    return ledger.commit(store, held, replica, decisions, writer="a", now=1005.0)


PORT = {"rule": RULES["port"] | {"window": 1, "max_staleness": 2}, "concurrency": 3}


def test_ports_cosine_is_between_the_models_way_since_the_base_and_the_update(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    held = born(store, "fed", **PORT)
    for seed in (1, 2):
        held = deliver(store, held, Job(0, seed), seed=seed)
    held = deliver(store, held, Job(1, 1), base=0, seed=3)
    event = held.head.manifest.decisions[0].event
    assert isinstance(event, Merged)
    birth, split = held.birth, 6
    assert birth is not None
    models = [
        ledger.read_model(store, find_model(store, "fed", version), birth.template).floats[:split]
        for version in (0, 2)
    ]
    assert event.cosine == cosine(models[0], models[1], vector(3, scale=0.01).floats[:split])
    assert -1 < event.cosine < 1
    assert [entry.is_new_model for entry in verify(store, "fed")] == [True] * 4


def test_an_update_of_the_newest_version_has_cosine_one_and_needs_no_base() -> None:
    value = federation(8, **PORT)
    replica = Replica(value, vector(0), ())
    assert not needs_base(replica, 0)
    assert update_cosine(replica, update(value, Job(0, 1)), vector(1), None) == 1.0


def test_an_update_beyond_max_staleness_is_rejected_by_its_version_number(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    held = born(store, "fed", **PORT)
    for generation in (1, 2, 3):
        held = deliver(store, held, Job(0, generation), seed=generation)
    held = deliver(store, held, Job(1, 1), base=0, seed=9)
    event = held.head.manifest.decisions[0].event
    assert isinstance(event, Rejected)
    assert event.reason == "too_stale: 3 versions, at most 2 (rule.max_staleness)"
    held = deliver(store, held, Job(2, 1), base=1, seed=10)
    assert held.head.manifest.decisions[0].event.outcome == "merged"


def test_an_update_that_claims_more_examples_than_its_client_has_is_rejected() -> None:
    value = federation(8, **ROUNDS)
    honest, forged = (update(value, Job(0, 1), num_examples=number) for number in (10, 2**52))
    replica = Replica(value, vector(0), ())
    _, decisions = merge(replica, forged, vector(1))
    event = decisions[0].event
    assert isinstance(event, Rejected)
    assert event.reason == f"num_examples: {2**52}, at birth {honest.client} had 10"
    _, decisions = merge(replica, honest, vector(1))
    assert decisions[0].event.outcome == "merged"


def test_a_wrong_cosine_in_the_log_is_found(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    held = born(store, "fed", **PORT)
    held = deliver(store, held, Job(0, 1), seed=1)
    deliver(store, held, Job(1, 1), base=0, seed=2)
    falsify(store, 2, lambda fields: fields["decisions"][0]["event"].update(cosine=0.25))
    with pytest.raises(Mismatch, match="manifest 2, merged: cosine"):
        list(verify(store, "fed"))


# -- every rule, through the log ----------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_every_rules_run_replays_bit_for_bit(name: str, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write_sample_run(store, rule=RULES[name])
    verified = list(verify(store, "fed"))
    last = verified[-1].manifest
    assert last.state.version > 5
    assert sum(entry.is_new_model for entry in verified) == last.state.version + 1


BOUNDED = {"keep": "bounded", "keep_last": 2, "min_age_seconds": 0.0}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("num_merged", [7, 8, 9])
def test_a_collector_leaves_what_every_rule_still_needs(
    name: str, num_merged: int, tmp_path: Path
) -> None:
    """Buffers that are filling, and the bases of updates that port may still merge."""
    store = DirectoryStore(tmp_path)
    held = born(store, "fed", rule=RULES[name], concurrency=3, retention=BOUNDED)
    turns = itertools.cycle(range(3))
    while held.state.num_merged < num_merged:
        assert held.replica is not None
        jobs = {job.slot: job for job, _ in held.replica.federation.open_jobs()}
        number = next(turns)
        if number in jobs:
            held = deliver(store, held, jobs[number], seed=held.state.num_decisions)
    submission = manifests.read_submission(store, "fed")
    policy = submission.spec.retention
    assert isinstance(policy, KeepBounded)
    doomed = list(plan(store, Tended(submission, policy), now=1e12))
    for key in doomed:
        store.delete(key)
    assert doomed

    again = ledger.load(store, submission)  # the window, the buffer and the model are there
    assert again is not None
    assert again.replica is not None
    reach = rule_of(submission.spec).max_staleness
    oldest = max(0, again.replica.version - (reach or 0))
    jobs = [job for job, _ in again.replica.federation.open_jobs()]
    after = deliver(store, again, jobs[0], base=oldest, seed=77)
    assert after.head.manifest.decisions[0].event.outcome == "merged"
    list(verify(store, "fed"))


# -- the divergence guard -----------------------------------------------------------------------


def with_steps(value: Federation, norms: list[float]) -> Federation:
    for norm in norms:
        job = value.open_jobs()[0][0]
        value, _ = step(value, replace(merged(value, job), step_norm=norm))
    return value


def test_a_slow_divergence_that_takes_its_history_along_is_seen_against_the_first_steps() -> None:
    value = federation(8, rule={"name": "fedasync"}, limits={"step_norm_factor": 5})
    growing = [1.05**number for number in range(200)]
    for norm in growing:
        limit = excess_step(value, norm)
        if limit is not None:
            break
        value = with_steps(value, [norm])
    assert limit == pytest.approx(25 * growing[5])
    assert 60 < growing.index(norm) < 80


def test_steps_that_shrink_and_come_back_are_no_divergence() -> None:
    value = federation(8, rule={"name": "fedasync"}, limits={"step_norm_factor": 5})
    value = with_steps(value, [1.0] * 20 + [0.3] * 60)
    assert excess_step(value, 1.4) is None
    assert excess_step(value, 1.6) == pytest.approx(1.5)


# -- the spec -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"rule": {"name": "fedbuff", "window": 5, "refill": "at_flush"}},
            "rule.window: 5 updates never meet while 4 slots .* at most 4, or refill: at_once",
        ),
        ({"rule": {"name": "port"}}, "rule.window: 5 .* at most 4"),
        ({"rule": {"name": "fedasync", "alpha": 1.5}}, "rule.alpha: .*less than or equal to 1"),
        ({"rule": {"name": "fedasync", "staleness": {"kind": "poly"}}}, "rule.staleness.kind"),
        ({"rule": {"name": "fedavg", "server_lr": 2}}, "rule.server_lr: no such field"),
        ({"rule": {"name": "fedfa-param", "fednova": True}}, "rule.fednova: no such field"),
        (
            {"local": {"epochs": 1, "proximal": 100, "optimizer": {"name": "sgd"}}},
            "proximal: 100 times the learning rate 0.01 is 1 or more.*give less than 100",
        ),
        ({"clients": True}, "clients: give a number; YAML reads yes"),
        ({"rule": {"name": "fedbuff", "server_lr": True}}, "rule.server_lr: give a number"),
    ],
)
def test_a_wrong_rule_is_explained(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        parse({"clients": 8} | fields)


def test_every_field_of_a_spec_is_described() -> None:
    schema = parse({"clients": 8}).model_json_schema()
    sections = [schema, *schema["$defs"].values()]
    tags = ("name", "kind", "keep")
    bare = [
        f"{section['title']}.{name}"
        for section in sections
        for name, field in section["properties"].items()
        if "description" not in field and not (name in tags and "const" in field)
    ]
    assert bare == []
