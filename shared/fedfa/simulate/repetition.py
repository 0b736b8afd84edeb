"""A real run's log, trained again: same jobs, same bases, same order, and the same bytes.

Unlike `fedfa verify`, which merges the stored updates again, this makes every update anew. A log
that repeats shows that nothing but spec, data and the recorded order made these models.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import fields
from itertools import islice
from pathlib import Path

from fedfa import history, keys, manifests
from fedfa import ledger as ledgers
from fedfa.errors import AlreadyExists, InvalidInput, InvalidSpec, NotFound
from fedfa.events import Decision, Job, Merged, Rejected, Update
from fedfa.ledger import Ledger
from fedfa.log import Committed, ModelRef
from fedfa.replay import Mismatch
from fedfa.replica import Replica, decide, is_judgement, merge, needs_base
from fedfa.simulate.orders import Initialise, NotFinite, Train, Trained
from fedfa.simulate.workers import Workers, usable_cores
from fedfa.spec import Submission
from fedfa.store import DirectoryStore, ObjectStore

AHEAD_PER_WORKER = 4  # manifests whose updates may be trained before their turn
OTHERWISE = (
    "its trainer may have used another number of torch threads (--threads), another device or "
    "another release of torch"
)


def repeat(
    source: ObjectStore,
    federation: str,
    root: Path,
    *,
    num_workers: int | None = None,
    threads: int = 1,
    task_allow: Sequence[str] = (),
) -> Iterator[Ledger]:
    """Make a federation's log again in folder `root`; yields each commit once it is the same.

    Raises Mismatch at the first difference. Evaluations are not repeated: the log does not hold
    them. An interrupted repetition goes on.
    """
    store = DirectoryStore(root)
    submission = _submit(source, store, federation)
    number = min(num_workers or usable_cores(), submission.spec.concurrency)
    workers = Workers(root, federation, number=number, threads=threads, task_allow=task_allow)
    with workers:
        again = _Repetition(source, root, submission, workers)
        yield from again.run(AHEAD_PER_WORKER * number)


def _submit(source: ObjectStore, store: DirectoryStore, federation: str) -> Submission:
    submission = manifests.read_submission(source, federation)
    body = source.get(keys.spec(federation))
    try:
        store.create(keys.spec(federation), body)
    except AlreadyExists:
        if store.get(keys.spec(federation)) != body:
            raise InvalidSpec(
                f"{federation} in {store.name} is another run; choose another --out"
            ) from None
    return submission


class _Repetition:
    def __init__(
        self,
        source: ObjectStore,
        root: Path,
        submission: Submission,
        workers: Workers,
    ) -> None:
        self._source = source
        self._root = root
        self._store = DirectoryStore(root)
        self._submission = submission
        self._workers = workers
        self._training: dict[Job, Future[Trained]] = {}

    def run(self, num_ahead: int) -> Iterator[Ledger]:
        federation = self._submission.federation
        ledger = ledgers.load(self._store, self._submission)
        if ledger is None:
            ledger = self._bear(manifests.read(self._source, federation, manifests.FIRST))
        else:
            self._compare_head(ledger)
        yield ledger
        log = manifests.log(self._source, federation, start=ledger.head.manifest.n + 1)
        ahead = deque(islice(log, num_ahead))
        while ahead:
            if ledger.replica is None:
                raise Mismatch(f"manifest {ahead[0].manifest.n} follows the end of the federation")
            for committed in ahead:
                self._train(ledger, committed)
            ledger = self._again(ledger, ledger.replica, ahead.popleft())
            manifests.move_head(self._store, ledger.head.manifest)
            ahead.extend(islice(log, 1))
            yield ledger

    def _compare_head(self, ledger: Ledger) -> None:
        """What an earlier repetition left: its newest manifest vouches for those before it."""
        n = ledger.head.manifest.n
        try:
            recorded = manifests.read(self._source, self._submission.federation, n)
        except NotFound:
            raise Mismatch(
                f"manifest {n}: {self._store.name} has it, the recorded log ends before it; "
                "choose another --out"
            ) from None
        _refuse_another(ledger.head, recorded)

    def _bear(self, first: Committed) -> Ledger:
        manifest = first.manifest
        if manifest.model is None:
            raise InvalidInput(f"{manifest.federation}: it ended before its first model")
        model = self._workers.submit(Initialise(), urgency=(0,)).result()
        if model.digest != manifest.model.digest:
            raise Mismatch(
                f"version 0: made again it hashes to {model.digest}, the log says "
                f"{manifest.model.digest}; is the data or the code of the task another one?"
            )
        birth, vector = ledgers.birth_from(self._store.get(model.key))
        return ledgers.bear(
            _Expecting(self._root, first),
            self._submission,
            model,
            birth,
            vector,
            writer=manifest.writer,
            now=manifest.at,
        )

    def _train(self, ledger: Ledger, committed: Committed) -> None:
        """Have the updates of a manifest trained, as far as their bases are made again."""
        for index, decision in enumerate(committed.manifest.decisions):
            update = _trained(decision)
            if update is None or update.job in self._training:
                continue
            if update.base_version <= ledger.state.version:
                order = Train(self._base(update), update)
                urgency = (committed.manifest.n, index)
                self._training[update.job] = self._workers.submit(order, urgency=urgency)

    def _base(self, update: Update) -> ModelRef:
        federation = self._submission.federation
        return history.find_model(self._store, federation, update.base_version)

    def _again(self, ledger: Ledger, replica: Replica, recorded: Committed) -> Ledger:
        """Take a manifest's decisions again on updates made anew, and commit them."""
        manifest = recorded.manifest
        made: list[Decision] = []
        for decision in manifest.decisions:
            if decision in made:
                continue  # a stop that the decision before it brought along
            update = _trained(decision)
            if update is None:
                replica, decisions = decide(replica, decision.event)
            else:
                replica, decisions = self._merge(replica, update)
            made.extend(decisions)
        for again, decision in zip(made, manifest.decisions, strict=False):
            if again != decision:
                raise Mismatch(f"manifest {manifest.n}: now {again}, the log says {decision}")
        if len(made) != len(manifest.decisions):
            raise Mismatch(
                f"manifest {manifest.n}: now {len(made)} decisions, the log has "
                f"{len(manifest.decisions)}"
            )
        return ledgers.commit(
            _Expecting(self._root, recorded),
            ledger,
            replica,
            tuple(made),
            writer=manifest.writer,
            now=manifest.at,
        )

    def _merge(self, replica: Replica, update: Update) -> tuple[Replica, tuple[Decision, ...]]:
        if update.job not in self._training:
            raise Mismatch(f"{_name(update)}: its base was not made yet")
        again = self._training.pop(update.job).result()
        template = replica.model.template
        if isinstance(again, NotFinite):
            raise Mismatch(f"{_name(update)}: {again.reason}")
        vector = ledgers.read_vector(self._store, again.key, again.digest, template)
        if again.digest != update.digest:
            try:
                there = ledgers.read_vector(self._source, update.key, update.digest, template)
            except NotFound:
                raise Mismatch(
                    f"{_name(update)}: trained again it hashes to {again.digest}, the log says "
                    f"{update.digest}; {self._source.name} has deleted the update, so that its "
                    f"values cannot be compared: {OTHERWISE}, or repeat a run whose retention "
                    "keeps all"
                ) from None
            apart = abs(vector.floats - there.floats)
            raise Mismatch(
                f"{_name(update)}: trained again, {(apart > 0).sum()} of {apart.size} values "
                f"differ, by at most {apart.max():.3g}; loss {again.loss!r}, the log says "
                f"{update.loss!r}; {OTHERWISE}"
            )
        base = None
        if needs_base(replica, update.base_version):
            base = ledgers.read_model(self._store, self._base(update), template)
        return merge(replica, update, vector, base=base)


def _trained(decision: Decision) -> Update | None:
    """The update of a decision that follows from its training."""
    match decision.event:
        case Merged(update):
            return update
        case Rejected(update) as rejected if is_judgement(rejected):
            return update
    return None


def _name(update: Update) -> str:
    return (
        f"slot {update.job.slot}, generation {update.job.generation} ({update.client} from version "
        f"{update.base_version})"
    )


class _Expecting(DirectoryStore):
    """The repetition's folder, for one commit: only the recorded manifest enters it."""

    def __init__(self, root: Path, recorded: Committed) -> None:
        super().__init__(root)
        self._recorded = recorded

    def create(self, key: str, body: bytes) -> None:
        _refuse_another(manifests.decode(body, key=key), self._recorded)
        super().create(key, body)


def _refuse_another(ours: Committed, recorded: Committed) -> None:
    if ours.digest == recorded.digest:
        return
    now, then = ours.manifest, recorded.manifest
    names = [one.name for one in fields(now) if getattr(now, one.name) != getattr(then, one.name)]
    what = f"model {now.model}, not {then.model}" if "model" in names else ", ".join(names)
    raise Mismatch(f"manifest {then.n}: differs: {what or 'how it is written'}")
