"""How a trainer reads and writes the bucket: for ever, or until its work has a reason to stop."""

import logging
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedfa import manifests
from fedfa.errors import AlreadyExists, Cancelled, Misconfigured, NotFound, StoreUnavailable
from fedfa.log import Manifest
from fedfa.memory import Bytes
from fedfa.messages import ModelReady, TrainJob
from fedfa.store import ObjectStore, require_answer
from fedfa_trainer import metrics
from fedfa_trainer.held import Held, is_ahead, is_closed

logger = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_WAIT_SECONDS = 2.0  # at most, between two tries that the store did not answer
BEHIND_WAIT_SECONDS = 2.0  # at most, between two looks for a manifest that knows the job


class Bucket:
    """For any number of threads. Every method raises Cancelled when its work should stop."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._known: dict[str, int] = {}  # by uid: the newest manifest known to exist
        self._answered: set[str] = set()  # operations that worked once

    def hear_model(self, ready: ModelReady) -> None:
        """A manifest exists: a hint that saves looking for it."""
        if ready.status == "running":
            self._known[ready.uid] = max(self._known.get(ready.uid, 0), ready.n)
        else:
            self._known.pop(ready.uid, None)

    def newest(self, held: Held) -> Manifest | None:
        """The newest manifest of the held work's federation, None before its birth."""
        order = held.order
        known = self._known.get(order.uid, 0)
        committed = self.insist(
            held, "get", lambda: manifests.newest(self.store, order.federation, known=known)
        )
        if committed is None:
            return None
        self._known[order.uid] = max(self._known.get(order.uid, 0), committed.manifest.n)
        return committed.manifest

    def current(self, held: Held, job: TrainJob) -> Manifest:
        """The newest manifest, not older than the one that opened the job.

        A job that no manifest knows for a whole lease (the bucket was restored) is handed back:
        whoever issued it decides again.
        """
        give_up_at = held.clock() + job.lease_ttl_seconds
        while True:
            manifest = self.newest(held)
            if manifest is not None:
                if is_closed(manifest, job):
                    raise Cancelled(f"manifest {manifest.n} shows it closed")
                if not is_ahead(manifest, job):
                    return manifest
            if held.clock() > give_up_at:
                held.release(f"no manifest knows generation {job.generation} of slot {job.slot}")
            held.wait(random.uniform(0, BEHIND_WAIT_SECONDS))

    def upload(self, held: Held, key: str, parts: Sequence[Bytes], *, digest: str) -> None:
        self.insist(held, "put", lambda: self.store.upload(key, parts, digest=digest))
        metrics.upload_bytes.inc(sum(len(part) for part in parts))

    def insist(self, held: Held, operation: str, request: Callable[[], T]) -> T:
        """Ask the store until it answers, or until there is a reason to stop.

        Work that has not begun waits no longer than a lease for one object, if the store answers
        for others: it would keep its trainer from all other work. Raises StoreUnavailable then.
        A refusal ends the trainer where such an operation never worked; later it is an outage
        like any other, so that changing the store's keys costs no training.
        """
        give_up_at = held.clock() + held.order.lease_ttl_seconds
        is_alone = False  # this object: the store answered for another one since its last try
        while True:
            try:
                answer = request()
            except (AlreadyExists, NotFound):
                self._answered.add(operation)
                raise
            except StoreUnavailable as error:
                if is_alone:
                    raise
                reason = str(error)
                is_late = held.phase == "waiting" and held.clock() > give_up_at
                is_alone = is_late and self._answers()
            except Misconfigured as error:
                if operation not in self._answered:
                    raise
                reason = str(error)
            else:
                self._answered.add(operation)
                return answer
            logger.warning("the work waits for the store", extra={"reason": reason})
            held.wait(random.uniform(0, OUTAGE_WAIT_SECONDS))

    def _answers(self) -> bool:
        try:
            require_answer(self.store)
        except (Misconfigured, StoreUnavailable):
            return False
        return True
