"""The scheduler's decisions, rule by rule: facts and times in, actions out."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fedfa.events import Abandoned, Job, PoolChanged, Stopped
from fedfa.federation import Client, Federation, found, step
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.messages import (
    AbandonJob,
    EvalJob,
    InitModel,
    JobFailed,
    JobHeartbeat,
    JobReleased,
    JobStarted,
    MarkPool,
    StopFederation,
    TrainJob,
    UpdateReady,
    Work,
)
from fedfa.spec import Submission
from fedfa_scheduler.actions import FindModel, Look, RecordFailure, Send
from fedfa_scheduler.fleet import STOP_REPEAT_SECONDS, Fleet
from fedfa_scheduler.leases import MAX_COUNT, MISSING_TASK_DELAY_SECONDS, Attempts
from fedfa_scheduler.status import federations
from tests.unit.builders import DIGEST, UID, spec, update_ready

TTL = 60.0
CREATED_AT = 1000.0


@dataclass
class World:
    """A fleet, its clock, and a bucket of plain values; `settle` does all that is due."""

    fields: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    start_ms: int = 1_764_495_000_000
    updates: dict[tuple[int, int], UpdateReady] = field(default_factory=dict)
    has_initial_model: bool = False
    looks: list[Look] = field(default_factory=list)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    pools: tuple[str, ...] = ("default",)  # of the clients, in turn
    num_clients: int = 8

    def __post_init__(self) -> None:
        self.submission = Submission(
            federation="fed", uid=UID, created_at=CREATED_AT, spec=spec(**self.fields)
        )
        pools = [self.pools[at % len(self.pools)] for at in range(self.num_clients)]
        everyone = tuple(Client(f"client-{at:04d}", 10, pool) for at, pool in enumerate(pools))
        self.value: Federation = found(self.submission.spec, everyone)
        self.n = 0
        self.start()

    def start(self) -> None:
        """A scheduler starts, knowing nothing."""
        self.start_ms += 1000
        attempts = Attempts(start_ms=self.start_ms, random=7)
        self.fleet = Fleet(lease_ttl_seconds=TTL, attempts=attempts)
        self.fleet.gap()
        self.fleet.submitted(self.submission)

    def settle(self) -> list[Any]:
        """Do what is due until nothing is; returns the messages that were sent."""
        sent: list[Any] = []
        for _ in range(100):
            actions = self.fleet.due(self.now, unix=CREATED_AT + self.now)
            if not actions:
                return sent
            for action in actions:
                match action:
                    case Send():
                        sent.append(action.message)
                        self.fleet.done(action, self.now)
                    case Look():
                        self._look(action)
                    case FindModel(_, Work(version=version)):
                        self.fleet.model_found(action, model(version))
                    case RecordFailure(_, work, error):
                        self.evaluate(Evaluation(work.version, 0.0, error=error))
        raise AssertionError(f"never done: {actions}")

    def _look(self, look: Look) -> None:
        self.looks.append(look)
        work = look.work
        if work.activity == "evaluate" and work.version in self.evaluations:
            self.fleet.evaluated("fed", self.evaluations[work.version])
            return
        job = work.slot, work.generation
        update = self.updates.get(job) if work.activity == "train" else None
        self.fleet.looked(look, self.now, update=update, has_initial_model=self.has_initial_model)

    def show_manifest(self, value: Federation | None = None, *, version: int | None = None) -> None:
        """The bucket's newest manifest is seen; version: of the newest model."""
        if value is not None:
            self.value, self.n = value, self.n + 1
        if version is not None:
            self.value = self.value.having(replace(self.value.state, version=version))
        manifest = Manifest(
            federation="fed",
            uid=UID,
            n=self.n,
            previous="",
            writer="a",
            at=0.0,
            decisions=(),
            model=model(self.value.state.version),
            state=self.value.state,
        )
        self.fleet.manifest(self.value, manifest, self.now)

    def evaluate(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.version] = evaluation
        self.fleet.evaluated("fed", evaluation)

    def run_normally(self) -> list[TrainJob]:
        """Born under this scheduler's eyes, version 0 evaluated; returns the first jobs."""
        self.fleet.drained(self.now)
        self.fleet.unborn("fed", self.now)
        self.settle()
        self.now += TTL
        self.show_manifest()
        self.evaluate(Evaluation(0, 0.0, {"accuracy": 0.1}))
        return [message for message in self.settle() if isinstance(message, TrainJob)]

    def reconcile(self, num_ready: int) -> list[Any]:
        self.now += 2.0
        self.fleet.counted({"default": (num_ready, 0)}, self.now)
        return self.settle()

    def live(self, seconds: float, **consumers: int) -> list[Any]:
        """Time goes by, and every pool's queue is looked at; consumers: idle trainers by pool."""
        sent = []
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            counts = {pool: (100, consumers.get(pool, 0)) for pool in self.fleet.pools}
            self.fleet.counted(counts, self.now)
            sent += self.settle()
        return sent

    def commit(self, messages: list[Any]) -> list[Any]:
        """What the aggregator makes of them; returns what the scheduler answers."""
        value = self.value
        for message in messages:
            if isinstance(message, MarkPool):
                assert message.change == value.num_changes(message.pool) + 1
                event = PoolChanged(message.pool, message.change, message.outcome)
                value, _ = step(value, event)
            elif isinstance(message, AbandonJob):
                job = Job(message.slot, message.generation)
                value, _ = step(value, Abandoned(job, message.reason))
        self.show_manifest(value)
        return self.settle()

    def pools_of_open_jobs(self) -> list[str]:
        return sorted(self.value.pool_of(slot.client) for _, slot in self.value.open_jobs())


