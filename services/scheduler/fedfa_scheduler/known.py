"""A federation as the scheduler knows it: what calls for its end, and what its leases say. PURE."""

from dataclasses import dataclass, field
from typing import Literal

from fedfa.events import Job, Stopped
from fedfa.federation import Federation, is_evaluation_due
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.messages import Activity, JobFacts, StopFederation, Work
from fedfa.pools import DEFAULT_POOL
from fedfa.spec import Submission
from fedfa.stops import target_stop, time_is_up
from fedfa_scheduler.leases import Lease


@dataclass(slots=True)
class Known:
    """value and model are None before the birth.

    is_current: seen in the bucket since the last start or gap, so that whatever is newer was
    handed out by nobody else. due_version: the newest version that is to be evaluated. pools: of
    its clients. marked_at: pool -> when its change was sent that the log does not show yet.
    """

    submission: Submission
    value: Federation | None = None
    n: int = -1
    model: ModelRef | None = None
    is_current: bool = False
    leases: dict[Work, Lease] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    at_target: Stopped | None = None  # the stop at the first version that reached it
    due_version: int | None = None
    stop_request: str | None = None  # the reason in stop.json
    stop_sent_at: float | None = None
    pools: frozenset[str] = frozenset()
    marked_at: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)  # trainer -> the task that it lacks

    @property
    def id(self) -> str:
        return self.submission.federation

    @property
    def status(self) -> str:
        return "unborn" if self.value is None else self.value.state.status

    @property
    def is_alive(self) -> bool:
        """Not ended: its manifests may still change."""
        return self.status in ("unborn", "running")

    @property
    def needs_nothing(self) -> bool:
        """It has ended, and its final version was evaluated."""
        return not self.is_alive and not self.leases and self.wanted_version is None

    @property
    def wanted_version(self) -> int | None:
        """The version that lacks an evaluation. Older ones are skipped."""
        return None if self.due_version in self.evaluations else self.due_version

    @property
    def evaluation_leases(self) -> list[Lease]:
        return [lease for work, lease in self.leases.items() if work.activity == "evaluate"]

    def work(
        self, activity: Activity, slot: int = 0, generation: int = 0, *, version: int = 0
    ) -> Work:
        return Work(self.submission.uid, activity, slot, generation, version)

    def is_older_than(self, fact: JobFacts) -> bool:
        """Whether the fact is about work that only a newer look at the bucket can explain."""
        work = fact.work
        if self.submission.uid != work.uid or not self.is_alive or work.activity != "train":
            return False
        if self.value is None:
            return True
        return self.value.standing(Job(work.slot, work.generation)) == "ahead"

    def open(self, work: Work, *, now: float, is_new: bool, pool: str = DEFAULT_POOL) -> Lease:
        """A new lease. Unless the work is new to everybody, it may be queued or held already."""
        self.leases[work] = Lease(
            federation=self.id,
            work=work,
            pool=pool,
            client="",
            opened_at=0,
            max_attempts=self.submission.spec.limits.max_attempts,
            stage="owed" if is_new else "queued",
            since=now,
            must_look=not is_new,
        )
        return self.leases[work]

    def evaluated(self, evaluation: Evaluation) -> None:
        """evals/{version}.json is there."""
        self.leases.pop(self.work("evaluate", version=evaluation.version), None)
        self.evaluations[evaluation.version] = evaluation
        stop, first = target_stop(self.submission.spec.stop, [evaluation]), self.at_target
        if stop and (first is None or stop.final_version < first.final_version):
            self.at_target = stop

    def after_gap(self) -> None:
        """What is known may have changed unheard."""
        self.is_current = False
        self.stop_sent_at = None
        self.marked_at.clear()
        for lease in self.leases.values():
            lease.after_gap()

    def learn(
        self, value: Federation, manifest: Manifest, now: float, *, is_new: bool
    ) -> list[Lease]:
        """The newest manifest. Leases of closed jobs go; returns new ones, of opened jobs."""
        before = self.value
        if before is None:
            self.pools = frozenset(client.pool for client in value.clients.ordered)
        else:
            for pool in list(self.marked_at):
                if value.num_changes(pool) != before.num_changes(pool):
                    del self.marked_at[pool]
        self.value, self.n, self.model = value, manifest.n, manifest.model
        self.due_version = _due_version(value, manifest.model)
        return self._follow_jobs(value, now, is_new=is_new)

    def _follow_jobs(self, value: Federation, now: float, *, is_new: bool) -> list[Lease]:
        open_jobs = {
            self.work("train", job.slot, job.generation): slot for job, slot in value.open_jobs()
        }
        for work in list(self.leases):
            if work.activity != "evaluate" and work not in open_jobs:
                del self.leases[work]
        opened = []
        for work, slot in open_jobs.items():
            if work not in self.leases:
                pool = value.pool_of(slot.client)
                lease = self.open(work, now=now, is_new=is_new, pool=pool)
                lease.client, lease.opened_at = slot.client, slot.opened_at
                opened.append(lease)
        return opened


def stop_of(known: Known, unix: float) -> StopFederation | None:
    """The stop that the bucket and the clock call for, until a manifest shows one."""
    if not known.is_alive:
        return None
    stop = known.submission.spec.stop
    init = known.leases.get(known.work("init"))
    if (reached := known.at_target) is not None:
        return _stop(known, reached.status, reached.reason, reached.final_version)
    if known.stop_request is not None:
        return _stop(known, "stopped", known.stop_request)
    if stop.wall_seconds is not None and unix >= known.submission.created_at + stop.wall_seconds:
        reason = time_is_up(stop.wall_seconds)
        return _stop(known, "failed" if known.value is None else "finished", reason)
    if init is not None and init.stage == "given_up":
        return _stop(known, "failed", f"the initialisation {init.reason}")
    return None


def _stop(
    known: Known,
    status: Literal["finished", "stopped", "failed"],
    reason: str,
    final_version: int | None = None,
) -> StopFederation:
    return StopFederation(
        federation=known.id,
        uid=known.submission.uid,
        status=status,
        reason=reason,
        final_version=final_version,
    )


def _due_version(value: Federation, model: ModelRef | None) -> int | None:
    spec, state = value.spec, value.state
    if state.status != "running":
        return state.final_version if model is not None else None
    if model is None:
        return None
    versions = range(model.version, -1, -1)
    return next(version for version in versions if is_evaluation_due(spec, state, version))
