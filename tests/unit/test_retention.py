"""Retention: nothing that is needed, now or later, is ever deleted; what stays is bounded."""

import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedfa import keys, ledger, manifests, retention
from fedfa.canonical import canonical_json, sha256
from fedfa.errors import InvalidSpec, NotFound
from fedfa.events import Abandoned, Decision, Event, Job, Merged, Rejected, Stopped, Update
from fedfa.federation import apply_rule, found, is_evaluation_due, step
from fedfa.ledger import Ledger
from fedfa.log import Birth, Committed, Manifest, ModelRef
from fedfa.replay import Mismatch, verify
from fedfa.replica import decide
from fedfa.sections import KeepBounded
from fedfa.spec import parse
from fedfa.store import DirectoryStore, Download
from fedfa_aggregator.collector import Collector, Tended, plan
from tests.unit.builders import ATTEMPT, TEMPLATE, clients, submitted, update
from tests.unit.logs import merged, run
from tests.unit.sample_run import born, evaluate, write_sample_run
from tests.waiting import wait_for

FED = "fed"


class Folder(RuleBasedStateMachine):
    """A federation's folder under every kind of commit, leftover, evaluation and collector.

    Files hold nothing: what matters is who names them. A collector here may look at any moment
    and delete what it then saw at any later one, as one that stalled would.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="retention-"))
        self.store = DirectoryStore(self.root)
        self.clock = 1000.0
        self.doomed: list[Iterator[str]] = []  # what stalled collectors go on with
        self.evaluating: int | None = None
        self.values: dict[int, float] = {}  # accuracy by version
        self.committed: dict[int, str] = {}  # the model's key by version
        self.deliveries: set[str] = set()
        self.ahead: dict[str, int] = {}  # models whose commit may still come, by key
        self.num_files = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    # -- the story --------------------------------------------------------------------------

    @initialize(
        window=st.integers(1, 3),
        every=st.integers(1, 4),
        keep_last=st.integers(1, 4),
        keep_every=st.sampled_from([None, 0, 2, 3]),
        min_age=st.sampled_from([0.0, 10.0]),
        goal=st.sampled_from([None, 0.8]),
    )
    def submit(
        self,
        window: int,
        every: int,
        keep_last: int,
        keep_every: int | None,
        min_age: float,
        goal: float | None,
    ) -> None:
        stop = {} if goal is None else {"target": {"metric": "accuracy", "value": goal}}
        self.submission = submitted(
            rule={"name": "fedfa-delta", "window": window},
            evaluation={"every_versions": every},
            stop=stop,
            retention={
                "keep": "bounded",
                "keep_last": keep_last,
                "keep_every": keep_every,
                "min_age_seconds": min_age,
            },
        )
        assert isinstance(self.submission.spec.retention, KeepBounded)
        self.policy = self.submission.spec.retention
        self.tended = Tended(self.submission, self.policy)
        self.put(keys.spec(FED), self.submission.model_dump_json(by_alias=True).encode())
        self.value = found(self.submission.spec, clients())
        self.log: list[Committed] = []
        self.put(keys.model(FED, 0, digest_of("another initialiser")))
        self.commit_manifest(())

    @rule(slot=st.integers(0, 2))
    def deliver(self, slot: int) -> None:
        """A file of an open job; a commit may be about it, or about another attempt's."""
        if self.is_running:
            self.write_update(Job(slot, self.value.state.slots[slot].generation))

    @rule(slot=st.integers(0, 2))
    def deliver_late(self, slot: int) -> None:
        if self.is_running and self.value.state.slots[slot].generation > 1:
            self.write_update(Job(slot, self.value.state.slots[slot].generation - 1))

    @rule(behind=st.integers(-1, 3))
    def leave_a_model_without_its_commit(self, behind: int) -> None:
        version = max(0, self.value.state.version - behind)
        key = keys.model(FED, version, digest_of(f"orphan {self.num_files}"))
        self.put(key)
        self.ahead[key] = version

    @rule(
        batch=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["merged"] * 4 + ["rejected", "gone"])),
            min_size=1,
            max_size=4,
        )
    )
    def commit(self, batch: list[tuple[int, str]]) -> None:
        decisions: list[Decision] = []
        for slot, outcome in batch:
            if not self.is_running:
                break
            before = self.value.state.version
            event = self.event(Job(slot, self.value.state.slots[slot].generation), outcome)
            self.value, decision = step(self.value, event)
            decisions.append(decision)
            version = self.value.state.version
            if version > before and self.needs_its_model(version):
                break
        if decisions:
            self.commit_manifest(tuple(decisions))

    @rule()
    def begin_an_evaluation(self) -> None:
        """As the scheduler does: of the newest version that is due, one at a time."""
        due = [version for version in self.committed if self.is_due(version)]
        if self.evaluating is None and max(due) not in self.values:
            self.evaluating = max(due)
            assert self.exists(self.committed[self.evaluating])

    @rule(accuracy=st.floats(0, 1))
    def finish_the_evaluation(self, accuracy: float) -> None:
        version = self.evaluating
        if version is None:
            return
        newer = [v for v in self.committed if v > version and self.is_due(v)]
        self.evaluating = None
        fields: dict[str, Any] = {"version": version, "at": self.clock}
        if len(newer) < retention.WAITING_KEPT:  # else it took longer than retention waits
            self.values[version] = accuracy
            fields["metrics"] = {"accuracy": accuracy}
        self.put(keys.evaluation(FED, version), canonical_json(fields).encode())

    @precondition(lambda self: len(self.log) > 8)
    @rule(at_the_target=st.booleans())
    def stop(self, at_the_target: bool) -> None:
        reached = self.reached()
        version = self.value.state.version
        if self.is_running:
            final = reached if at_the_target and reached is not None else version
            self.value, decision = step(self.value, Stopped("finished", "enough", final))
            self.commit_manifest((decision,))

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @rule()
    def look(self) -> None:
        self.doomed.append(self.look_again())

    @precondition(lambda self: self.doomed)
    @rule(which=st.integers(0, 9), how_many=st.integers(1, 20))
    def go_on_deleting(self, which: int, how_many: int) -> None:
        doomed = self.doomed[which % len(self.doomed)]
        for _, key in zip(range(how_many), doomed, strict=False):
            self.store.delete(key)

    @rule()
    def collect(self) -> None:
        """A whole sweep: then what is left is bounded, whatever came before."""
        self.clock += self.policy.min_age_seconds
        for key in self.look_again():
            self.store.delete(key)
        self.check_bounds()

    # -- what must always hold --------------------------------------------------------------

    @invariant()
    def whatever_can_still_be_needed_is_there(self) -> None:
        if not self.log:
            return
        head = self.log[-1].manifest
        assert head.model is not None
        needed = {entry.key for entry in head.state.window} | {head.model.key}
        needed |= {keys.manifest(FED, n) for n in range(len(self.log))}
        needed |= {keys.spec(FED), keys.head(FED)}
        needed |= {keys.evaluation(FED, version) for version in self.values}
        needed |= {key for key, version in self.ahead.items() if version > head.state.version}
        if self.is_running:
            needed |= {key for key in self.deliveries if self.may_be_decided(key)}
            reached = self.reached()
            needed |= set() if reached is None else {self.committed[reached]}
        if head.state.final_version is not None:
            needed.add(self.committed[head.state.final_version])
        if self.values:
            best = max(sorted(self.values), key=lambda version: self.values[version])
            needed.add(self.committed[best])
        every = self.policy.keep_every
        needed |= {key for version, key in self.committed.items() if every and version % every == 0}
        assert [key for key in needed if not self.exists(key)] == []

    @invariant()
    def the_newest_models_can_be_made_again(self) -> None:
        if not self.log:
            return
        present = {info.key for info in self.store.list(f"{FED}/")}
        head = self.log[-1]
        commits = retention.recent(manifests.backwards(self.store, head), self.policy.keep_last)
        assert retention.missing(commits, present) is None
        oldest = retention.oldest_whole(manifests.backwards(self.store, head), present)
        assert oldest is not None
        assert oldest <= commits[-1].n
        distinct = {commit.model.key for commit in commits}
        assert len(distinct) == min(self.policy.keep_last, len(set(self.committed.values())))

    def check_bounds(self) -> None:
        head, policy = self.log[-1].manifest, self.policy
        models = [info.key for info in self.store.list(keys.models(FED))]
        updates = [info.key for info in self.store.list(keys.updates(FED))]
        version = head.state.version
        in_flight = [key for key in models if (keys.version_of(FED, key) or 0) > version]
        assert set(models) - set(in_flight) <= set(self.committed.values())
        milestones = 1 + version // policy.keep_every if policy.keep_every else 0
        beside = retention.WAITING_KEPT + 3  # the best, the one at the target, the final one
        assert len(models) - len(in_flight) <= policy.keep_last + milestones + beside
        commits = retention.recent(manifests.backwards(self.store, self.log[-1]), policy.keep_last)
        merged = sum(len(commit.merged) for commit in commits)
        open_files = [key for key in updates if self.may_be_decided(key)]
        window = len(commits[-1].window)
        assert len(updates) - len(open_files) <= merged + window

    # -- parts ------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.value.state.status == "running"

    def look_again(self) -> Iterator[str]:
        """A collector's plan. Ages are judged by the clock of its look, whenever it goes on."""
        young = {
            info.key
            for info in self.store.list(f"{FED}/")
            if info.modified > self.clock - self.policy.min_age_seconds
        }
        for key in plan(self.store, self.tended, now=self.clock):
            assert key not in young
            yield key

    def needs_its_model(self, version: int) -> bool:
        return self.is_due(version) or retention.is_milestone(self.policy, version)

    def is_due(self, version: int) -> bool:
        return is_evaluation_due(self.value.spec, self.value.state, version)

    def reached(self) -> int | None:
        """The first evaluated version at the target: the scheduler's stop names it."""
        target = self.submission.spec.stop.target
        good = [v for v, accuracy in self.values.items() if target and accuracy >= target.value]
        return min(good, default=None)

    def may_be_decided(self, key: str) -> bool:
        job = keys.job_of(FED, key)
        slots = self.value.state.slots
        return job is not None and bool(slots) and job[1] >= slots[job[0]].generation

    def event(self, job: Job, outcome: str) -> Event:
        if outcome == "gone":
            return Abandoned(job, "failed")
        sent = self.write_update(job)
        if outcome == "rejected":
            return Rejected(sent, "norm")
        event = Merged(sent, 1.0, None)
        verdict, _ = apply_rule(self.value, event)
        return event if verdict.combination is None else replace(event, step_norm=1.0)

    def write_update(self, job: Job) -> Update:
        digest = digest_of(f"update {self.num_files}")
        key = keys.update(FED, job.slot, job.generation, ATTEMPT, digest)
        self.put(key)
        self.deliveries.add(key)
        return update(self.value, job, key=key, digest=digest)

    def commit_manifest(self, decisions: tuple[Decision, ...]) -> None:
        head = self.log[-1] if self.log else None
        model = head.manifest.model if head else None
        version = self.value.state.version
        if model is None or model.version != version:
            digest = digest_of(f"model {version}")
            model = ModelRef(version, keys.model(FED, version, digest), digest)
            self.put(model.key)
            self.committed[version] = model.key
        manifest = Manifest(
            federation=FED,
            uid=self.submission.uid,
            n=len(self.log),
            previous=head.digest if head else "",
            writer="a",
            at=self.clock,
            decisions=decisions,
            model=model,
            state=self.value.state,
            birth=None if head else Birth(clients(), TEMPLATE, ""),
        )
        self.log.append(manifests.commit(self.store, manifest))
        manifests.move_head(self.store, manifest)

    def put(self, key: str, body: bytes = b"") -> None:
        self.num_files += 1
        self.store.put(key, body)
        os.utime(self.root / key, (self.clock, self.clock))

    def exists(self, key: str) -> bool:
        return self.store.exists(key)