def model(version: int) -> ModelRef:
    return ModelRef(version, f"fed/models/{version}-{DIGEST[:16]}.safetensors", DIGEST)


def fact(kind: Any, job: Any, *, trainer: str = "trainer-1", **fields: Any) -> Any:
    """What a trainer says about a TrainJob, EvalJob or InitModel that it took."""
    match job:
        case TrainJob():
            task = {"task": "train", "slot": job.slot, "generation": job.generation}
        case EvalJob():
            task = {"task": "evaluate", "version": job.version}
        case _:
            task = {"task": "init"}
    return kind(federation="fed", uid=UID, attempt=job.attempt, trainer=trainer, **task, **fields)


def failed(job: Any, error: str = "out of memory") -> JobFailed:
    answer: JobFailed = fact(JobFailed, job, error=error)
    return answer


def update_of(job: TrainJob) -> UpdateReady:
    return update_ready(
        slot=job.slot, generation=job.generation, attempt=job.attempt, client=job.client
    )


def job_numbers(jobs: list[TrainJob]) -> list[tuple[int, int]]:
    return sorted((job.slot, job.generation) for job in jobs)


# -- handing out ----------------------------------------------------------------------------------


def test_a_new_federation_gets_one_init_model_at_once() -> None:
    world = World()
    world.fleet.drained(world.now)
    world.fleet.unborn("fed", world.now)
    sent = world.settle()
    assert [type(message) for message in sent] == [InitModel]
    world.fleet.unborn("fed", world.now)
    assert world.settle() == []


def test_every_slot_gets_a_job_as_soon_as_the_birth_is_seen() -> None:
    world = World()
    jobs = world.run_normally()
    assert job_numbers(jobs) == [(0, 1), (1, 1), (2, 1)]
    assert {job.client for job in jobs} == {slot.client for slot in world.value.state.slots}


def test_a_job_opened_by_a_newer_manifest_is_sent_at_once_without_listing() -> None:
    world = World()
    world.run_normally()
    world.looks.clear()
    after, _ = step(world.value, Abandoned(Job(1, 1), "too slow"))
    world.show_manifest(after)
    assert job_numbers(world.settle()) == [(1, 2)]
    assert world.looks == []


def test_the_same_or_an_older_manifest_again_sends_nothing() -> None:
    world = World()
    world.run_normally()
    older, n = world.value, world.n
    after, _ = step(older, Abandoned(Job(1, 1), "too slow"))
    world.show_manifest(after)
    world.settle()
    world.show_manifest()
    assert world.settle() == []
    world.value, world.n = older, n
    world.show_manifest()
    assert world.settle() == []


def test_jobs_carry_the_simulated_delay_of_their_client() -> None:
    world = World({"delay": {"distribution": "pareto", "unit_seconds": 2.0}})
    jobs = world.run_normally()
    assert all(job.delay_seconds >= 2.0 for job in jobs)


def test_later_attempts_are_greater_as_text() -> None:
    attempts = Attempts(start_ms=1_764_495_000_000, random=7)
    made = [attempts.next() for _ in range(3)]
    assert made == sorted(made)
    assert made[0] == "1764495000000-00000007-000001"
    attempts.outrank("1764495099999-ffffffff-000009")
    assert attempts.next() > "1764495099999-ffffffff-000009"


def test_attempts_stay_in_order_after_a_million() -> None:
    attempts = Attempts(start_ms=1_764_495_000_000, random=7)
    attempts._count = MAX_COUNT - 1
    last = [attempts.next() for _ in range(3)]
    assert last[0] < last[1] < last[2]


