"""The invariants of the protocol, in code: what every write, publish and ack must leave true.

It sees all effects of all processes. The first broken rule ends the schedule.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedfa import keys, manifests
from fedfa.canonical import sha256
from fedfa.errors import FedfaError
from fedfa.events import Abandoned, Decision, Job, Merged, PoolChanged, Rejected, job_of
from fedfa.log import Committed
from fedfa.messages import (
    AbandonJob,
    AnyMessage,
    InitReady,
    JobFacts,
    JobFailed,
    JobHeartbeat,
    JobReleased,
    JobStarted,
    MarkPool,
    ModelReady,
    StopFederation,
    TrainJob,
    UpdateReady,
    Work,
)
from fedfa.pools import DEFAULT_POOL
from fedfa.replay import verify
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensor_files import read_header
from fedfa.topology import EVENTS_QUEUE, UPDATES_QUEUE, Route
from tests.simulation.world import Life, World

JobKey = tuple[str, int, int]  # (uid, slot, generation)
ZOMBIE_SECONDS = 5.0  # a trainer that heard that its job is closed has stopped by then
HEARD_SECONDS = 6.0  # by then a scheduler that acts has read what a trainer said
CREATE_ONCE = ("/manifests/", "/models/", "/updates/", "/evals/", "/spec.json", "/stop.json")


@dataclass
class Run:
    """One federation, by its uid."""

    submission: Submission
    log: list[Committed] = field(default_factory=list)
    decided: dict[Job, int] = field(default_factory=dict)  # -> n
    opened: dict[Job, int] = field(default_factory=dict)  # -> the version when it was opened
    clients: dict[Job, str] = field(default_factory=dict)  # of all that were opened
    pools_down: set[str] = field(default_factory=set)

    def is_stranded(self, job: Job) -> bool:
        """Whether its client belongs to a pool that the log says is down."""
        client, pools = self.clients[job], self.submission.spec.pools
        own = next((name for name, its in pools.items() if client in its), DEFAULT_POOL)
        return own in self.pools_down

    @property
    def is_running(self) -> bool:
        return bool(self.log) and self.log[-1].manifest.state.status == "running"

    @property
    def has_ended(self) -> bool:
        return bool(self.log) and not self.is_running


class Checker:
    def __init__(self, world: World, *, lease_ttl_seconds: float) -> None:
        self.world, self.ttl = world, lease_ttl_seconds
        self.violations: list[str] = []
        self.runs: dict[str, Run] = {}  # by uid
        self.current: dict[str, str] = {}  # federation -> its uid
        self.spoiled: set[str] = set()  # keys of updates that must never be merged
        self.failures: Counter[JobKey] = Counter()  # what may count as a failed attempt
        self.files: dict[str, dict[str, bytes]] = {}  # updates_of -> its files
        self._put_at: dict[str, float] = {}  # updates_of -> when its first good file was there
        self._issued: dict[str, str] = {}  # attempt -> uid
        self._confirmed: list[JobKey] = []
        self._buried: list[AnyMessage] = []
        self._said: dict[JobKey, tuple[Life, float, float]] = {}  # a holder: said so first, last
        self._ended: dict[JobKey, str] = {}  # the greatest attempt that a trainer gave up
        self._stop_wanted: set[str] = set()  # uids
        self._wiped_at = float("-inf")
        self._training: Counter[JobKey] = Counter()  # -> by how many trainers

    @property
    def now(self) -> float:
        return self.world.now

    def fail(self, text: str) -> None:
        self.world.note("CHECKER", text)
        self.violations.append(f"t={self.now:.3f}: {text}")

    # -- the bucket ---------------------------------------------------------------------------

    def writes(self, key: str, body: bytes, before: bytes | None) -> None:
        """Invariants 1 and 4: nobody changes what readers may have seen."""
        if before is not None and before != body and any(part in key for part in CREATE_ONCE):
            self.fail(f"{key} was overwritten with something else")

    def wrote(self, key: str, body: bytes) -> None:
        federation, _, rest = key.partition("/")
        if rest == "spec.json":
            submission = Submission.model_validate_json(body)
            self.runs[submission.uid] = Run(submission)
            self.current[federation] = submission.uid
        elif rest == "stop.json":
            self._stop_wanted.add(self.current[federation])
        elif rest.startswith("manifests/"):
            self._committed(federation, key, body)
        elif rest.startswith("updates/") and self._is_good(federation, key, body):
            self._put_at.setdefault(key.rpartition("/")[0] + "/", self.now)
        if "/updates/" in key:
            self.files.setdefault(key.rpartition("/")[0] + "/", {})[key] = body

    def deletes(self, key: str) -> None:
        """Invariant 8, its other half: what is collected, nobody can need any more."""
        federation, _, rest = key.partition("/")
        run = self.runs[self.current[federation]]
        if not rest.startswith(("models/", "updates/")) or not run.log:
            self.fail(f"{key} was deleted")
            return
        manifest = run.log[-1].manifest
        needed = {manifest.model.key} if manifest.model else set()
        needed |= {entry.key for entry in manifest.state.window}
        if key in needed:
            self.fail(f"{key} was deleted, which manifest {manifest.n} needs")
        job = keys.job_of(federation, key)
        if job in [(at, slot.generation) for at, slot in enumerate(manifest.state.slots)]:
            self.fail(f"{key} was deleted, and its job is open")

    def _is_good(self, federation: str, key: str, body: bytes) -> bool:
        """Not spoiled, and no late one of a federation that had the same name."""
        return key not in self.spoiled and (
            read_header(body).metadata["uid"] == self.current[federation]
        )

    def deleted(self, federation: str) -> None:
        for prefix in [each for each in self._put_at if each.startswith(f"{federation}/")]:
            del self._put_at[prefix]

    def _committed(self, federation: str, key: str, body: bytes) -> None:
        committed = manifests.decode(body, key=key)
        manifest = committed.manifest
        run = self.runs[self.current[federation]]
        if run.log and committed.digest == run.log[-1].digest:
            return  # the same request again
        if manifest.uid != run.submission.uid:
            self.fail(f"{key} belongs to uid {manifest.uid}")
        previous = run.log[-1].digest if run.log else ""
        if (manifest.n, manifest.previous) != (len(run.log), previous):
            self.fail(f"{key} does not follow manifest {len(run.log) - 1}")
        if run.has_ended:
            self.fail(f"{key} follows the end of the federation")
        if not run.log:
            for at, slot in enumerate(manifest.state.slots):
                run.clients[Job(at, slot.generation)] = slot.client
        for decision in manifest.decisions:
            self._decided(run, decision, manifest.n)
        if manifest.state.status == "stopped" and manifest.uid not in self._stop_wanted:
            self.fail(f"{key}: stopped, which nobody wanted: {manifest.state.reason}")
        gave_up = manifest.state.reason.startswith("the initialisation failed")
        failures = self.failures[_init(manifest.uid)]
        if gave_up and failures < run.submission.spec.limits.max_attempts:
            self.fail(f"{key}: given up after {failures} failures: {manifest.state.reason}")
        run.log.append(committed)
        self._check_slots(run, key)

    def _check_slots(self, run: Run, key: str) -> None:
        """Invariant 3: Mc open slots for Mc clients until the stop, then none."""
        state = run.log[-1].manifest.state
        expected = run.submission.spec.concurrency if state.status == "running" else 0
        if len(state.slots) != expected:
            self.fail(f"{key}: {len(state.slots)} slots are open, not {expected}")
        holders = [slot.client for slot in state.slots if slot.is_open]
        if len(set(holders)) != len(holders):
            self.fail(f"{key}: one client has two slots")
        if len(run.log) == 1:
            run.opened |= {Job(at, slot.generation): 0 for at, slot in enumerate(state.slots)}
        for at, slot in enumerate(state.slots):
            if slot.is_open and Job(at, slot.generation) not in run.opened:
                self.fail(f"{key}: slot {at} is open for a generation that no decision opened")

    def _decided(self, run: Run, decision: Decision, n: int) -> None:
        """Invariants 2 and 7: each job once, and the bad ones rejected with a reason."""
        event, job = decision.event, job_of(decision.event)
        for opened in decision.opened:
            run.opened[opened.job] = decision.version
            run.clients[opened.job] = opened.client
        if isinstance(event, PoolChanged):
            change = run.pools_down.add if event.outcome == "pool_down" else run.pools_down.discard
            change(event.pool)
        if job is None:
            return
        if job in run.decided:
            self.fail(f"{job} is decided in manifest {run.decided[job]} and again in {n}")
        run.decided[job] = n
        if isinstance(event, Merged | Rejected):
            update = event.update
            if self._issued.get(update.attempt) != run.submission.uid:
                self.fail(f"attempt {update.attempt} belongs to another federation")
            if not run.opened.get(job, 0) <= update.base_version <= decision.version:
                self.fail(f"{update.key} trained from version {update.base_version}")
            if isinstance(event, Merged) == (update.key in self.spoiled):
                reason = event.reason if isinstance(event, Rejected) else ""
                self.fail(f"{update.key} is {event.outcome} {reason}")
            if isinstance(event, Merged):
                body = self.files.get(update.key.rpartition("/")[0] + "/", {}).get(update.key, b"")
                if sha256(body) != update.digest:
                    self.fail(f"{update.key} is merged without its file")
        elif isinstance(event, Abandoned):
            failures = self.failures[(run.submission.uid, job.slot, job.generation)]
            is_called_for = failures >= run.submission.spec.limits.max_attempts
            if not is_called_for and not run.is_stranded(job):
                self.fail(f"{job} is abandoned after {failures} failures: {event.reason}")

    # -- messages -----------------------------------------------------------------------------

    def publishes(self, life: Life, message: AnyMessage, route: Route) -> None:
        """The broker has it, whatever the publisher hears."""
        is_excused = self._was_begun_before_a_stall(life)
        match message:
            case TrainJob():
                self._issued[message.attempt] = message.uid
                if not is_excused:
                    self._check_hand_out(life, message)
            case ModelReady():
                announced = life.state.setdefault("announced", {})
                for slot, generation in message.closed:
                    announced[(message.uid, slot, generation)] = self.world.num_effects
            case JobFailed() | JobReleased() if message.task == "train":
                job = _job(message)
                self.failures[job] += isinstance(message, JobFailed)
                self._said.pop(job, None)
                self._ended[job] = max(self._ended.get(job, ""), message.attempt)
            case JobFailed(task="init"):
                self.failures[_init(message.uid)] += 1
            case JobStarted():
                life.state.setdefault("started", set()).add(message.work)

    def _was_begun_before_a_stall(self, life: Life) -> bool:
        """One effect may have been on its way; whatever else it does, it could know better."""
        is_first = life.state.get("stalled_at") != life.last_stall
        life.state["stalled_at"] = life.last_stall
        return is_first and life.last_stall >= life.turn_began_at

    def confirmed(self, life: Life, message: AnyMessage, route: Route) -> None:
        match message:
            case UpdateReady() if life.host.role == "trainer":
                self._confirmed.append(message.job)
                self._said.pop(message.job, None)
            case JobStarted() | JobHeartbeat() if message.task == "train":
                job = _job(message)
                if message.attempt <= self._ended.get(job, ""):
                    return  # delivered twice, and the other trainer's word counts
                holder, first, _ = self._said.get(job, (life, self.now, self.now))
                first = first if holder is life else self.now
                self._said[job] = (life, first, self.now)

    def acked(self, life: Life, queue: str, message: AnyMessage | None, since: int) -> None:
        """Invariants 2 and 4. since: the number of effects when it was delivered."""
        if queue == UPDATES_QUEUE.name and message is not None:
            self._check_answer(life, message, since)
        elif queue != EVENTS_QUEUE.name and isinstance(message, TrainJob):
            work = Work(message.uid, "train", message.slot, message.generation)
            if work not in life.state.get("started", ()):
                self.fail(f"{life.name} acked job {message.job} and never said that it has it")

    def _check_answer(self, life: Life, message: AnyMessage, since: int) -> None:
        """Whatever the aggregator lets the broker forget is decided in the bucket, and announced.

        But for one reason: since it came, this aggregator could not read an object. What needs
        such an object would fill its prefetch; the scheduler reads the log, and sends it again.
        `message in buried` compares values: a copy that was dead-lettered before excuses this one.
        """
        assert isinstance(message, UpdateReady | AbandonJob | StopFederation | InitReady | MarkPool)
        is_current = self.current.get(message.federation) == message.uid
        run = self.runs.get(message.uid)
        if run is None or not is_current or message in self._buried:
            return
        if life.state.get("unread_at", -1) >= since:
            return
        if isinstance(message, InitReady):
            is_decided = bool(run.log)
        elif isinstance(message, StopFederation):
            is_decided = run.has_ended
        elif isinstance(message, MarkPool):
            state = run.log[-1].manifest.state if run.log else None
            pool = state.pools.get(message.pool) if state else None
            is_decided = run.has_ended or (pool is not None and pool.changes >= message.change)
        else:
            is_decided = run.has_ended or Job(message.slot, message.generation) in run.decided
            announced_at = life.state.get("announced", {}).get(message.job, -1)
            if is_decided and announced_at < since:
                self.fail(f"{life.name} acked {message.job} and did not announce that it is closed")
        if not is_decided:
            self.fail(f"{life.name} acked {message.kind}, which no manifest decides: {message!r}")

    def _check_hand_out(self, life: Life, order: TrainJob) -> None:
        """Finished training is announced, never repeated; whoever holds a job keeps it."""
        put_at = self._put_at.get(
            keys.updates_of(order.federation, order.slot, order.generation), self.now
        )
        if put_at < self.now - self.ttl:
            self.fail(f"{order.job} is handed out again; its file is there since {put_at:.1f}")
        holder, first, last = self._said.get(order.job, (life, self.now, 0.0))
        is_heard = first < self.now - HEARD_SECONDS and (
            last > max(self.now - self.ttl / 2, self._wiped_at)
        )
        if is_heard and not holder.is_dead and self.holds(holder, order):
            self.fail(f"{order.job} is handed out again, while {holder.name} trains and says so")

    def holds(self, life: Life, order: TrainJob) -> bool:
        """Whether a living trainer has this job in hand, and was not stalled lately."""
        works = life.state["works"]() if "works" in life.state else []
        is_fit = life.last_stall < self.now - self.ttl
        work = Work(order.uid, "train", order.slot, order.generation)
        return is_fit and work._asdict() in works

    @contextmanager
    def training(self, life: Life, order: TrainJob) -> Iterator[Callable[[], None]]:
        """While a trainer trains a job; it calls what it gets, now and then. Invariant 3."""
        run, job = self.runs[order.uid], Job(order.slot, order.generation)
        self._training[order.job] += 1

        def still_trains() -> None:
            closed = life.state.get("closed", {})
            known_at = min(closed.get(each, self.now) for each in (order.job, order.uid))
            if max(known_at, life.last_stall) < self.now - ZOMBIE_SECONDS:
                self.fail(
                    f"{life.name} trains {job}, and heard at {known_at:.1f} that it is closed"
                )

        try:
            in_training = [key for key, num in self._training.items() if num and self._is_open(key)]
            of_this_run = [key for key in in_training if key[0] == order.uid]
            if len(of_this_run) > run.submission.spec.concurrency:
                self.fail(f"{len(of_this_run)} open jobs are in training")
            yield still_trains
        finally:
            self._training[order.job] -= 1

    def _is_open(self, key: JobKey) -> bool:
        uid, slot, generation = key
        log = self.runs[uid].log
        slots = log[-1].manifest.state.slots if log else ()
        return slot < len(slots) and slots[slot].generation == generation

    def hears(self, life: Life, message: AnyMessage | None) -> None:
        """A broadcast arrived."""
        if isinstance(message, ModelReady):
            closed = life.state.setdefault("closed", {})
            if message.status != "running":
                closed.setdefault(message.uid, self.now)
            for slot, generation in message.closed:
                closed.setdefault((message.uid, slot, generation), self.now)

    def lost_touch(self, life: Life) -> None:
        """A trainer dies or stalls: each job it started may fail once more."""
        for work in life.state.get("started", ()):
            if work.activity == "train":
                self.failures[(work.uid, work.slot, work.generation)] += 1
            elif work.activity == "init":
                self.failures[_init(work.uid)] += 1

    def dead_lettered(self, message: AnyMessage | None) -> None:
        if message is not None:
            self._buried.append(message)

    def wiped(self) -> None:
        self._wiped_at = self.now

    # -- at the end ---------------------------------------------------------------------------

    def has_ended(self, store: ObjectStore) -> bool:
        """Whether every federation reached its stop, and its last version was evaluated."""
        return bool(self.current) and all(
            self.runs[uid].has_ended and self._is_evaluated(store, self.runs[uid])
            for uid in self.current.values()
        )

    def _is_evaluated(self, store: ObjectStore, run: Run) -> bool:
        manifest = run.log[-1].manifest
        final = manifest.state.final_version
        if manifest.model is None or final is None:
            return True
        return store.exists(keys.evaluation(run.submission.federation, final))

    def finish(self, store: ObjectStore) -> None:
        for problem in self.world.problems:
            self.fail(problem)
        if self.violations:
            return  # it was cut short
        for federation, uid in self.current.items():
            run = self.runs[uid]
            listed = [info.key for info in store.list(f"{federation}/manifests/")]
            if listed != [keys.manifest(federation, n) for n in range(len(run.log))]:
                self.fail(f"{federation}: its log has gaps: {listed}")
            try:
                for _ in verify(store, federation):
                    pass
            except FedfaError as error:
                self.fail(f"{federation} does not replay: {error}")
        for uid, slot, generation in self._confirmed:
            run, job = self.runs[uid], Job(slot, generation)
            if self.current[run.submission.federation] != uid:
                continue
            if job not in run.opened or (job not in run.decided and not run.has_ended):
                self.fail(f"the confirmed update of {job} is missing from the log")
        for message in self._buried:
            if isinstance(message, UpdateReady) and message.uid in self.current.values():
                self.fail(f"the update of {message.job} was dead-lettered")


def _job(fact: JobFacts) -> JobKey:
    return (fact.uid, fact.slot or 0, fact.generation or 0)


def _init(uid: str) -> JobKey:
    """Where the failures of a federation's initialisation are counted."""
    return (uid, -1, 0)
