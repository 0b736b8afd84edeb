"""What a trainer does with each piece of work, from the first read to the last message.

Every body runs in its own thread and reads top to bottom. An outage of store or broker only
makes it wait: what was computed is kept until it is delivered, or until nobody waits for it.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedfa import keys, ledger, manifests, modules, training, update_files
from fedfa.broker import Publisher
from fedfa.canonical import canonical_json, sha256
from fedfa.errors import (
    AlreadyExists,
    Cancelled,
    FedfaError,
    InvalidInput,
    NotFound,
    UnknownTask,
)
from fedfa.failpoints import reach
from fedfa.log import Birth, Manifest, ModelRef
from fedfa.messages import (
    EvalJob,
    EvalReady,
    InitModel,
    InitReady,
    TrainJob,
    UpdateReady,
)
from fedfa.spec import FederationSpec
from fedfa.tasks import base as tasks
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, Template
from fedfa.topology import EVENTS, UPDATES
from fedfa.training import LocalResult
from fedfa_trainer import metrics
from fedfa_trainer.bucket import BEHIND_WAIT_SECONDS, Bucket
from fedfa_trainer.computer import Computer
from fedfa_trainer.computing import Computing
from fedfa_trainer.failures import Diverged
from fedfa_trainer.held import Held
from fedfa_trainer.journal import Journal
from fedfa_trainer.runtime import THREADS, Runtime
from fedfa_trainer.warm import Shelf, Warm

MODEL_READS = 5  # each of a newer manifest, before a missing model counts as lost


@dataclass(frozen=True, slots=True)
class Finished:
    """A trained job that waits for its delivery. started_at is in unix seconds."""

    base_version: int
    result: LocalResult
    started_at: float
    train_seconds: float
    spec: FederationSpec


class Worker:
    """Trains, evaluates and initialises. Any number of threads may call it."""

    def __init__(
        self,
        bucket: Bucket,
        publisher: Publisher,
        computer: Computer,
        *,
        task_allow: tuple[str, ...],
        prefetch: bool = False,
        runtime: Runtime = THREADS,
        journal: Journal | None = None,
    ) -> None:
        """prefetch: a job that waits for its turn reads its model meanwhile."""
        self.computing = Computing(runtime)
        self.train_seconds: dict[str, float] = {}  # by uid: what the last training took
        self._bucket = bucket
        self._publisher = publisher
        self._computer = computer
        self._task_allow = task_allow
        self._journal = journal or Journal()
        self._runtime = runtime
        self._shelf = Shelf()
        self._prefetch = prefetch
        self._templates: dict[str, Template] = {}  # by uid, of federations that were trained here

    def perform(self, held: Held) -> None:
        """Do the work and deliver it. Raises Cancelled, or whatever the task's code raises."""
        order = held.order
        match order:
            case TrainJob():
                self._train(held, order)
            case EvalJob():
                self._evaluate(held, order)
            case InitModel():
                self._initialise(held, order)

    # -- the three bodies -----------------------------------------------------------------------

    def _train(self, held: Held, job: TrainJob) -> None:
        finished = self._compute(held, job)
        held.wait(job.delay_seconds)
        held.enter("delivering")
        held.hear_manifest(self._newest(held))
        held.check()
        self.deliver(held, job, finished)

    def _compute(self, held: Held, job: TrainJob) -> Finished:
        ahead = self._read_ahead(held, job) if self._prefetch else None
        with self.computing.turn(held), self._warm(held) as warm:
            birth = self._birth(held, warm)
            version, model = ahead or self._base(held, job, warm, birth)
            started_at, began = self._runtime.unix(), self._runtime.clock()
            limit = warm.submission.spec.limits.job_seconds
            with self.computing.timed(held), held.limited(limit):
                result = self._computer.train(warm, model, job, held.should_stop)
            train_seconds = self._runtime.clock() - began
            held.enter("delaying")  # in its turn still: nothing but a closed job stops it now
        reach("trainer.trained")
        self.train_seconds[job.uid] = train_seconds
        metrics.train_seconds.observe(train_seconds)
        if (reason := result.divergence) is not None:
            raise Diverged(reason)
        return Finished(version, result, started_at, train_seconds, warm.submission.spec)

    def deliver(self, held: Held, job: TrainJob, finished: Finished) -> None:
        result = finished.result
        draft = UpdateReady(
            federation=job.federation,
            uid=job.uid,
            slot=job.slot,
            generation=job.generation,
            attempt=held.attempt,
            key=update_files.UNNAMED,
            client=job.client,
            base_version=finished.base_version,
            num_examples=result.num_examples,
            num_steps=result.num_steps,
            loss=result.loss,
            trainer=held.trainer,
            started_at=finished.started_at,
            train_seconds=finished.train_seconds,
            delay_seconds=job.delay_seconds,
        )
        update, parts, digest = update_files.finished(draft, result.update, finished.spec)
        self._journal.putting(update)
        reach("trainer.before_put")
        self._bucket.upload(held, update.key, parts, digest=digest)
        metrics.saved_bytes.inc(
            result.update.template.size_bytes - sum(len(part) for part in parts[1:])
        )
        reach("trainer.put")
        self._publisher.publish(update, UPDATES)
        reach("trainer.published")
        self._journal.confirmed(update)

    def _evaluate(self, held: Held, job: EvalJob) -> None:
        key = keys.evaluation(job.federation, job.version)
        if not self._bucket.insist(held, "get", lambda: self._bucket.store.exists(key)):
            result, seconds = self._measure(held, job)
            self._newest(held)  # raises where the folder was deleted meanwhile
            reach("trainer.evaluated")
            if (reason := training.why_not_finite(job.version, result)) is not None:
                raise InvalidInput(reason)
            fields = {
                "version": job.version,
                "metrics": result,
                "at": self._runtime.unix(),
                "trainer": held.trainer,
                "seconds": seconds,
            }
            try:
                body = canonical_json(fields).encode()
                self._bucket.insist(held, "create", lambda: self._bucket.store.create(key, body))
            except AlreadyExists:
                pass  # another attempt was faster
            reach("trainer.evaluation_created")
        ready = EvalReady(federation=job.federation, uid=job.uid, version=job.version)
        self._publisher.publish(ready, EVENTS)
        reach("trainer.evaluation_announced")

    def _measure(self, held: Held, job: EvalJob) -> tuple[dict[str, float], float]:
        """The metrics of a version, and the seconds they took."""
        with self.computing.turn(held), self._warm(held) as warm:
            birth = self._birth(held, warm)
            model = self._model(held, warm, birth, ModelRef(job.version, job.key, job.digest))
            began = self._runtime.clock()
            limit = warm.submission.spec.limits.job_seconds
            with self.computing.timed(held), held.limited(limit):
                result = self._computer.evaluate(warm, model)
            seconds = self._runtime.clock() - began
            held.enter("delivering")
        return result, seconds

    def _initialise(self, held: Held, order: InitModel) -> None:
        if self._bucket.newest(held) is not None:
            raise Cancelled("the federation is born already")
        birth, model = self._create(held)
        reach("trainer.initialised")
        body = encode(model, ledger.birth_metadata(birth))
        ledger.birth_from(body)  # what an aggregator would refuse is this task's failure
        digest = sha256(body)
        key = keys.model(order.federation, 0, digest)
        self._bucket.upload(held, key, (body,), digest=digest)
        reach("trainer.initial_model_put")
        ready = InitReady(
            federation=order.federation,
            uid=order.uid,
            attempt=held.attempt,
            key=key,
            digest=digest,
        )
        self._publisher.publish(ready, UPDATES)
        reach("trainer.initial_model_announced")

    def _create(self, held: Held) -> tuple[Birth, FlatModel]:
        """What version 0 fixes, and its weights."""
        with self.computing.turn(held):
            self._shelf.drop(held.order.uid)  # a module that was trained has no initial weights
            with self._warm(held) as warm, self.computing.timed(held):
                spec = warm.submission.spec
                with held.limited(spec.limits.job_seconds):
                    created = training.first_version(spec, warm.task, warm.module)
            held.enter("delivering")
        return created

    # -- what they read -------------------------------------------------------------------------

    def _newest(self, held: Held) -> Manifest:
        """The newest manifest, before anything is written into the federation's folder.

        Raises Cancelled where that was deleted, and perhaps another one submitted under its id: an
        aggregator that remembers it would go on with its log there.
        """
        order, manifest = held.order, self._bucket.newest(held)
        if manifest is None or manifest.uid != order.uid:
            raise Cancelled(f"{order.federation}: the folder of uid {order.uid} was deleted")
        return manifest

    @contextmanager
    def _warm(self, held: Held) -> Iterator[Warm]:
        """The federation's task and module, kept for its next job.

        Not after an error of the task's own code, which may have left them in any state.
        """
        warm = self._shelf.take(held.order.uid) or self._build(held)
        try:
            yield warm
        except FedfaError:
            self._shelf.put(warm)
            raise
        self._shelf.put(warm)

    def _build(self, held: Held) -> Warm:
        order = held.order
        if isinstance(order, TrainJob):
            self._bucket.current(held, order)  # raises before anything is loaded for a closed job
        try:
            submission = self._bucket.insist(
                held, "get", lambda: manifests.read_submission(self._bucket.store, order.federation)
            )
        except NotFound:
            raise Cancelled(f"{order.federation}: it has no spec.json") from None
        if submission.uid != order.uid:
            raise Cancelled(f"{order.federation}: its uid is {submission.uid} now")
        spec = submission.spec
        try:
            task = tasks.load(spec, self._task_allow)
        except UnknownTask as error:
            held.release(str(error), missing=spec.task.name)
            raise Cancelled(str(error)) from error
        return Warm(submission, task, self._computer.build(task))

    def _birth(self, held: Held, warm: Warm) -> Birth:
        """What manifest 0 fixed, once this trainer's frozen weights are seen to be the same."""
        if warm.birth is None:
            federation = warm.submission.federation
            birth = self._bucket.insist(
                held, "get", lambda: manifests.birth_of(self._bucket.store, federation)
            )
            modules.require_frozen(warm.module, birth.frozen_digest, where=f"on {held.trainer}")
            warm.birth = birth
            self._templates[held.order.uid] = birth.template
        return warm.birth

    def _read_ahead(self, held: Held, job: TrainJob) -> tuple[int, FlatModel] | None:
        """The newest version now, which may be older than that of its turn; None: read it then."""
        template = self._templates.get(job.uid)
        if template is None:
            return None
        reference = self._bucket.current(held, job).model
        assert reference is not None, "only a federation that ended unborn has no model"
        try:
            return reference.version, self._download(held, reference, template)
        except NotFound:  # collected since the manifest was read
            return None

    def _base(self, held: Held, job: TrainJob, warm: Warm, birth: Birth) -> tuple[int, FlatModel]:
        """The newest version and its model."""
        reads = 0
        while True:
            reference = self._bucket.current(held, job).model
            assert reference is not None, "only a federation that ended unborn has no model"
            try:
                return reference.version, self._model(held, warm, birth, reference)
            except NotFound:  # collected since the manifest was read
                reads += 1
                if reads == MODEL_READS:
                    raise
                held.wait(random.uniform(0, BEHIND_WAIT_SECONDS))

    def _model(self, held: Held, warm: Warm, birth: Birth, reference: ModelRef) -> FlatModel:
        if warm.model is None or warm.digest != reference.digest:
            warm.model = self._download(held, reference, birth.template)
            warm.digest = reference.digest
        return warm.model

    def _download(self, held: Held, reference: ModelRef, template: Template) -> FlatModel:
        return self._bucket.insist(
            held, "get", lambda: ledger.read_model(self._bucket.store, reference, template)
        )