def test_a_message_that_was_not_confirmed_is_due_again() -> None:
    world = World()
    world.fleet.drained(world.now)
    world.fleet.unborn("fed", world.now)
    first = world.fleet.due(world.now, unix=CREATED_AT)
    again = world.fleet.due(world.now, unix=CREATED_AT)
    assert len(first) == len(again) == 1


# -- waiting in the queue ------------------------------------------------------------------------


def test_a_job_may_wait_in_its_queue_for_ever() -> None:
    world = World()
    world.run_normally()
    for _ in range(100):
        assert world.reconcile(num_ready=3) == []


def test_lost_jobs_are_sent_again_after_two_low_counts_and_not_counted_as_failed() -> None:
    world = World()
    jobs = world.run_normally()
    assert world.reconcile(num_ready=1) == []
    again = world.reconcile(num_ready=1)
    assert len(again) == 2
    assert all(job.attempt > max(each.attempt for each in jobs) for job in again)
    leases = world.fleet.federations["fed"].leases.values()
    assert [lease.failures for lease in leases] == [0, 0, 0]


def test_one_low_count_alone_sends_nothing() -> None:
    world = World()
    world.run_normally()
    assert world.reconcile(num_ready=0) == []
    assert world.reconcile(num_ready=3) == []
    assert world.reconcile(num_ready=0) == []


def test_a_job_claimed_between_two_low_counts_is_not_sent_again() -> None:
    world = World()
    jobs = world.run_normally()
    assert world.reconcile(num_ready=2) == []
    world.fleet.heard(fact(JobStarted, jobs[0]), world.now)
    assert world.reconcile(num_ready=2) == []


# -- leases ---------------------------------------------------------------------------------------


def test_a_claimed_job_is_left_alone_while_its_heartbeats_come() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    for _ in range(100):
        world.now += TTL / 3
        world.fleet.heard(fact(JobHeartbeat, job), world.now)
        assert world.settle() == []


def test_a_silent_lease_is_listed_then_sent_again_and_counted() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.now += TTL + 1
    world.looks.clear()
    [again] = world.settle()
    assert (again.slot, again.generation, again.client) == (job.slot, job.generation, job.client)
    assert again.attempt > job.attempt
    assert len(world.looks) == 1
    assert world.fleet.federations["fed"].leases[Work(UID, "train", job.slot, 1)].failures == 1


def test_a_silent_lease_with_a_file_is_announced_every_lease_ttl_and_never_sent_again() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.updates[(job.slot, job.generation)] = update_of(job)
    world.now += TTL + 1
    assert world.settle() == [update_of(job)]
    for _ in range(10):
        world.now += TTL / 2
        assert world.settle() == []
        world.now += TTL / 2
        assert world.settle() == [update_of(job)]


def test_a_failure_after_the_file_is_there_changes_nothing() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.updates[(job.slot, job.generation)] = update_of(job)
    world.fleet.heard(failed(job), world.now)
    assert world.settle() == [update_of(job)]
    world.fleet.heard(failed(job), world.now)
    assert world.settle() == []


def test_a_failed_job_is_sent_again_until_max_attempts_and_then_abandoned() -> None:
    world = World({"limits": {"max_attempts": 3}})
    job = world.run_normally()[0]
    for _ in range(2):
        world.fleet.heard(failed(job), world.now)
        [job] = world.settle()
        assert isinstance(job, TrainJob)
    world.fleet.heard(failed(job, error="no space left"), world.now)
    [abandon] = world.settle()
    assert isinstance(abandon, AbandonJob)
    assert (abandon.slot, abandon.generation) == (job.slot, job.generation)
    assert abandon.reason == "failed 3 times, at last: no space left"


def test_an_abandonment_is_repeated_until_a_manifest_shows_that_the_slot_moved_on() -> None:
    world = World({"limits": {"max_attempts": 1}})
    job = world.run_normally()[0]
    world.fleet.heard(failed(job), world.now)
    world.settle()
    world.now += TTL
    world.looks.clear()
    assert [type(message) for message in world.settle()] == [AbandonJob]
    assert len(world.looks) == 1
    after, _ = step(world.value, Abandoned(Job(job.slot, job.generation), "failed"))
    world.show_manifest(after)
    world.now += 10 * TTL
    assert job_numbers(world.settle()) == [(job.slot, 2)]


def test_an_abandonment_turns_into_an_announcement_when_a_file_shows_up() -> None:
    world = World({"limits": {"max_attempts": 1}})
    job = world.run_normally()[0]
    world.fleet.heard(failed(job), world.now)
    world.settle()
    world.updates[(job.slot, job.generation)] = update_of(job)
    world.now += TTL
    assert world.settle() == [update_of(job)]


