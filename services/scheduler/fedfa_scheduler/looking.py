"""What the bucket shows, told to the fleet: everything in turn, one federation, a piece of work.

Nothing is written and nothing is decided here. What cannot be read is a trouble of its federation
until it can, also where the store does not answer for one object; an outage of the whole store is
raised, as StoreUnavailable.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fedfa import history, keys, manifests
from fedfa.errors import FedfaError, InvalidInput, NotFound, StoreUnavailable
from fedfa.failpoints import reach
from fedfa.log import Manifest
from fedfa.messages import EvalReady, ModelReady
from fedfa.spec import Submission
from fedfa.store import ObjectStore, require_answer
from fedfa.submission import ID
from fedfa_scheduler import bucket
from fedfa_scheduler.actions import FindModel, Look
from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.known import Known

logger = logging.getLogger(__name__)


class Lookout:
    """beat is told of every look; clock gives monotonic seconds."""

    def __init__(
        self,
        store: ObjectStore,
        fleet: Fleet,
        *,
        discover_interval_seconds: float,
        beat: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.troubles: dict[str, str] = {}  # federation -> what is wrong with its objects
        self._store, self._fleet = store, fleet
        self._discover_interval_seconds = discover_interval_seconds
        self._beat, self._clock = beat, clock
        self._discover_at = float("-inf")
        self._unseen: deque[Callable[[], None]] | None = None  # of the round under way
        self._must_see_all = True  # after a gap: in one go, before anything is done
        self._gone: set[str] = set()  # uids whose manifests were deleted, and whose spec is there
        self._unanswered: set[str] = set()  # federations that the next round reads: `no_answer`

    # -- at everything --------------------------------------------------------------------------

    def start_over(self) -> None:
        """After a start or a gap: the next round begins anew, searches, and ends in one go."""
        self._unseen, self._must_see_all = None, True
        self.search_soon()

    def search_soon(self) -> None:
        """The next round looks for new federations too."""
        self._discover_at = float("-inf")

    def go_round(self, *, seconds: float) -> bool:
        """Look at one federation after the other for so long; says whether all were seen."""
        if self._unseen is None:
            self._unseen = deque(self._looks())
            self._unanswered.clear()
        until = self._clock() + seconds
        while self._unseen:
            self._beat()
            self._unseen[0]()
            self._unseen.popleft()  # after an outage the same one is tried again
            if self._unseen and self._clock() >= until and not self._must_see_all:
                return False
        self._unseen, self._must_see_all = None, False
        return True

    def _looks(self) -> Iterator[Callable[[], None]]:
        """At new federations, where that is due, and at those that are known."""
        if self._clock() >= self._discover_at:
            folders = set(filter(ID.fullmatch, self._store.folders()))
            self._discover_at = self._clock() + self._discover_interval_seconds
            for federation in self.troubles.keys() - folders:
                del self.troubles[federation]
            for federation in sorted(folders):
                yield partial(self._discover, federation)
        for known in self._fleet.federations.values():
            if not known.needs_nothing:
                yield partial(self._observe_again, known)

    def _discover(self, federation: str) -> None:
        """Meet it if it is new, or was deleted and submitted again under the same id."""
        with self._tolerating_no_answer(federation):
            known, submission = self._fleet.federations.get(federation), self._spec_of(federation)
            if submission and (known is None or known.submission.uid != submission.uid):
                self._begin(submission)

    def _observe_again(self, known: Known) -> None:
        if self._fleet.federations.get(known.id) is known:
            with self._tolerating_no_answer(known.id):
                self._observe(known)

    # -- at one federation ----------------------------------------------------------------------

    def meet(self, federation: str) -> None:
        """Read a federation's spec.json, and what became of it so far."""
        if federation in self._unanswered:
            return
        with self._tolerating_no_answer(federation):
            submission = self._spec_of(federation)
            if submission is not None:
                self._begin(submission)

    def follow(self, hint: ModelReady) -> None:
        """Read what it names and nothing else: trainers are waiting for the next jobs."""
        known = self._fleet.federations.get(hint.federation)
        if known is None or not known.is_current or hint.n <= known.n:
            return
        if hint.federation in self._unanswered:
            return
        with self._tolerating_no_answer(hint.federation):
            try:
                self._accept(known, manifests.read(self._store, hint.federation, hint.n).manifest)
            except (NotFound, InvalidInput) as error:
                self._trouble(hint.federation, error)  # the next round will see what there is

    def follow_evaluation(self, hint: EvalReady) -> None:
        if hint.federation in self._unanswered:
            return
        with self._tolerating_no_answer(hint.federation):
            self.look_for_evaluation(hint.federation, hint.version)

    def _begin(self, submission: Submission) -> None:
        federation = submission.federation
        if submission.uid in self._gone and manifests.newest(self._store, federation) is None:
            return  # somebody deletes it, and would not want it to be born again
        self._gone.discard(submission.uid)
        self._fleet.submitted(submission)
        self._observe(self._fleet.federations[federation])

    def _spec_of(self, federation: str) -> Submission | None:
        try:
            submission = manifests.read_submission(self._store, federation)
            if submission.federation != federation:
                raise InvalidInput(f"{keys.spec(federation)}: it names {submission.federation}")
        except NotFound:
            self.troubles.pop(federation, None)  # whatever it was, it is deleted
            return None
        except InvalidInput as error:
            self._trouble(federation, error)
            return None
        return submission

    def _observe(self, known: Known) -> None:
        try:
            if not known.is_current:
                found = bucket.evaluations(self._store, known.id, known=known.evaluations)
                for evaluation in found:
                    self._beat()
                    self._fleet.evaluated(known.id, evaluation)
            if known.stop_request is None and known.is_alive:
                reason = bucket.stop_reason(self._store, known.id)
                if reason is not None:
                    self._fleet.stop_requested(known.id, reason)
            newest = manifests.newest(self._store, known.id, known=max(known.n, manifests.FIRST))
            if newest is not None:
                self._accept(known, newest.manifest)
            elif known.value is not None or self._spec_of(known.id) is None:
                self._lose(known)
                return
            else:
                self._fleet.unborn(known.id, self._clock())
            self.troubles.pop(known.id, None)
        except (InvalidInput, NotFound) as error:
            self._trouble(known.id, error)

    def _accept(self, known: Known, manifest: Manifest) -> None:
        if manifest.uid != known.submission.uid:
            raise InvalidInput(f"{known.id}: manifest {manifest.n} belongs to uid {manifest.uid}")
        value = bucket.value_of(self._store, known.submission, known.value, manifest)
        self._fleet.manifest(value, manifest, self._clock())

    def _lose(self, known: Known) -> None:
        """Its folder was deleted, or is being so: nothing of it can be decided any more."""
        self._fleet.gone(known.id)
        submission = self._spec_of(known.id)
        if submission is not None and submission.uid == known.submission.uid:
            self._gone.add(known.submission.uid)
            self._trouble(known.id, NotFound(f"{known.id}: it has a spec.json and no manifests"))
        else:
            logger.warning("a federation was deleted", extra={"federation": known.id})

    # -- at one piece of work -------------------------------------------------------------------

    def look(self, look: Look, now: float) -> bool:
        """See whether the work is finished, before anything is said about it.

        now: when that was decided, for what a pause since then must not change. Says whether its
        lease expired by what is seen.
        """
        known = self._fleet.federations.get(look.federation)
        if known is None:
            return False  # the look before this one saw that its folder was deleted
        work, update, has_initial_model = look.work, None, False
        if work.activity == "evaluate" and self.look_for_evaluation(known.id, work.version):
            return False
        if work.activity == "train":
            job = work.slot, work.generation
            update = bucket.delivered_update(self._store, known.submission, *job)
            if update is None and look.has_expired:  # it may be decided unheard, and collected
                self._observe(known)
        elif work.activity == "init":
            has_initial_model = bucket.has_initial_model(self._store, look.federation)
        reach("scheduler.looked")
        return self._fleet.looked(look, now, update=update, has_initial_model=has_initial_model)

    def look_for_evaluation(self, federation: str, version: int) -> bool:
        """Says whether it is there."""
        if federation not in self._fleet.federations:
            return False
        evaluation = history.evaluation_or_none(self._store, federation, version)
        if evaluation is None:
            return False
        self._fleet.evaluated(federation, evaluation)
        return True

    def find_model(self, find: FindModel) -> None:
        """Find the model of the version that is to be evaluated."""
        if find.federation not in self._fleet.federations:
            return
        try:
            model = history.find_model(self._store, find.federation, find.work.version)
            self._fleet.model_found(find, model)
        except (NotFound, InvalidInput) as error:
            self._trouble(find.federation, error)
            self._fleet.model_found(find, None)

    # -- what cannot be read --------------------------------------------------------------------

    def no_answer(self, federation: str, error: StoreUnavailable) -> None:
        """The store did not answer for an object of this federation: what of all others?

        If it answers for them, only hints about this federation are passed over, until the next
        round reads it again: each try takes as long as an outage may. Raises StoreUnavailable.
        """
        require_answer(self._store)
        self._unanswered.add(federation)
        self._trouble(federation, error)

    @contextmanager
    def _tolerating_no_answer(self, federation: str) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            self.no_answer(federation, error)

    def _trouble(self, federation: str, error: FedfaError) -> None:
        if self.troubles.get(federation) != str(error):
            self.troubles[federation] = str(error)
            logger.error("trouble with the bucket", extra={"reason": str(error)})
