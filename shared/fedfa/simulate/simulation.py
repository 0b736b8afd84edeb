"""A federation on a virtual clock: the same core, log and files as the services', one process.

A job that opens at time t from version v is decided at t + its client's duration, whatever its
training really takes. Training depends on base, client and seed alone, so the open jobs are trained
side by side, ahead of their time. The log and the folder hold all there is to know: a run that was
interrupted anywhere goes on to the same bytes.
"""

import heapq
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedfa import history, keys, manifests, retention
from fedfa import ledger as ledgers
from fedfa.canonical import canonical_json, sha256
from fedfa.delays import delay_seconds
from fedfa.errors import AlreadyExists, InvalidSpec, NotFound
from fedfa.events import Abandoned, Decision, Job, Stopped, Update
from fedfa.federation import Slot, is_evaluation_due
from fedfa.ledger import Ledger
from fedfa.log import Evaluation, Manifest, ModelRef
from fedfa.replica import Replica, decide, merge, needs_base
from fedfa.sections import KeepBounded, Stop
from fedfa.simulate.durations import train_seconds
from fedfa.simulate.orders import (
    Check,
    Evaluate,
    Evaluated,
    Initialise,
    Measure,
    NotFinite,
    Train,
    Trained,
)
from fedfa.simulate.workers import Workers, usable_cores
from fedfa.spec import FederationSpec, Submission
from fedfa.stops import target_stop, time_is_up
from fedfa.store import DirectoryStore
from fedfa.submission import check_id

WRITER = "simulator"
ATTEMPT = "0000000000000-00000000-000001"  # every job succeeds or fails the same way each time
BEFORE_ALL = float("-inf")
AFTER_ALL = float("inf")  # by which all files are old: on a virtual clock none is young
SWEEP_EVERY = 25  # commits between two looks for files that retention lets go


@dataclass(frozen=True, slots=True)
class Clock:
    """What the virtual time of a run follows from, beside its spec; simulation.json holds it.

    step_seconds: of one optimizer step. threads: torch's, on which the last bits depend.
    """

    step_seconds: float
    threads: int


@dataclass(frozen=True, slots=True)
class Flight:
    """An open job in training, and what comes of it.

    turn: decisions are taken in this order. Among equal times, the longest open job goes first.
    """

    turn: tuple[float, int, int]  # decided at (unix seconds), manifest that opened it, slot
    job: Job
    base: ModelRef
    answer: Future[Trained]


def submit(store: DirectoryStore, spec: FederationSpec, federation: str) -> Submission:
    """Create spec.json, or find the same one there: then the run goes on.

    Another spec there that came to no version 0 was wrong: it gives way. The uid follows from the
    spec, so that two runs of one spec write the same bytes.
    """
    fields = canonical_json(spec.model_dump(mode="json"))
    submission = Submission(
        federation=check_id(federation),
        uid=sha256(fields.encode())[:32],
        created_at=0.0,  # where the virtual clock starts
        spec=spec,
    )
    body = submission.model_dump_json(by_alias=True).encode()
    try:
        store.create(keys.spec(federation), body)
    except AlreadyExists:
        if store.get(keys.spec(federation)) == body:
            return submission
        if store.exists(keys.manifest(federation, manifests.FIRST)):
            raise InvalidSpec(
                f"id: {federation} in {store.name} is a run of another spec; choose another --id "
                "or --out, or delete it"
            ) from None
        store.put(keys.spec(federation), body)
    return submission


def clock_of(
    store: DirectoryStore,
    federation: str,
    workers: Workers,
    *,
    step_seconds: float | None,
    threads: int,
) -> Clock:
    """The run's clock: what it began with, or else this one. step_seconds None: measure it."""
    key = keys.simulation(federation)
    try:
        known = Clock(**json.loads(store.get(key)))
    except NotFound:
        if step_seconds is None:
            step_seconds = workers.submit(Measure(), urgency=(BEFORE_ALL,)).result()
        known = Clock(step_seconds, threads)
        fields = {"step_seconds": known.step_seconds, "threads": known.threads}
        store.create(key, canonical_json(fields).encode())
        return known
    if step_seconds not in (None, known.step_seconds) or threads != known.threads:
        raise InvalidSpec(
            f"{federation} began with --step-seconds {known.step_seconds:g} and --threads "
            f"{known.threads}; go on with these, or choose another --id"
        )
    return known


@contextmanager
def simulation(
    root: Path,
    spec: FederationSpec,
    federation: str,
    *,
    num_workers: int | None = None,
    threads: int = 1,
    step_seconds: float | None = 0.0,
    with_gradient: bool = False,
    task_allow: Sequence[str] = (),
) -> "Iterator[Simulation]":
    """A federation in folder `root`, begun or taken up again, with its workers.

    num_workers None: one for each core that can be used. step_seconds None: measured.
    """
    store = DirectoryStore(root)
    number = min(num_workers or usable_cores(), spec.concurrency)
    workers = Workers(root, federation, number=number, threads=threads, task_allow=task_allow)
    submission = submit(store, spec, federation)
    with workers:
        clock = clock_of(store, federation, workers, step_seconds=step_seconds, threads=threads)
        yield Simulation(store, submission, workers, clock, with_gradient=with_gradient)