def test_a_repeated_failure_message_is_counted_once() -> None:
    world = World({"limits": {"max_attempts": 2}})
    job = world.run_normally()[0]
    world.fleet.heard(failed(job), world.now)
    world.fleet.heard(failed(job), world.now)
    assert [type(message) for message in world.settle()] == [TrainJob]
    world.fleet.heard(failed(job), world.now)
    assert world.settle() == []


def test_a_late_heartbeat_of_an_expired_attempt_does_not_hold_the_job() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.now += TTL + 1
    world.settle()
    assert not world.fleet.heard(fact(JobHeartbeat, job), world.now)


def test_a_released_job_is_sent_again_at_once_and_not_counted() -> None:
    world = World({"limits": {"max_attempts": 1}})
    job = world.run_normally()[0]
    for _ in range(5):
        world.fleet.heard(fact(JobReleased, job, reason="SIGTERM"), world.now)
        [job] = world.settle()
        assert isinstance(job, TrainJob)


LACKS = {"reason": "no such task", "missing": "vision:Big"}


def messages(world: World) -> list[str]:
    [shown] = federations(world.fleet, world.now, troubles={})
    found: list[str] = shown["messages"]
    return found


def test_a_job_handed_back_for_a_missing_task_waits_and_status_says_so() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobReleased, job, pools=("default",), **LACKS), world.now)
    assert world.settle() == []
    assert messages(world) == ["no trainer has task vision:Big"]
    world.now += MISSING_TASK_DELAY_SECONDS
    [again] = world.settle()
    assert (again.slot, again.generation) == (job.slot, job.generation)


def test_status_does_not_complain_while_another_trainer_works() -> None:
    world = World()
    jobs = world.run_normally()
    serves = {"pools": ("default",)}
    world.fleet.heard(fact(JobStarted, jobs[1], trainer="trainer-2", **serves), world.now)
    world.fleet.heard(fact(JobReleased, jobs[0], **serves, **LACKS), world.now)
    assert messages(world) == []


def test_status_complains_of_a_pool_that_lacks_the_task_whatever_other_pools_have() -> None:
    world = World(pools=("north", "south"))
    jobs = world.run_normally()
    pools = {job.slot: world.value.pool_of(job.client) for job in jobs}
    south = next(job for job in jobs if pools[job.slot] == "south")
    north = next(job for job in jobs if pools[job.slot] == "north")
    world.fleet.heard(fact(JobStarted, north, trainer="n", pools=("north",)), world.now)
    world.fleet.heard(fact(JobReleased, south, trainer="s", pools=("south",), **LACKS), world.now)
    assert messages(world) == ["no trainer has task vision:Big in pool south"]


# -- after a start or a gap -----------------------------------------------------------------------


def test_after_a_start_every_open_job_is_listed_and_none_is_sent() -> None:
    world = World()
    world.show_manifest()
    assert world.settle() == []
    assert {look.work for look in world.looks} >= {Work(UID, "train", slot, 1) for slot in range(3)}


def test_after_a_start_a_finished_job_is_announced_at_once() -> None:
    world = World()
    jobs = world.run_normally()
    world.updates[(jobs[1].slot, 1)] = update_of(jobs[1])
    world.start()
    world.show_manifest()
    assert world.settle() == [update_of(jobs[1])]


def test_after_a_start_jobs_that_wait_in_the_queue_are_not_sent_again() -> None:
    world = World()
    world.run_normally()
    world.start()
    world.show_manifest()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.fleet.drained(world.now)
    for _ in range(100):
        assert world.reconcile(num_ready=3) == []


def test_after_a_start_missing_jobs_are_sent_only_after_a_full_lease_ttl() -> None:
    world = World()
    world.run_normally()
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.now += 10 * TTL
    assert world.reconcile(num_ready=0) == []  # the event queue is not drained yet
    assert world.reconcile(num_ready=0) == []
    drained_at = world.now
    world.fleet.drained(world.now)
    sent: list[Any] = []
    while not sent:
        sent = world.reconcile(num_ready=0)
    assert world.now >= drained_at + TTL
    assert job_numbers(sent) == [(0, 1), (1, 1), (2, 1)]


def test_a_job_that_answers_the_roll_call_is_left_alone() -> None:
    world = World()
    jobs = world.run_normally()
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.fleet.heard(fact(JobHeartbeat, jobs[0]), world.now)
    world.fleet.drained(world.now)
    world.now += TTL
    world.fleet.heard(fact(JobHeartbeat, jobs[0]), world.now)
    world.reconcile(num_ready=0)
    sent = world.reconcile(num_ready=0)
    assert job_numbers(sent) == job_numbers(jobs[1:])


