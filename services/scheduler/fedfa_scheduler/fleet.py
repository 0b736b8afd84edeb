"""Every decision of the scheduler. PURE: facts and `now` (monotonic seconds) in, actions out.

`due` says what is to be done now, and says it again until `done` (or a newer fact) confirms it: so
a crash or an outage between any two effects loses nothing. The caller does what is due, in order,
and asks again until nothing is.
"""

from collections import Counter
from dataclasses import dataclass

from fedfa.events import Job
from fedfa.federation import Federation
from fedfa.history import Evaluation
from fedfa.manifests import Manifest, ModelRef
from fedfa.messages import (
    AbandonJob,
    JobFacts,
    JobFailed,
    JobReleased,
    Order,
    StopFederation,
    UpdateReady,
    Work,
)
from fedfa.spec import Submitted
from fedfa.topology import UPDATES, Route, jobs
from fedfa_scheduler.known import Known, abandon, order, stop_of
from fedfa_scheduler.leases import Attempts, Lease, Task

STOP_REPEAT_SECONDS = 5.0
RECENT_LEASES = 3  # a trainer that was silent for so many lease_ttl may be gone
DEFAULT_POOL = "default"  # of work that any trainer can do


# -- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Publish a message; work is None for a StopFederation."""

    message: Order | UpdateReady | AbandonJob | StopFederation
    route: Route
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """See whether the bucket already holds what this work makes; answer with `looked`."""

    federation: str
    work: Work


