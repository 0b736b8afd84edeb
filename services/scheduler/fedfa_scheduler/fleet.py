"""Every decision of the scheduler. PURE: facts and `now` (monotonic seconds) in, actions out.

`due` says what is to be done now, and says it again until `done` (or a newer fact) confirms it: so
a crash or an outage between any two effects loses nothing. The caller does what is due, in order,
and asks again until nothing is.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial

from fedfa.events import Job
from fedfa.federation import Federation
from fedfa.history import Evaluation
from fedfa.manifests import Manifest, ModelRef
from fedfa.messages import (
    JobFacts,
    JobFailed,
    JobReleased,
    MarkPool,
    Order,
    UpdateReady,
    Work,
)
from fedfa.pools import DEFAULT_POOL
from fedfa.spec import Submitted
from fedfa.topology import UPDATES
from fedfa_scheduler.actions import Action, FindModel, Look, Send, is_due, next_action
from fedfa_scheduler.agenda import Agenda
from fedfa_scheduler.known import Known, stop_of
from fedfa_scheduler.leases import Attempts, Lease, Task
from fedfa_scheduler.pools import Pools, marks, stranded
from fedfa_scheduler.queues import Shortages
from fedfa_scheduler.trainers import Trainers, note_lack

STOP_REPEAT_SECONDS = 5.0  # of a StopFederation or MarkPool that no manifest shows yet
POOL_DOWN_LEASES = 2  # a pool is down after so many lease_ttl, unless the settings say otherwise
REVIEW_SECONDS = 1.0  # how often a federation's clocks are looked at
MAX_ACTIONS = 500  # due at once: what is asked for again after each of them must stay small
RECENT_LEASES = 3  # a trainer that was silent for so many lease_ttl may be gone


class Fleet:
    def __init__(
        self,
        *,
        lease_ttl_seconds: float,
        attempts: Attempts,
        pool_down_after_seconds: float | None = None,
    ) -> None:
        self.lease_ttl_seconds = lease_ttl_seconds
        self._pools = Pools(
            lives_seconds=lease_ttl_seconds,
            down_after_seconds=pool_down_after_seconds or POOL_DOWN_LEASES * lease_ttl_seconds,
        )
        self.federations: dict[str, Known] = {}
        self.trainers = Trainers(recent_seconds=RECENT_LEASES * lease_ttl_seconds)
        self._attempts = attempts
        self._settled_at: float | None = None  # None until the event queue is drained
        self._is_behind = False
        self._reviews: Agenda[str] = Agenda()  # of federations
        self._leases: Agenda[tuple[str, Work]] = Agenda()
        self._pools_seen = {DEFAULT_POOL}
        self._shortages = Shortages()

    # -- what happened to this scheduler --------------------------------------------------------

    def gap(self) -> None:
        """A start, a lost connection or a long pause: what was known may have changed unheard."""
        self._settled_at = None
        self._shortages.forget()
        for known in self.federations.values():
            known.is_current = False
            known.stop_sent_at = None
            known.marked_at.clear()
            for lease in known.leases.values():
                lease.after_gap()
        self._touch_all()

    def fell_behind(self) -> None:
        """This scheduler stood still, or was busy, for long: heartbeats wait to be heard.

        It never lost its queue, so nothing else can have happened. Nothing is asked or looked up
        again, which would keep a busy scheduler busy for ever.
        """
        self._is_behind = True

    def caught_up(self, now: float) -> None:
        """Whatever waited is heard; trainers have one more lease_ttl to be heard."""
        if not self._is_behind:
            return
        self._is_behind = False
        if self._settled_at is not None:
            self._settled_at = now + self.lease_ttl_seconds
            self._touch_all()

    def drained(self, now: float) -> None:
        """The event queue is empty: from here on trainers have one lease_ttl to be heard."""
        if self._settled_at is None:
            self._settled_at = now + self.lease_ttl_seconds
            self._touch_all()

    def is_settled(self, now: float) -> bool:
        return self._hears_now and self._settled_at is not None and now >= self._settled_at

    @property
    def _hears_now(self) -> bool:
        """Whether what is heard has just been said, and did not wait through a gap."""
        return not self._is_behind and self._settled_at is not None

    # -- what the bucket says -------------------------------------------------------------------

    def submitted(self, submission: Submitted) -> None:
        known = self.federations.get(submission.federation)
        if known is None or known.submission.uid != submission.uid:
            self.federations[submission.federation] = Known(submission)
            self._reviews.touch(submission.federation)

    def gone(self, federation: str) -> None:
        """Its folder was deleted."""
        del self.federations[federation]

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
        self._reviews.touch(known.id)
        if known.is_current and manifest.n == known.n:
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
                pool = value.pool_of(slot.client)
                lease = self._open(known, work, "train", now, is_new=is_new, pool=pool)
                lease.client, lease.opened_at = slot.client, slot.opened_at
        if not known.is_alive:
            for work in known.leases:  # an evaluation may have waited for the end
                self._leases.touch((known.id, work))
        self._plan_evaluation(known, now, is_new=is_new)

    def evaluated(self, federation: str, evaluation: Evaluation) -> None:
        """evals/{version}.json is there."""
        known = self.federations[federation]
        self._reviews.touch(federation)
        known.evaluated(evaluation)
        known.leases.pop(known.work("evaluate", evaluation.version), None)

    def stop_requested(self, federation: str, reason: str) -> None:
        self.federations[federation].stop_request = reason
        self._reviews.touch(federation)

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
        self.trainers.heard(fact, now)
        if self._hears_now:
            for pool in fact.pools:
                self._pools.seen(pool, now)
        known = self.federations.get(fact.federation)
        if known is None or known.submission.uid != fact.uid:
            return False
        lease = self._lease(known.id, fact.work) or self._adopted(known, fact, now)
        if lease is None:
            return False
        self._attempts.outrank(fact.attempt)
        note_lack(known, fact)
        if isinstance(fact, JobFailed):
            return lease.failed(fact, now)
        if isinstance(fact, JobReleased):
            return lease.released(fact, now)
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

    def counted(self, counts: Mapping[str, tuple[int, int]], now: float) -> None:
        """How many messages wait in the queue of each of `pools`, and how many consumers do."""
        unclaimed: dict[str, list[Lease]] = {pool: [] for pool in counts}
        for lease in self._all_leases():
            if lease.is_unclaimed and lease.pool in counts:
                unclaimed[lease.pool].append(lease)
        for pool, (num_ready, num_consumers) in counts.items():
            has_work = bool(unclaimed[pool])
            self._pools.counted(pool, now, has_work=has_work, num_consumers=num_consumers)
            queued = [lease for lease in unclaimed[pool] if lease.stage == "queued"]
            lost = self._shortages.lost(
                pool, queued, num_ready, may_be_lost=partial(self._may_be_lost, now)
            )
            for lease in lost:
                lease.owe(now)
                self._leases.touch((lease.federation, lease.work))
        for federation in self.federations:
            self._reviews.touch(federation)

    def open_jobs(self) -> dict[str, int]:
        """The work of each pool that needs a trainer; 0 for a pool that had some before.

        A pool that is down gets no work before it has a trainer again: it asks for one.
        """
        tally = Counter(lease.pool for lease in self._all_leases() if lease.is_open)
        for pool in self.pools_down():
            tally[pool] = max(1, tally[pool])
        self._pools_seen |= tally.keys()
        return {pool: tally[pool] for pool in sorted(self._pools_seen)}

    def pools_down(self) -> set[str]:
        """The pools whose clients are not sampled, in any federation."""
        values = [known.value for known in self.federations.values() if known.is_alive]
        return {
            name
            for value in values
            if value is not None
            for name, pool in value.state.pools.items()
            if pool.down
        }

    @property
    def pools(self) -> set[str]:
        """The pools to count: their queues hold work, or a federation depends on their life."""
        pools = {lease.pool for lease in self._all_leases() if lease.stage == "queued"}
        for known in self.federations.values():
            if known.is_alive and len(known.pools) > 1:
                pools |= known.pools
        return pools

    # -- what is to be done ---------------------------------------------------------------------

    def due(self, now: float, *, unix: float) -> list[Action]:
        """unix: seconds since 1970, for wall-time limits only."""
        actions: list[Action] = []
        for federation in self._reviews.due(now):
            known = self.federations.get(federation)
            sends = [] if known is None else self._review(known, now, unix)
            if not sends:
                is_watched = known is not None and known.is_alive
                self._reviews.put_off(federation, now + REVIEW_SECONDS if is_watched else None)
            actions += sends
        for federation, work in self._leases.due(now):
            if len(actions) >= MAX_ACTIONS:
                break
            known = self.federations.get(federation)
            lease = known.leases.get(work) if known else None
            if known is None or lease is None:
                self._leases.put_off((federation, work), None)
                continue
            is_late = stop_of(known, unix) is not None  # whatever was handed out
            action = None if is_late else self._next(known, lease, now)
            if action is not None:
                actions.append(action)
            else:
                self._leases.put_off((federation, work), self._look_again_at(lease, now))
        return actions

    def _review(self, known: Known, now: float, unix: float) -> list[Send]:
        """What the whole federation calls for."""
        stop = stop_of(known, unix)
        if stop is not None:
            is_quiet = is_due(known.stop_sent_at, now, STOP_REPEAT_SECONDS)
            return [Send(stop, UPDATES)] if is_quiet else []
        if known.is_current:
            self._plan_evaluation(known, now, is_new=True)
        since = self._settled_at if self.is_settled(now) else None
        for lease in stranded(known, self._pools, now) if since is not None else ():
            lease.give_up(f"pool {lease.pool} is down", now)
            self._leases.touch((known.id, lease.work))
        return [
            Send(mark, UPDATES)
            for mark in marks(known, self._pools, now, since=since)
            if is_due(known.marked_at.get(mark.pool), now, STOP_REPEAT_SECONDS)
        ]

    def _next(self, known: Known, lease: Lease, now: float) -> Action | None:
        if self._is_expired(lease, now):
            return Look(known.id, lease.work)
        ttl = self.lease_ttl_seconds
        return next_action(known, lease, now, attempts=self._attempts, ttl=ttl)

    def _look_again_at(self, lease: Lease, now: float) -> float:
        """When time alone may call for something about this lease."""
        if lease.stage == "owed" and lease.not_before > now:
            return lease.not_before
        if lease.stage == "claimed" and self._settled_at is not None and self._hears_now:
            return max(lease.since + self.lease_ttl_seconds, self._settled_at)
        if lease.stage in ("delivered", "given_up") and lease.sent_at is not None:
            return lease.sent_at + self.lease_ttl_seconds
        return now + self.lease_ttl_seconds

    def done(self, sent: Send, now: float) -> None:
        """The broker has it."""
        message, work = sent.message, sent.work
        if message.federation not in self.federations:
            return
        if isinstance(message, MarkPool):
            self.federations[message.federation].marked_at[message.pool] = now
            return
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
        self._leases.touch((known.id, work))
        known.leases[work] = Lease(
            federation=known.id,
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

    def _may_be_lost(self, now: float, lease: Lease) -> bool:
        # A second InitModel costs little and its first answer wins: do not let a newcomer wait.
        return self.is_settled(now) or (lease.task == "init" and self._hears_now)

    def _lease(self, federation: str, work: Work) -> Lease | None:
        """The lease, for something that may change what it calls for."""
        known = self.federations.get(federation)
        if known is None or work not in known.leases:
            return None
        lease = known.leases[work]
        self._leases.touch((federation, work))
        if lease.task != "train":
            self._reviews.touch(federation)
        return lease

    def _touch_all(self) -> None:
        for known in self.federations.values():
            self._reviews.touch(known.id)
            for work in known.leases:
                self._leases.touch((known.id, work))

    def _all_leases(self) -> list[Lease]:
        return [lease for known in self.federations.values() for lease in known.leases.values()]