def test_no_lease_expires_within_a_lease_ttl_after_a_gap() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.now += 10 * TTL
    world.fleet.gap()
    world.show_manifest()
    assert world.settle() == []
    world.fleet.drained(world.now)
    world.now += TTL - 1
    assert world.settle() == []
    world.now += 2
    assert job_numbers(world.settle()) == [(job.slot, 1)]


def test_a_job_first_seen_after_a_gap_may_have_been_sent_by_another_scheduler() -> None:
    world = World()
    world.run_normally()
    world.fleet.gap()
    after, _ = step(world.value, Abandoned(Job(1, 1), "too slow"))
    world.show_manifest(after)
    assert world.settle() == []
    newer, _ = step(after, Abandoned(Job(2, 1), "too slow"))
    world.show_manifest(newer)
    assert job_numbers(world.settle()) == [(2, 2)]


def test_a_delivered_job_is_announced_again_right_after_a_gap() -> None:
    world = World()
    job = world.run_normally()[0]
    world.updates[(job.slot, 1)] = update_of(job)
    world.fleet.heard(failed(job), world.now)
    world.settle()
    world.fleet.gap()
    world.show_manifest()
    assert world.settle() == [update_of(job)]


def test_a_failure_heard_after_a_start_waits_for_the_count_of_the_queue() -> None:
    world = World()
    jobs = world.run_normally()
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.fleet.heard(failed(jobs[0]), world.now)
    assert world.settle() == []
    assert world.fleet.federations["fed"].leases[Work(UID, "train", jobs[0].slot, 1)].failures == 1


def test_a_failure_delivered_twice_after_a_start_is_counted_once() -> None:
    world = World({"limits": {"max_attempts": 2}})
    jobs = world.run_normally()
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.fleet.heard(failed(jobs[0]), world.now)
    world.fleet.heard(failed(jobs[0]), world.now)
    assert world.settle() == []


def test_a_job_handed_back_before_a_start_waits_for_the_count_of_the_queue() -> None:
    world = World()
    jobs = world.run_normally()
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.fleet.heard(fact(JobReleased, jobs[0], reason="SIGTERM"), world.now)
    assert world.settle() == []


def test_a_heartbeat_delivered_again_after_a_failure_does_not_hold_the_job() -> None:
    world = World()
    job = world.run_normally()[0]
    world.fleet.heard(failed(job), world.now)
    assert not world.fleet.heard(fact(JobHeartbeat, job), world.now)
    assert job_numbers(world.settle()) == [(job.slot, 1)]


# -- initialisation -------------------------------------------------------------------------------


def test_an_initialisation_that_fails_max_attempts_times_fails_the_federation() -> None:
    world = World({"limits": {"max_attempts": 2}})
    world.fleet.drained(world.now)
    world.fleet.unborn("fed", world.now)
    [init] = world.settle()
    world.fleet.heard(failed(init), world.now)
    [init] = world.settle()
    world.fleet.heard(failed(init, error="no data"), world.now)
    [stop] = world.settle()
    assert isinstance(stop, StopFederation)
    assert stop.status == "failed"
    assert stop.reason == "the initialisation failed 2 times, at last: no data"
    world.now += STOP_REPEAT_SECONDS
    assert world.settle() == [stop]


def test_an_initialisation_that_waits_for_its_commit_is_repeated_and_not_counted() -> None:
    world = World({"limits": {"max_attempts": 1}})
    world.fleet.drained(world.now)
    world.fleet.unborn("fed", world.now)
    [init] = world.settle()
    world.now += TTL
    world.fleet.heard(fact(JobStarted, init), world.now)
    world.has_initial_model = True
    world.now += TTL + 1
    assert [type(message) for message in world.settle()] == [InitModel]


def test_a_federation_found_at_the_start_is_initialised_without_waiting_for_a_lease_ttl() -> None:
    world = World()
    world.fleet.unborn("fed", world.now)
    assert world.settle() == []
    world.fleet.drained(world.now)
    assert world.reconcile(num_ready=0) == []
    assert [type(message) for message in world.reconcile(num_ready=0)] == [InitModel]


def test_a_stop_before_the_birth_is_sent_instead_of_the_init_model() -> None:
    world = World()
    world.fleet.drained(world.now)
    world.fleet.stop_requested("fed", "changed my mind")
    world.fleet.unborn("fed", world.now)
    [stop] = world.settle()
    assert (stop.status, stop.reason) == ("stopped", "changed my mind")


# -- evaluations ----------------------------------------------------------------------------------


def born(world: World) -> EvalJob:
    world.fleet.drained(world.now)
    world.fleet.unborn("fed", world.now)
    world.settle()
    world.now += TTL
    world.show_manifest()
    [job] = [message for message in world.settle() if isinstance(message, EvalJob)]
    return job