def check(spec: FederationSpec, *, task_allow: Sequence[str] = ()) -> None:
    """Build the spec's task, model and clients as for version 0, in a worker, and begin nothing.

    Raises TaskFailed with what a trainer would fail with.
    """
    with tempfile.TemporaryDirectory(prefix="fedfa-") as folder:
        submit(DirectoryStore(Path(folder)), spec, "check")
        with Workers(Path(folder), "check", number=1, threads=1, task_allow=task_allow) as workers:
            workers.submit(Check(), urgency=(BEFORE_ALL,)).result()


class Simulation:
    """One federation in a folder. Iterate over `run()`: each commit as it is made."""

    def __init__(
        self,
        store: DirectoryStore,
        submission: Submission,
        workers: Workers,
        clock: Clock,
        *,
        with_gradient: bool = False,
    ) -> None:
        """with_gradient: evaluations also measure squared_gradient_norm, of the whole objective."""
        self._store = store
        self._submission = submission
        self._workers = workers
        self._clock = clock
        self._with_gradient = with_gradient
        self._flights: list[tuple[tuple[float, int, int], Flight]] = []  # a heap
        self._evaluating: dict[int, tuple[float, ModelRef, Future[Evaluated]]] = {}
        self.evaluations: dict[int, Evaluation] = {}  # by version
        self._num_commits = 0

    @property
    def stop(self) -> Stop:
        return self._submission.spec.stop

    @property
    def created_at(self) -> float:
        return self._submission.created_at

    def run(self) -> Iterator[Ledger]:
        """Run to the end, from wherever the folder's log ends. Raises TaskFailed."""
        ledger = ledgers.load(self._store, self._submission)
        if ledger is None:
            ledger = self._bear()
            self._begin_evaluation(ledger.head.manifest)
            self._take_off(ledger, _opened(ledger.head.manifest))
        else:
            self._go_on(ledger)
        yield ledger
        while ledger.replica is not None:
            ledger = self._next(ledger, ledger.replica)
            self._begin_evaluation(ledger.head.manifest)
            self._take_off(ledger, _opened(ledger.head.manifest))
            self._finish_evaluations(wait=False)
            self._sweep(ledger)
            yield ledger
        self._finish_evaluations()
        self._sweep(ledger)

    # -- one event -------------------------------------------------------------------------------

    def _next(self, ledger: Ledger, replica: Replica) -> Ledger:
        """The next commit: a stop that is due, or the decision about the next update."""
        stop, now = self.stop, ledger.head.manifest.at
        if stop.target is not None:
            self._finish_evaluations()
            reached = target_stop(stop, self.evaluations.values())
            if reached is not None:
                return self._commit(ledger, *decide(replica, reached), now)
        turn, flight = self._flights[0]
        at = turn[0]
        if stop.wall_seconds is not None:
            end = self.created_at + stop.wall_seconds
            if at >= end:
                event = Stopped("finished", time_is_up(stop.wall_seconds), replica.version)
                return self._commit(ledger, *decide(replica, event), max(now, end))
        update = flight.answer.result()
        heapq.heappop(self._flights)
        return self._commit(ledger, *self._decide(replica, flight, update), at)

    def _decide(
        self, replica: Replica, flight: Flight, update: Trained
    ) -> tuple[Replica, tuple[Decision, ...]]:
        if isinstance(update, NotFinite):  # as it would be at every attempt
            return decide(replica, Abandoned(flight.job, update.reason))
        template = replica.model.template
        vector = ledgers.read_vector(self._store, update.key, update.digest, template)
        base = None
        if needs_base(replica, update.base_version):
            base = ledgers.read_model(self._store, flight.base, template)
        return merge(replica, update, vector, base=base)

    def _commit(
        self, ledger: Ledger, replica: Replica, decisions: tuple[Decision, ...], now: float
    ) -> Ledger:
        self._num_commits += 1
        ledger = ledgers.commit(self._store, ledger, replica, decisions, writer=WRITER, now=now)
        manifests.move_head(self._store, ledger.head.manifest)
        return ledger

    # -- jobs ------------------------------------------------------------------------------------

    def _take_off(self, ledger: Ledger, opened: dict[Job, Manifest]) -> None:
        """Have the jobs trained that these manifests opened, if they are open still."""
        for job, slot in _open_jobs(ledger):
            manifest = opened.get(job)
            if manifest is not None:
                assert manifest.model is not None
                assert manifest.model.version == slot.opened_at
                flight = self._flight(ledger, job, slot.client, manifest)
                heapq.heappush(self._flights, (flight.turn, flight))

    def _flight(self, ledger: Ledger, job: Job, client: str, opening: Manifest) -> Flight:
        assert ledger.replica is not None
        assert opening.model is not None
        federation, base = ledger.replica.federation, opening.model
        spec = federation.spec
        training = train_seconds(
            spec,
            federation.clients.named(client),
            step_seconds=self._clock.step_seconds,
        )
        delay = delay_seconds(spec.delay, seed=spec.seed, client=client)
        update = Update(
            job,
            attempt=ATTEMPT,
            client=client,
            key="",
            digest="",
            base_version=base.version,
            num_examples=0,
            num_steps=0,
            loss=0.0,
            trainer=f"slot-{job.slot}",
            started_at=opening.at,
            train_seconds=training,
            delay_seconds=delay,
        )
        turn = (opening.at + (training + delay), opening.n, job.slot)
        return Flight(turn, job, base, self._workers.submit(Train(base, update), urgency=turn))

    def _bear(self) -> Ledger:
        model = self._workers.submit(Initialise(), urgency=(BEFORE_ALL,)).result()
        birth, vector = ledgers.birth_from(self._store.get(model.key))
        reason = ledgers.why_unborn(self._submission, birth)
        now = self.created_at
        if reason is not None:
            return ledgers.stillborn(
                self._store,
                self._submission,
                status="failed",
                reason=reason,
                writer=WRITER,
                now=now,
            )
        return ledgers.bear(
            self._store, self._submission, model, birth, vector, writer=WRITER, now=now
        )

    def _go_on(self, ledger: Ledger) -> None:
        """Take the run up where its log ends: open jobs, and evaluations that are missing."""
        federation = self._submission.federation
        for version in history.evaluated_versions(self._store, federation):
            self.evaluations[version] = history.read_evaluation(self._store, federation, version)
        opened: dict[Job, Manifest] = {}
        for committed in manifests.log(self._store, federation):
            manifest = committed.manifest
            opened |= _opened(manifest)
            self._begin_evaluation(manifest)
        self._take_off(ledger, opened)

    # -- evaluations -----------------------------------------------------------------------------

    def _begin_evaluation(self, manifest: Manifest) -> None:
        """Have the version of this manifest evaluated if it is due and was not already."""
        model = manifest.model
        if (
            model is not None
            and is_evaluation_due(self._submission.spec, manifest.state, model.version)
            and model.version not in self.evaluations
            and model.version not in self._evaluating
        ):
            order = Evaluate(model, self._with_gradient)
            answer = self._workers.submit(order, urgency=(BEFORE_ALL,))
            self._evaluating[model.version] = (manifest.at, model, answer)

    def _finish_evaluations(self, *, wait: bool = True) -> None:
        """Write the results that are there, or all once they are."""
        for version in sorted(self._evaluating):
            at, _, answer = self._evaluating[version]
            if not (wait or answer.done()):
                continue
            federation = self._submission.federation
            fields: dict[str, object] = {"version": version, "at": at, "trainer": WRITER}
            match answer.result():
                case NotFinite(reason):
                    fields |= {"metrics": {}, "error": reason}
                case metrics:
                    fields |= {"metrics": metrics}
            with suppress(AlreadyExists):  # the run was interrupted right here
                key = keys.evaluation(federation, version)
                self._store.create(key, canonical_json(fields).encode())
            self.evaluations[version] = history.read_evaluation(self._store, federation, version)
            del self._evaluating[version]

    # -- retention -------------------------------------------------------------------------------

    def _sweep(self, ledger: Ledger) -> None:
        """Delete what retention lets go, but for what open jobs and evaluations start from."""
        policy = self._submission.spec.retention
        is_due = self._num_commits % SWEEP_EVERY == 0 or ledger.replica is None
        if not isinstance(policy, KeepBounded) or not is_due:
            return
        federation, head = self._submission.federation, ledger.head
        if head.manifest.model is None:
            return
        commits = retention.recent(manifests.backwards(self._store, head), policy.keep_last)
        models = list(self._store.list(keys.models(federation)))
        kept = retention.keep(
            policy,
            self._submission.spec,
            head.manifest,
            commits,
            models,
            now=AFTER_ALL,
            evaluation_of=self.evaluations.get,
        )
        awaited = {model.key for _, model, _ in self._evaluating.values()}
        awaited |= {flight.base.key for _, flight in self._flights}  # also to go on after a kill
        listing = [*models, *self._store.list(keys.updates(federation))]
        for key in retention.deletable(kept, listing, now=AFTER_ALL):
            if key not in awaited:
                self._store.delete(key)


def _open_jobs(ledger: Ledger) -> list[tuple[Job, Slot]]:
    return [] if ledger.replica is None else ledger.replica.federation.open_jobs()


def _opened(manifest: Manifest) -> dict[Job, Manifest]:
    """The jobs that a manifest opened."""
    if manifest.n == manifests.FIRST:
        slots = enumerate(manifest.state.slots)
        return {Job(number, slot.generation): manifest for number, slot in slots}
    return {one.job: manifest for decision in manifest.decisions for one in decision.opened}