@dataclass(frozen=True, slots=True)
class FindModel:
    """Find the model of a version that is to be evaluated; answer with `model_found`."""

    federation: str
    work: Work


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Write why a version has no metrics, create-once; answer with `evaluated`."""

    federation: str
    version: int
    error: str


Action = Send | Look | FindModel | RecordFailure


class Fleet:
    def __init__(self, *, lease_ttl_seconds: float, attempts: Attempts) -> None:
        self.lease_ttl_seconds = lease_ttl_seconds
        self.federations: dict[str, Known] = {}
        self._trainers: dict[str, float] = {}  # when each was heard last; the longest ago first
        self._attempts = attempts
        self._settled_at: float | None = None  # None until the event queue is drained
        self._is_behind = False
        self._pools_seen = {DEFAULT_POOL}
        self._short: dict[str, dict[Work, str]] = {}  # pool -> {waiting: attempt} at a low count

    # -- what happened to this scheduler --------------------------------------------------------

    def gap(self) -> None:
        """A start, a lost connection or a long pause: what was known may have changed unheard."""
        self._settled_at = None
        self._short.clear()
        for known in self.federations.values():
            known.is_current = False
            known.stop_sent_at = None
            for lease in known.leases.values():
                lease.after_gap()

    def fell_behind(self) -> None:
        """This scheduler stood still, or was busy, for long: heartbeats wait to be heard.

        It never lost its queue, so nothing else can have happened. Nothing is asked or looked up
        again, which would keep a busy scheduler busy for ever.
        """
        self._is_behind = True

    def caught_up(self, now: float) -> None:
        """Whatever waited is heard; trainers have one more lease_ttl to be heard."""
        if self._is_behind and self._settled_at is not None:
            self._settled_at = now + self.lease_ttl_seconds
        self._is_behind = False

    def drained(self, now: float) -> None:
        """The event queue is empty: from here on trainers have one lease_ttl to be heard."""
        if self._settled_at is None:
            self._settled_at = now + self.lease_ttl_seconds

    def is_settled(self, now: float) -> bool:
        return not self._is_behind and self._settled_at is not None and now >= self._settled_at

    # -- what the bucket says -------------------------------------------------------------------

    def submitted(self, submission: Submitted) -> None:
        known = self.federations.get(submission.federation)
        if known is None or known.submission.uid != submission.uid:
            self.federations[submission.federation] = Known(submission)

    def unborn(self, federation: str, now: float) -> None:
        """It has no manifest. Its InitModel is sent at once unless one may be on its way."""
        known = self.federations[federation]
        is_new = known.is_current or self._settled_at is not None
        known.is_current = True
        work = known.work("init")
        if work not in known.leases:
            self._open(known, work, "init", now, is_new=is_new)

    def manifest(self, value: Federation, manifest: Manifest, now: float) -> None:
        """The newest manifest. Jobs opened since the last one are sent at once."""
        known = self.federations[manifest.federation]
        if manifest.n < known.n or manifest.uid != known.submission.uid:
            return
        is_new, known.is_current = known.is_current, True
        known.learn(value, manifest)
        open_jobs = {
            known.work("train", job.slot, job.generation): slot for job, slot in value.open_jobs()
        }
        for work in list(known.leases):
            if known.leases[work].task != "evaluate" and work not in open_jobs:
                del known.leases[work]
        for work, slot in open_jobs.items():
            if work not in known.leases:
                pool = value.clients[value.index[slot.client]].pool
                lease = self._open(known, work, "train", now, is_new=is_new, pool=pool)
                lease.client, lease.opened_at = slot.client, slot.opened_at
        self._plan_evaluation(known, now, is_new=is_new)

    def evaluated(self, federation: str, evaluation: Evaluation) -> None:
        """evals/{version}.json is there."""
        known = self.federations[federation]
        known.evaluations[evaluation.version] = evaluation
        known.leases.pop(known.work("evaluate", evaluation.version), None)

    def stop_requested(self, federation: str, reason: str) -> None:
        self.federations[federation].stop_request = reason

    def looked(
        self,
        look: Look,
        now: float,
        *,
        update: UpdateReady | None = None,
        has_initial_model: bool = False,
    ) -> bool:
        """What the bucket holds for a piece of work. Says whether its lease expired by that."""
        lease = self._lease(look.federation, look.work)
        if lease is None:
            return False
        lease.must_look = False
        if update is not None:
            lease.delivered(update, now)
        elif self._is_expired(lease, now) and has_initial_model:
            lease.owe(now)  # initialised, but not committed: say it again, nobody failed
            lease.must_look = False
        elif self._is_expired(lease, now):
            silent = now - lease.since
            lease.fail(f"trainer {lease.trainer} was silent for {silent:.0f} s", now)
            lease.must_look = False
            return True
        return False

    def model_found(self, find: FindModel, model: ModelRef | None) -> None:
        """None: that version has no model of its own, so there is nothing to evaluate."""
        lease = self._lease(find.federation, find.work)
        if lease is not None:
            lease.model = model
        if model is None:
            known = self.federations[find.federation]
            known.leases.pop(find.work, None)
            known.due_version = None

    # -- what trainers and the broker say -------------------------------------------------------

    def heard(self, fact: JobFacts, now: float) -> bool:
        """JobStarted, JobHeartbeat, JobFailed or JobReleased. Says whether it was news."""
        self._heard_trainer(fact.trainer, now)
        known = self.federations.get(fact.federation)
        if known is None or known.submission.uid != fact.uid:
            return False
        lease = known.leases.get(fact.work) or self._adopted(known, fact, now)
        if lease is None:
            return False
        self._attempts.outrank(fact.attempt)
        if isinstance(fact, JobFailed):
            known.lacking.pop(fact.trainer, None)
            return lease.failed(fact, now)
        if isinstance(fact, JobReleased):
            if fact.missing is not None:
                known.lacking[fact.trainer] = fact.missing
            return lease.released(fact, now)
        known.lacking.pop(fact.trainer, None)
        return lease.heard(fact, now)

    def is_ahead(self, fact: JobFacts) -> bool:
        """Whether the fact is about work that only a newer look at the bucket can explain."""
        known = self.federations.get(fact.federation)
        if known is None:
            return True
        if known.submission.uid != fact.uid or not known.is_alive or fact.task != "train":
            return False
        if known.value is None:
            return True
        job = Job(fact.slot or 0, fact.generation or 0)
        return known.value.standing(job) == "ahead"

    def counted(self, pool: str, num_ready: int, now: float) -> None:
        """So many messages wait in a pool's queue: are some of the waiting jobs lost?

        Only those that waited through two low counts in a row, and no more than are missing. The
        queue is first in, first out: whoever waited longest is the likeliest to be lost.
        """
        waiting = [lease for lease in self._all_leases() if lease.stage == "queued"]
        waiting = [lease for lease in waiting if lease.pool == pool]
        num_missing = len(waiting) - num_ready
        before = self._short.pop(pool, {})
        if num_missing <= 0:
            return
        self._short[pool] = {lease.work: lease.attempt for lease in waiting}
        lost = [
            lease
            for lease in sorted(waiting, key=lambda lease: lease.since)
            if before.get(lease.work) == lease.attempt and self._may_be_lost(lease, now)
        ]
        for lease in lost[:num_missing]:
            lease.owe(now)
            del self._short[pool][lease.work]

    def open_jobs(self) -> dict[str, int]:
        """The work of each pool that needs a trainer; 0 for a pool that had some before."""
        self._pools_seen |= {lease.pool for lease in self._all_leases()}
        tally = Counter(lease.pool for lease in self._all_leases() if lease.is_open)
        return {pool: tally[pool] for pool in sorted(self._pools_seen)}

    def missing_task(self, known: Known, now: float) -> str | None:
        """The task that every trainer heard recently lacks."""
        recently = now - RECENT_LEASES * self.lease_ttl_seconds
        recent = {name for name, at in self._trainers.items() if at >= recently}
        lacking = sorted(recent & known.lacking.keys())
        return known.lacking[lacking[0]] if lacking and len(lacking) == len(recent) else None

    @property
    def pools(self) -> set[str]:
        """The pools whose queues hold work."""
        return {lease.pool for lease in self._all_leases() if lease.stage == "queued"}

    # -- what is to be done ---------------------------------------------------------------------

    def due(self, now: float, *, unix: float) -> list[Action]:
        """unix: seconds since 1970, for wall-time limits only."""
        actions: list[Action] = []
        for known in self.federations.values():
            stop = stop_of(known, unix)
            if stop is not None:
                if _is_due(known.stop_sent_at, now, STOP_REPEAT_SECONDS):
                    actions.append(Send(stop, UPDATES))
                continue  # whatever was handed out is late now
            if known.is_current:
                self._plan_evaluation(known, now, is_new=True)
            for lease in known.leases.values():
                action = self._next(known, lease, now)
                if action is not None:
                    actions.append(action)
        return actions

    def done(self, sent: Send, now: float) -> None:
        """The broker has it."""
        message, work = sent.message, sent.work
        if work is None:
            self.federations[message.federation].stop_sent_at = now
            return
        lease = self._lease(message.federation, work)
        if lease is None:
            return
        if isinstance(message, Order):
            lease.published(message.attempt, now)
        else:
            lease.sent(now)

    def _next(self, known: Known, lease: Lease, now: float) -> Action | None:
        if self._is_expired(lease, now):
            return Look(known.id, lease.work)
        if lease.stage == "owed" and now < lease.not_before:
            return None
        if lease.stage in ("delivered", "given_up") and not _is_due(
            lease.sent_at, now, self.lease_ttl_seconds
        ):
            return None
        if lease.must_look:
            return Look(known.id, lease.work)
        if lease.stage == "owed":
            return self._hand_out(known, lease)
        if lease.stage == "delivered" and lease.update is not None:
            return Send(lease.update, UPDATES, lease.work)
        if lease.stage == "given_up":
            return self._give_up(known, lease)
        return None

    def _hand_out(self, known: Known, lease: Lease) -> Send | FindModel:
        message = order(known, lease, attempt=self._attempts.next(), ttl=self.lease_ttl_seconds)
        if message is None:
            return FindModel(known.id, lease.work)
        return Send(message, jobs(lease.pool), lease.work)

    def _give_up(self, known: Known, lease: Lease) -> Send | RecordFailure | None:
        if lease.task == "train":
            return Send(abandon(known, lease), UPDATES, lease.work)
        if lease.task == "evaluate":
            return RecordFailure(known.id, lease.work[2], lease.reason())
        return None  # stop_of says it

    def _heard_trainer(self, trainer: str, now: float) -> None:
        self._trainers.pop(trainer, None)
        self._trainers[trainer] = now
        longest_silent = next(iter(self._trainers))
        if self._trainers[longest_silent] < now - RECENT_LEASES * self.lease_ttl_seconds:
            del self._trainers[longest_silent]

    # -- parts ----------------------------------------------------------------------------------

    def _open(
        self,
        known: Known,
        work: Work,
        task: Task,
        now: float,
        *,
        is_new: bool,
        pool: str = DEFAULT_POOL,
    ) -> Lease:
        """A new lease. Unless the work is new to everybody, it may be queued or held already."""
        known.leases[work] = Lease(
            work=work,
            task=task,
            pool=pool,
            client="",
            opened_at=0,
            max_attempts=known.submission.spec.limits.max_attempts,
            stage="owed" if is_new else "queued",
            since=now,
            must_look=not is_new,
        )
        return known.leases[work]

    def _plan_evaluation(self, known: Known, now: float, *, is_new: bool) -> None:
        """At most one evaluation at a time: of the newest version that is due and has none.

        One that must be handed out again gives way to a newer one; one in a queue cannot be
        withdrawn, so it counts as running.
        """
        version = known.wanted_version
        for lease in known.evaluation_leases:
            if lease.stage == "owed" and lease.work[2] != version:
                del known.leases[lease.work]
        if version is None or known.evaluation_leases:
            return
        work = known.work("evaluate", version)
        lease = self._open(known, work, "evaluate", now, is_new=is_new)
        if known.model is not None and known.model.version == version:
            lease.model = known.model

    def _adopted(self, known: Known, fact: JobFacts, now: float) -> Lease | None:
        """An evaluation that runs since before this scheduler's start takes the place of ours."""
        version, leases = fact.version, known.evaluation_leases
        if fact.task != "evaluate" or version is None or version in known.evaluations:
            return None
        if isinstance(fact, JobFailed | JobReleased) or any(lease.attempt for lease in leases):
            return None  # it runs no more; or ours was handed out, and this one is a zombie
        if known.model is None or version > known.model.version:
            return None
        for lease in leases:
            del known.leases[lease.work]
        return self._open(known, fact.work, "evaluate", now, is_new=False)

    def _is_expired(self, lease: Lease, now: float) -> bool:
        return (
            lease.stage == "claimed"
            and self.is_settled(now)
            and now - lease.since > self.lease_ttl_seconds
        )

    def _may_be_lost(self, lease: Lease, now: float) -> bool:
        # A second InitModel costs little and its first answer wins: do not let a newcomer wait.
        may_init = not self._is_behind and self._settled_at is not None
        return self.is_settled(now) or (lease.task == "init" and may_init)

    def _lease(self, federation: str, work: Work) -> Lease | None:
        known = self.federations.get(federation)
        return known.leases.get(work) if known else None

    def _all_leases(self) -> list[Lease]:
        return [lease for known in self.federations.values() for lease in known.leases.values()]


def _is_due(last: float | None, now: float, interval: float) -> bool:
    return last is None or now - last >= interval