def advanced(world: World, version: int) -> list[Any]:
    world.n += 1
    world.show_manifest(version=version)
    return world.settle()


def test_version_zero_and_every_due_version_are_evaluated() -> None:
    world = World()
    assert born(world).version == 0
    world.evaluate(Evaluation(0, 0.0, {"accuracy": 0.1}))
    assert advanced(world, 9) == []
    [job] = advanced(world, 10)
    assert (job.version, job.key, job.digest) == (10, model(10).key, DIGEST)


def test_one_evaluation_at_a_time_and_older_due_versions_are_skipped() -> None:
    world = World()
    first = born(world)
    world.fleet.heard(fact(JobStarted, first), world.now)
    assert advanced(world, 10) == []
    assert advanced(world, 20) == []
    assert advanced(world, 23) == []
    world.evaluate(Evaluation(0, 0.0, {"accuracy": 0.1}))
    [job] = world.settle()
    assert (job.version, job.key) == (20, model(20).key)


def test_an_expired_evaluation_gives_way_to_a_newer_due_version() -> None:
    world = World()
    first = born(world)
    world.fleet.heard(fact(JobStarted, first), world.now)
    advanced(world, 10)
    world.now += TTL + 1
    [job] = world.settle()
    assert job.version == 10


def test_an_evaluation_that_fails_max_attempts_times_is_recorded_with_its_error() -> None:
    world = World({"limits": {"max_attempts": 2}})
    job = born(world)
    world.fleet.heard(failed(job), world.now)
    [job] = world.settle()
    world.fleet.heard(failed(job, error="no test data"), world.now)
    assert world.settle() == []
    assert world.evaluations[0].error == "failed 2 times, at last: no test data"


def test_an_evaluation_whose_result_exists_is_never_sent_again() -> None:
    world = World()
    job = born(world)
    world.fleet.heard(fact(JobStarted, job), world.now)
    world.evaluations[0] = Evaluation(0, 0.0, {"accuracy": 0.1})
    world.now += TTL + 1
    assert world.settle() == []


def test_after_a_start_a_running_evaluation_takes_the_place_of_the_due_one() -> None:
    world = World()
    running = born(world)
    advanced(world, 10)
    world.start()
    world.show_manifest()
    world.settle()
    world.fleet.heard(fact(JobHeartbeat, running), world.now)
    assert world.settle() == []
    world.evaluate(Evaluation(0, 0.0, {"accuracy": 0.1}))
    assert [job.version for job in world.settle()] == [10]


def test_the_final_version_is_evaluated_after_the_end_and_then_nothing_is_needed() -> None:
    world = World()
    world.run_normally()
    ended, _ = step(world.value, Stopped("finished", "merged 7 updates", 7))
    world.value = ended
    [job] = advanced(world, 7)
    assert job.version == 7
    assert not world.fleet.federations["fed"].needs_nothing
    world.evaluate(Evaluation(7, 0.0, {"accuracy": 0.9}))
    assert world.settle() == []
    assert world.fleet.federations["fed"].needs_nothing


# -- stops ----------------------------------------------------------------------------------------


def test_a_reached_target_stops_the_federation_at_the_evaluated_version() -> None:
    world = World({"stop": {"target": {"metric": "accuracy", "value": 0.93}}})
    world.run_normally()
    advanced(world, 12)
    world.evaluate(Evaluation(10, 0.0, {"accuracy": 0.9333}))
    [stop] = world.settle()
    assert stop.status == "finished"
    assert stop.final_version == 10
    assert stop.reason == "accuracy 0.9333 reached the target 0.93"


def test_a_stop_is_repeated_every_few_seconds_until_a_manifest_shows_it() -> None:
    world = World()
    world.run_normally()
    world.fleet.stop_requested("fed", "enough")
    [stop] = world.settle()
    assert world.settle() == []
    world.now += STOP_REPEAT_SECONDS
    assert world.settle() == [stop]
    ended, _ = step(world.value, Stopped("stopped", "enough", 0))
    world.show_manifest(ended)
    world.now += STOP_REPEAT_SECONDS
    assert world.settle() == []


def test_a_federation_whose_wall_time_is_over_is_finished_with_the_reason() -> None:
    world = World({"stop": {"wall_seconds": 600.0}})
    world.run_normally()
    world.now = 599.0
    assert world.settle() == []
    world.now = 600.0
    [stop] = world.settle()
    assert (stop.status, stop.final_version) == ("finished", None)
    assert stop.reason == "600 s since its submission have passed"


