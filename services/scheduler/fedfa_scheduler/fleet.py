"""Every decision of the scheduler. PURE: facts and `now` (monotonic seconds) in, actions out.

`due` says what is to be done now, and says it again until `done` (or a newer fact) confirms it: so
a crash or an outage between any two effects loses nothing. The caller does what is due, in order,
and asks again until nothing is.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fedfa.federation import Federation
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.messages import JobFacts, MarkPool, Order, StopFederation, UpdateReady, Work
from fedfa.pools import DEFAULT_POOL
from fedfa.spec import Submission
from fedfa.topology import UPDATES
from fedfa_scheduler import evaluations
from fedfa_scheduler.actions import (
    Action,
    FindModel,
    Look,
    RecordFailure,
    Send,
    is_due,
    next_action,
)
from fedfa_scheduler.agenda import Agenda
from fedfa_scheduler.hearing import Hearing
from fedfa_scheduler.known import Known, stop_of
from fedfa_scheduler.leases import Attempts, Lease
from fedfa_scheduler.pools import Pools, marks, pools_down, pools_to_count, stranded
from fedfa_scheduler.queues import Shortages
from fedfa_scheduler.trainers import Trainers, note_lack

STOP_REPEAT_SECONDS = 5.0  # of a StopFederation or MarkPool that no manifest shows yet
POOL_DOWN_LEASES = 2  # a pool is down after so many lease_ttl, unless the settings say otherwise
REVIEW_SECONDS = 1.0  # how often a federation's clocks are looked at
MAX_ACTIONS = 500  # due at once: what is asked for again after each of them must stay small
RECENT_LEASES = 3  # a trainer that was silent for so many lease_ttl may be gone


class Fleet:
    """What this scheduler knows of all federations, pools and trainers.

    pool_down_after_seconds: so long a pool may be silent; None: for a few leases.
    """

    def __init__(
        self,
        *,
        lease_ttl_seconds: float,
        attempts: Attempts,
        pool_down_after_seconds: float | None = None,
    ) -> None:
        self._pools = Pools(
            lives_seconds=lease_ttl_seconds,
            down_after_seconds=pool_down_after_seconds or POOL_DOWN_LEASES * lease_ttl_seconds,
        )
        self.federations: dict[str, Known] = {}
        self.trainers = Trainers(recent_seconds=RECENT_LEASES * lease_ttl_seconds)
        self._attempts = attempts
        self._hearing = Hearing(lease_ttl_seconds)
        self._reviews: Agenda[str] = Agenda()  # of federations
        self._leases: Agenda[tuple[str, Work]] = Agenda()
        self._pools_seen = {DEFAULT_POOL}
        self._shortages = Shortages()

    # -- what happened to this scheduler --------------------------------------------------------

    def gap(self) -> None:
        """A start, a lost connection or a long pause: what was known may have changed unheard."""
        self._hearing = replace(self._hearing, settled_at=None)
        self._shortages.forget()
        for known in self.federations.values():
            known.after_gap()
        self._touch_all()

    def fell_behind(self) -> None:
        """This scheduler stood still, or was busy, for long: heartbeats wait to be heard.

        It never lost its queue, so nothing else can have happened. Nothing is asked or looked up
        again, which would keep a busy scheduler busy for ever.
        """
        self._hearing = replace(self._hearing, is_behind=True)

    def caught_up(self, now: float) -> None:
        """Whatever waited is heard; trainers have one more lease_ttl to be heard."""
        if not self._hearing.is_behind:
            return
        self._hearing = replace(self._hearing, is_behind=False)
        if self._hearing.settled_at is not None:
            self._settle(now)

    def drained(self, now: float) -> None:
        """The event queue is empty: from here on trainers have one lease_ttl to be heard."""
        if self._hearing.settled_at is None:
            self._settle(now)

    def _settle(self, now: float) -> None:
        settled_at = now + self._hearing.lease_ttl_seconds
        self._hearing = replace(self._hearing, settled_at=settled_at)
        self._touch_all()

    # -- what the bucket says -------------------------------------------------------------------

    def submitted(self, submission: Submission) -> None:
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
        is_new = known.is_current or self._hearing.settled_at is not None
        known.is_current = True
        work = known.work("init")
        if work not in known.leases:
            self._touch(known.open(work, now=now, is_new=is_new))

    def manifest(self, value: Federation, manifest: Manifest, now: float) -> None:
        """The newest manifest. Jobs opened since the last one are sent at once."""
        known = self.federations[manifest.federation]
        if manifest.n < known.n or manifest.uid != known.submission.uid:
            return
        self._reviews.touch(known.id)
        if known.is_current and manifest.n == known.n:
            return
        is_new, known.is_current = known.is_current, True
        for lease in known.learn(value, manifest, now, is_new=is_new):
            self._touch(lease)
        if not known.is_alive:
            for lease in known.leases.values():  # an evaluation may have waited for the end
                self._touch(lease)
        self._plan_evaluation(known, now, is_new=is_new)

    def evaluated(self, federation: str, evaluation: Evaluation) -> None:
        """evals/{version}.json is there."""
        self.federations[federation].evaluated(evaluation)
        self._reviews.touch(federation)

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
        return lease is not None and lease.looked(
            now,
            update=update,
            has_initial_model=has_initial_model,
            has_expired=self._hearing.has_expired(lease, now),
        )

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
        if self._hearing.is_prompt:
            for pool in fact.pools:
                self._pools.seen(pool, now)
        known = self.federations.get(fact.federation)
        if known is None or known.submission.uid != fact.uid:
            return False
        lease = self._lease(known.id, fact.work) or evaluations.adopt(known, fact, now)
        if lease is None:
            return False
        self._touch(lease)
        self._attempts.outrank(fact.attempt)
        note_lack(known, fact)
        return lease.heard(fact, now)

    def is_ahead(self, fact: JobFacts) -> bool:
        """Whether the fact is about work that only a newer look at the bucket can explain."""
        known = self.federations.get(fact.federation)
        return known is None or known.is_older_than(fact)

    def counted(self, counts: Mapping[str, tuple[int, int]], now: float) -> None:
        """How many messages wait in the queue of each of `pools`, and how many consumers do."""
        may_be_lost = partial(self._hearing.may_be_lost, now=now)
        unclaimed: dict[str, list[Lease]] = {pool: [] for pool in counts}
        for lease in self._all_leases():
            if lease.is_unclaimed and lease.pool in counts:
                unclaimed[lease.pool].append(lease)
        for pool, (num_ready, num_consumers) in counts.items():
            has_work = bool(unclaimed[pool])
            self._pools.counted(pool, now, has_work=has_work, num_consumers=num_consumers)
            queued = [lease for lease in unclaimed[pool] if lease.stage == "queued"]
            for lease in self._shortages.lost(pool, queued, num_ready, may_be_lost=may_be_lost):
                lease.owe(now)
                self._touch(lease)
        for federation in self.federations:
            self._reviews.touch(federation)

    def open_jobs(self) -> dict[str, int]:
        """The work of each pool that needs a trainer; 0 for a pool that had some before.

        A pool that is down gets no work before it has a trainer again: it asks for one.
        """
        tally = Counter(lease.pool for lease in self._all_leases() if lease.is_open)
        for pool in pools_down(self.federations.values()):
            tally[pool] = max(1, tally[pool])
        self._pools_seen |= tally.keys()
        return {pool: tally[pool] for pool in sorted(self._pools_seen)}

    @property
    def pools(self) -> set[str]:
        """The pools to count."""
        return pools_to_count(self.federations.values())

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
                self._leases.put_off((federation, work), self._hearing.look_again_at(lease, now))
        return actions

    def _review(self, known: Known, now: float, unix: float) -> list[Send]:
        """What the whole federation calls for."""
        stop = stop_of(known, unix)
        if stop is not None:
            is_quiet = is_due(known.stop_sent_at, now, STOP_REPEAT_SECONDS)
            return [Send(stop, UPDATES)] if is_quiet else []
        if known.is_current:
            self._plan_evaluation(known, now, is_new=True)
        since = self._hearing.settled_at if self._hearing.is_settled(now) else None
        for lease in stranded(known, self._pools, now) if since is not None else ():
            lease.give_up(f"pool {lease.pool} is down", now)
            self._touch(lease)
        return [
            Send(mark, UPDATES)
            for mark in marks(known, self._pools, now, since=since)
            if is_due(known.marked_at.get(mark.pool), now, STOP_REPEAT_SECONDS)
        ]

    def _next(self, known: Known, lease: Lease, now: float) -> Action | None:
        attempts, hearing = self._attempts, self._hearing
        return next_action(known, lease, now, attempts=attempts, hearing=hearing)

    def done(self, sent: Send, now: float) -> None:
        """The broker has it."""
        message = sent.message
        known = self.federations.get(message.federation)
        lease = None if sent.work is None else self._lease(message.federation, sent.work)
        if lease is not None and isinstance(message, Order):
            lease.published(message.attempt, now)
        elif lease is not None:
            lease.sent(now)
        elif known is not None and isinstance(message, MarkPool):
            known.marked_at[message.pool] = now
        elif known is not None and isinstance(message, StopFederation):
            known.stop_sent_at = now

    def put_off(self, action: Look | FindModel | RecordFailure, now: float) -> None:
        """The store did not answer for this piece of work: ask again after one lease_ttl."""
        key = (action.federation, action.work)
        self._leases.put_off(key, now + self._hearing.lease_ttl_seconds)

    # -- parts ----------------------------------------------------------------------------------

    def _plan_evaluation(self, known: Known, now: float, *, is_new: bool) -> None:
        lease = evaluations.plan(known, now, is_new=is_new)
        if lease is not None:
            self._touch(lease)

    def _lease(self, federation: str, work: Work) -> Lease | None:
        """The lease, for something that may change what it calls for."""
        known = self.federations.get(federation)
        if known is None or work not in known.leases:
            return None
        lease = known.leases[work]
        self._touch(lease)
        if lease.work.activity != "train":
            self._reviews.touch(federation)
        return lease

    def _touch(self, lease: Lease) -> None:
        self._leases.touch((lease.federation, lease.work))

    def _touch_all(self) -> None:
        for known in self.federations.values():
            self._reviews.touch(known.id)
            for lease in known.leases.values():
                self._touch(lease)

    def _all_leases(self) -> list[Lease]:
        return [lease for known in self.federations.values() for lease in known.leases.values()]