TestFolder = Folder.TestCase
TestFolder.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -- the spec ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"keep": "some"}, "retention.*all.*bounded"),
        ({"keep_last": 5}, "retention.*keep.*missing"),
        ({"keep": "all", "keep_last": 5}, "retention.*keep_last: no such field"),
        ({"keep": "bounded", "keep_last": 0}, "keep_last: .*greater than or equal to 1"),
        ({"keep": "bounded", "keep_every": -1}, "keep_every: .*greater than or equal to 0"),
        ({"keep": "bounded", "min_age_seconds": -1}, "min_age_seconds: .*or equal to 0"),
    ],
)
def test_a_wrong_retention_is_explained(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        parse({"clients": 8, "retention": fields})


def test_by_default_nothing_is_deleted() -> None:
    assert parse({"clients": 8}).retention.keep == "all"


def test_a_version_that_is_kept_for_ever_is_known_by_its_number() -> None:
    bounded = KeepBounded(keep_every=5)
    assert [v for v in range(11) if retention.is_milestone(bounded, v)] == [0, 5, 10]
    assert not retention.is_milestone(KeepBounded(keep_every=0), 5)
    assert not retention.is_milestone(parse({"clients": 8}).retention, 5)


# -- verify, on a log whose old files are gone ------------------------------------------------

WINDOW_OF_3 = {"rule": {"name": "fedfa-delta", "window": 3}}
BOUNDED = {"keep": "bounded", "keep_last": 4, "min_age_seconds": 0.0}
LATER = 1e12  # everything is old


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def collect(store: DirectoryStore, name: str = FED) -> list[str]:
    submission = manifests.read_submission(store, name)
    policy = submission.spec.retention
    assert isinstance(policy, KeepBounded)
    doomed = list(plan(store, Tended(submission, policy), now=LATER))
    for key in doomed:
        store.delete(key)
    return doomed


def test_a_collected_run_verifies_from_the_oldest_model_that_can_be_made_again(
    store: DirectoryStore,
) -> None:
    # given: 30 updates, version 26 is final, versions 23 to 26 are the newest four
    write_sample_run(store, retention=BOUNDED)
    assert len(collect(store)) > 30
    # when
    verified = list(verify(store, FED))
    # then
    assert {entry.replayed_from for entry in verified} == {None, 23}
    assert [entry.manifest.n for entry in verified] == list(range(len(verified)))
    assert sum(entry.is_new_model for entry in verified) == 4
    assert not [entry for entry in verified if entry.is_new_model and entry.replayed_from is None]


def test_a_bounded_run_that_is_still_whole_verifies_from_version_zero(
    store: DirectoryStore,
) -> None:
    write_sample_run(store, retention=BOUNDED)
    assert {entry.replayed_from for entry in verify(store, FED)} == {0}


@pytest.mark.parametrize("lost", ["model", "window", "merged"])
def test_a_file_that_retention_promises_is_missed(store: DirectoryStore, lost: str) -> None:
    # given
    write_sample_run(store, retention=BOUNDED)
    collect(store)
    head = manifests.newest(store, FED)
    assert head is not None
    newest, *_, oldest = retention.recent(manifests.backwards(store, head), 4)
    keys_by_kind = {
        "model": oldest.model.key,
        "window": oldest.window[0],
        "merged": newest.merged[0] if newest.merged else newest.window[-1],
    }
    store.delete(keys_by_kind[lost])
    # when, then
    with pytest.raises(Mismatch, match=f"{keys_by_kind[lost]} is gone, though the newest 4"):
        list(verify(store, FED))


def test_without_bounds_a_lost_file_is_a_mismatch(store: DirectoryStore) -> None:
    write_sample_run(store)
    victim = next(iter(store.list(f"{FED}/updates/"))).key
    store.delete(victim)
    with pytest.raises(Mismatch, match=victim):
        list(verify(store, FED))


def test_decisions_before_the_oldest_model_are_still_checked(store: DirectoryStore) -> None:
    # given: the log claims another norm, long before the first model that is left
    write_sample_run(store, retention=BOUNDED)
    collect(store)
    key = keys.manifest(FED, 3)
    body = store.get(key)
    store.put(key, body.replace(b'"num_merged":3', b'"num_merged":4'))
    assert store.get(key) != body
    # when, then
    with pytest.raises(Mismatch, match="manifest 3: its state does not follow"):
        list(verify(store, FED))


def test_what_is_collected_while_it_verifies_moves_its_start(store: DirectoryStore) -> None:
    # given: a running federation with ten updates, being verified from version 0
    held = run(store, begin_bounded(store), 10)
    verified = verify(store, FED)
    seen = [next(verified), next(verified)]
    # when: it goes on and is collected
    held = run_more(store, held, 10)
    assert collect(store)
    seen.extend(verified)
    # then
    assert seen[0].replayed_from == 0
    version = held.state.version
    assert seen[-1].manifest.state.version == version
    assert seen[-1].replayed_from == version - 3


def begin_bounded(store: DirectoryStore) -> Ledger:
    return born(store, FED, retention=BOUNDED, evaluation={"every_versions": 1000}, **WINDOW_OF_3)


def run_more(store: DirectoryStore, held: Ledger, updates: int) -> Ledger:
    loaded = ledger.load(store, held.submission)
    assert loaded is not None
    return run(store, loaded, updates)


# -- the collector's plan ---------------------------------------------------------------------


def test_the_best_and_the_final_model_stay(store: DirectoryStore) -> None:
    # given: version 5 is the best one by accuracy, 10 the worse one
    write_sample_run(store, retention=BOUNDED, evaluation={"every_versions": 5})
    for version, accuracy in ((5, 0.99), (10, 0.5)):
        fields = {"version": version, "at": 1.0, "metrics": {"accuracy": accuracy}}
        store.put(keys.evaluation(FED, version), canonical_json(fields).encode())
    # when
    collect(store)
    # then
    assert versions(store) == [5, 23, 24, 25, 26]


def test_the_first_model_at_the_target_stays_beside_a_better_one(store: DirectoryStore) -> None:
    # given: of the older versions 10, 15 and 20 are at the target, and 20 is the best
    goal = {"updates": 30, "target": {"metric": "accuracy", "value": 0.5}}
    write_sample_run(store, retention=BOUNDED, stop=goal)
    # when
    collect(store)
    # then: the stop that the scheduler derives from them names version 10
    assert versions(store) == [10, 20, 23, 24, 25, 26]


def test_the_final_model_stays_though_it_is_not_the_newest(store: DirectoryStore) -> None:
    # given
    held = run(store, begin_bounded(store), 20)
    assert held.replica is not None
    replica, decisions = decide(held.replica, Stopped("finished", "reached the target", 4))
    ledger.commit(store, held, replica, decisions, writer="a", now=3.0)
    # when
    collect(store)
    # then
    assert versions(store) == [4, 15, 16, 17, 18]


def test_a_running_federation_keeps_what_waits_for_its_evaluation(store: DirectoryStore) -> None:
    # given: every version is due, 3 was evaluated, the newest four are 15 to 18
    held = born(store, FED, retention=BOUNDED, evaluation={"every_versions": 1}, **WINDOW_OF_3)
    run(store, held, 20)
    evaluate(store, FED, 3, at=1.0)
    # when
    collect(store)
    # then: the evaluated one, and the newest of those that wait
    waiting = range(15 - retention.WAITING_KEPT, 15)
    assert versions(store) == [3, *waiting, 15, 16, 17, 18]


def test_nothing_goes_before_its_time(store: DirectoryStore) -> None:
    # given: files of this moment
    write_sample_run(store, retention={**BOUNDED, "min_age_seconds": 3600.0})
    submission = manifests.read_submission(store, FED)
    policy = submission.spec.retention
    assert isinstance(policy, KeepBounded)
    # when
    soon, later = (
        len(list(plan(store, Tended(submission, policy), now=time.time() + seconds)))
        for seconds in (3000, 4000)
    )
    # then
    assert soon == 0
    assert later > 30


def test_an_unborn_federation_loses_nothing(store: DirectoryStore) -> None:
    # given
    submission = submitted(FED, retention=BOUNDED)
    store.create(keys.spec(FED), submission.model_dump_json(by_alias=True).encode())
    store.put(keys.model(FED, 0, digest_of("version 0")), b"")
    # when, then
    assert collect(store) == []


def test_of_two_initial_models_the_committed_one_stays(store: DirectoryStore) -> None:
    # given: version 0 is kept for ever, and two trainers made one
    rarely = {"every_versions": 1000}
    write_sample_run(store, retention={**BOUNDED, "keep_every": 20}, evaluation=rarely)
    orphan = keys.model(FED, 0, digest_of("another initialiser"))
    store.put(orphan, b"")
    # when
    collect(store)
    # then
    assert not store.exists(orphan)
    assert versions(store) == [0, 20, 23, 24, 25, 26]


def test_a_federation_of_the_same_name_loses_nothing_to_the_old_ones_collector(
    store: DirectoryStore,
) -> None:
    # given: it was deleted and submitted again since the collector met it
    write_sample_run(store, retention=BOUNDED)
    before = manifests.read_submission(store, FED)
    policy = before.spec.retention
    assert isinstance(policy, KeepBounded)
    tended = Tended(before.model_copy(update={"uid": "f" * 32}), policy)
    # when, then
    assert list(plan(store, tended, now=LATER)) == []
    assert tended.has_ended


def versions(store: DirectoryStore) -> list[int]:
    found = (keys.version_of(FED, info.key) for info in store.list(keys.models(FED)))
    return sorted(version for version in found if version is not None)


class Stalling(DirectoryStore):
    """A store whose reader stalls before its first look at an update: then `meanwhile` happens."""

    def __init__(self, root: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(root)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def download(self, key: str, *, max_bytes: int | None = None) -> Download:
        if keys.job_of(FED, key) and self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().download(key, max_bytes=max_bytes)


def test_a_writer_that_stalls_while_it_loads_loads_the_newer_state(
    store: DirectoryStore, tmp_path: Path
) -> None:
    # given: what it was about to read is collected, because others go on
    held = run(store, begin_bounded(store), 5)
    stalling = Stalling(tmp_path, lambda: (run_more(store, held, 20), collect(store)))
    # when
    loaded = ledger.load(stalling, held.submission)
    # then
    assert loaded is not None
    assert loaded.replica is not None
    assert loaded.state.num_merged == 25


class Expiring(DirectoryStore):
    """A store with an expiry rule, which strikes when a manifest is about to be written."""

    def create(self, key: str, body: bytes) -> None:
        for info in self.list(keys.models(FED)):
            self.delete(info.key)
        super().create(key, body)


def test_a_model_that_went_before_its_commit_is_written_again(
    store: DirectoryStore, tmp_path: Path
) -> None:
    # given
    held = run(store, begin_bounded(store), 5)
    assert held.replica is not None
    replica, decisions = merged(store, held.replica, 6)
    # when
    held = ledger.commit(Expiring(tmp_path), held, replica, decisions, writer="a", now=3.0)
    # then
    model = held.head.manifest.model
    assert model is not None
    assert model.version == 4
    assert sha256(store.get(model.key)) == model.digest


def test_a_window_that_is_gone_for_good_cannot_be_loaded(store: DirectoryStore) -> None:
    held = run(store, begin_bounded(store), 5)
    store.delete(held.state.window[0].key)
    with pytest.raises(NotFound, match=held.state.window[0].key):
        ledger.load(store, held.submission)


def test_a_thread_collects_whole_federations_beside_a_damaged_one(store: DirectoryStore) -> None:
    # given
    write_sample_run(store, retention=BOUNDED)
    write_sample_run(store, "damaged", retention=BOUNDED)
    newest = manifests.newest(store, "damaged")
    assert newest is not None
    store.put(keys.manifest("damaged", newest.manifest.n - 1), b"{")
    models, damaged = (len(list(store.list(f"{name}/models/"))) for name in (FED, "damaged"))
    ended = threading.Event()
    # when
    with Collector(store, on_end=ended.set) as collector:
        for name in ("damaged", FED):
            submission = manifests.read_submission(store, name)
            head = manifests.read(store, name, 0)
            collector.tend(Ledger(submission, None, head, None))
        wait_for(lambda: len(list(store.list(f"{FED}/models/"))) == 5)  # with the best one
        assert not ended.is_set()
    # then
    assert ended.is_set()
    assert models > 5
    assert len(list(store.list("damaged/models/"))) == damaged