@pytest.mark.parametrize("value", [0.92, 0.0])
def test_an_evaluation_below_the_target_stops_nothing(value: float) -> None:
    world = World({"stop": {"target": {"metric": "accuracy", "value": 0.93}}})
    world.run_normally()
    advanced(world, 10)
    world.evaluate(Evaluation(10, 0.0, {"accuracy": value}))
    assert world.settle() == []


# -- pools ----------------------------------------------------------------------------------------

DOWN_AFTER = 2 * TTL


def two_sites() -> World:
    """Eight clients, every other one at site b; three jobs, none of which was claimed."""
    world = World(pools=("a", "b"))
    world.run_normally()
    world.live(TTL, a=1, b=1)
    assert {"a", "b"} == set(world.pools_of_open_jobs())
    return world


def marked_down(world: World) -> list[Any]:
    """Pool b loses its trainers, and the log shows it; returns what follows."""
    [mark] = world.live(DOWN_AFTER + 4, a=1)[:1]
    assert (mark.pool, mark.outcome) == ("b", "pool_down")
    return world.commit([mark])


def test_a_pool_without_trainers_is_marked_as_down_and_its_unclaimed_jobs_make_room() -> None:
    world = two_sites()
    assert world.live(DOWN_AFTER - 4, a=1) == []
    abandons = marked_down(world)
    assert all(isinstance(message, AbandonJob) for message in abandons)
    assert {message.reason for message in abandons} == {"pool b is down"}
    jobs = world.commit(abandons)
    assert world.pools_of_open_jobs() == ["a", "a", "a"]
    assert {job.generation for job in jobs} == {2}
    assert world.live(DOWN_AFTER, a=1) == []


def test_a_mark_is_repeated_every_few_seconds_until_a_manifest_shows_it() -> None:
    world = two_sites()
    marks = world.live(DOWN_AFTER + 12, a=1)
    assert 2 <= len(marks) <= 4
    assert set(marks) == {marks[0]}


def test_busy_trainers_consume_nothing_and_keep_their_pools_alive() -> None:
    world = two_sites()
    job = next(iter(world.fleet.federations["fed"].leases.values()))
    order = TrainJob(
        federation="fed",
        uid=UID,
        slot=job.work.slot,
        generation=1,
        attempt=job.attempt,
        client=job.client,
        opened_at=0,
        delay_seconds=0.0,
        lease_ttl_seconds=TTL,
    )
    for _ in range(20):
        world.fleet.heard(fact(JobHeartbeat, order, pools=("a", "b")), world.now)
        assert world.live(TTL / 2) == []


def test_with_every_pool_gone_jobs_wait() -> None:
    world = two_sites()
    assert world.live(10 * DOWN_AFTER) == []


def test_a_federation_of_one_pool_waits_for_it() -> None:
    world = World()
    world.run_normally()
    assert world.live(10 * DOWN_AFTER) == []


def test_a_pool_without_work_may_be_scaled_to_nothing() -> None:
    world = World({"concurrency": 1}, pools=("a", "b"))
    world.run_normally()
    [busy] = world.pools_of_open_jobs()
    assert world.live(10 * DOWN_AFTER, **{busy: 1}) == []


def test_a_pool_that_returns_is_marked_as_up_and_may_go_down_again() -> None:
    world = two_sites()
    world.commit(marked_down(world))
    [mark] = world.live(4, a=1, b=1)
    assert (mark.pool, mark.outcome, mark.change) == ("b", "pool_up", 2)
    assert world.commit([mark]) == []
    assert not world.value.is_down("b")
    while "b" not in world.pools_of_open_jobs():
        generation = world.value.state.slots[0].generation
        after, _ = step(world.value, Abandoned(Job(0, generation), "too slow"))
        world.show_manifest(after)
    world.settle()
    [mark, *_] = world.live(DOWN_AFTER + 4, a=1)
    assert (mark.pool, mark.outcome, mark.change) == ("b", "pool_down", 3)


def test_jobs_of_a_dead_pool_wait_when_nobody_else_is_idle() -> None:
    world = World({"concurrency": 6, "seed": 3}, pools=("a", "b"))
    world.run_normally()
    assert world.pools_of_open_jobs() == ["a"] * 3 + ["b"] * 3
    world.live(TTL, a=1, b=1)
    jobs = world.commit(marked_down(world))
    assert {type(job) for job in jobs} == {TrainJob}
    assert world.pools_of_open_jobs() == ["a"] * 4 + ["b"] * 2
    assert world.live(10 * DOWN_AFTER, a=1) == []


def test_a_dead_pool_costs_neither_its_clients_nor_the_federation_any_trouble() -> None:
    world = two_sites()
    world.commit(marked_down(world))
    state = world.value.state
    assert state.num_abandoned > 0
    assert (state.failures_in_a_row, state.trouble, state.set_aside) == (0, {}, {})


def test_a_finished_job_of_a_dead_pool_is_announced_and_not_abandoned() -> None:
    world = two_sites()
    jobs = world.fleet.federations["fed"].leases
    slot = next(lease.work.slot for lease in jobs.values() if lease.pool == "b")
    attempt = next(lease.attempt for lease in jobs.values() if lease.pool == "b")
    client = world.value.state.slots[slot].client
    done = TrainJob(
        federation="fed",
        uid=UID,
        slot=slot,
        generation=1,
        attempt=attempt,
        client=client,
        opened_at=0,
        delay_seconds=0.0,
        lease_ttl_seconds=TTL,
    )
    world.updates[(slot, 1)] = update_of(done)
    assert update_of(done) in marked_down(world)


def test_after_a_gap_no_pool_is_down_before_its_trainers_had_time_to_be_seen() -> None:
    world = two_sites()
    world.now += 10 * DOWN_AFTER  # the scheduler stood still, or had no broker
    world.fleet.gap()
    world.show_manifest()
    assert world.live(10 * DOWN_AFTER, a=1) == []
    world.fleet.drained(world.now)
    assert world.live(TTL + DOWN_AFTER - 4, a=1) == []
    assert [mark.pool for mark in world.live(6, a=1)] == ["b"]


def test_what_was_said_before_a_gap_brings_no_pool_back() -> None:
    world = two_sites()
    world.commit(marked_down(world))
    world.fleet.gap()
    world.show_manifest()
    old = next(iter(world.fleet.federations["fed"].leases.values()))
    heartbeat = JobHeartbeat(
        federation="fed",
        uid=UID,
        task="train",
        slot=old.work.slot,
        generation=1,
        attempt=old.attempt,
        trainer="trainer-1",
        pools=("b",),
    )
    world.fleet.heard(heartbeat, world.now)
    assert world.settle() == []


def test_a_restarted_scheduler_abandons_nothing_before_it_knows_who_holds_what() -> None:
    world = two_sites()
    after, _ = step(world.value, PoolChanged("b", 1, "pool_down"))
    world.value = after
    world.start()
    world.fleet.evaluated("fed", Evaluation(0, 0.0))
    world.show_manifest()
    world.fleet.drained(world.now)
    assert world.live(TTL - 2, a=1) == []
    assert {type(message) for message in world.live(4, a=1)} == {AbandonJob}


def test_a_pool_that_is_down_asks_for_a_trainer_and_status_says_so() -> None:
    world = two_sites()
    world.commit(marked_down(world))
    assert world.fleet.open_jobs() == {"a": 3, "b": 1, "default": 0}
    [shown] = federations(world.fleet, world.now, troubles={})
    assert shown["messages"] == ["pool b is down, it has no trainer"]


# -- what is shown --------------------------------------------------------------------------------


class CountingFleet(Fleet):
    """Counts how many leases are looked at."""

    num_looks = 0

    def _next(self, *arguments: Any) -> Any:
        self.num_looks += 1
        return super()._next(*arguments)


def test_what_a_message_costs_does_not_grow_with_the_number_of_jobs() -> None:
    world = World({"concurrency": 500, "clients": 600}, num_clients=600)
    attempts = Attempts(start_ms=world.start_ms, random=8)
    fleet = world.fleet = CountingFleet(lease_ttl_seconds=TTL, attempts=attempts)
    fleet.gap()
    fleet.submitted(world.submission)
    jobs = world.run_normally()
    for job in jobs:
        fleet.heard(fact(JobStarted, job), world.now)
    world.settle()
    fleet.num_looks = 0
    for job in jobs:
        world.now += TTL / 4 / len(jobs)
        fleet.heard(fact(JobHeartbeat, job), world.now)
        assert world.settle() == []
    assert fleet.num_looks <= 2 * len(jobs)
    world.now += TTL + 1
    again = world.settle()
    assert len(again) == len(jobs)


def test_open_jobs_counts_what_needs_a_trainer_and_not_what_is_delivered() -> None:
    world = World()
    job = world.run_normally()[0]
    assert world.fleet.open_jobs() == {"default": 3}
    world.updates[(job.slot, 1)] = update_of(job)
    world.fleet.heard(failed(job), world.now)
    world.settle()
    assert world.fleet.open_jobs() == {"default": 2}


def test_a_fact_about_a_job_that_is_not_open_yet_asks_for_another_look() -> None:
    world = World()
    job = world.run_normally()[0]
    later = job.model_copy(update={"generation": 2})
    assert world.fleet.is_ahead(fact(JobStarted, later))
    assert not world.fleet.is_ahead(fact(JobStarted, job))
