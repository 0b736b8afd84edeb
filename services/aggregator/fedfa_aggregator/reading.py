"""Reads the update that is decided next while the one before it is committed.

One at a time, and not during a merge: so a federation never needs more than window + 3 models.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from fedfa.broker import Delivery
from fedfa.errors import InvalidMessage
from fedfa.messages import UpdateReady
from fedfa.store import ObjectStore
from fedfa.tensors import Template
from fedfa_aggregator import metrics
from fedfa_aggregator.inspection import Fetched, fetch


class Reader:
    """Gives updates as `fetch` does, read ahead where they were heard of before.

    What was read ahead is the same whenever it was read: the file of a key never changes.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, "read-ahead")
        self._lock = threading.Lock()
        self._templates: dict[str, Template] = {}  # by federation uid
        self._heard: dict[UpdateReady, None] = {}  # in order of arrival; not decided yet
        self._ahead: tuple[UpdateReady, Future[Fetched]] | None = None
        self._num_merging = 0

    def hear(self, delivery: Delivery) -> None:
        """A message has arrived and will be decided after those before it. From any thread."""
        try:
            message = delivery.message()
        except InvalidMessage:
            return
        if isinstance(message, UpdateReady):
            with self._lock:
                self._heard[message] = None
                self._read_next()

    def serves(self, uid: str, template: Template | None) -> None:
        """Updates of this federation are worth reading ahead; None: it is over, none are."""
        with self._lock:
            if template is None:
                self._templates.pop(uid, None)
            else:
                self._templates[uid] = template

    @contextmanager
    def update(self, message: UpdateReady, template: Template) -> Iterator[Fetched]:
        """The update, for as long as it takes to merge it. Raises as `fetch` does."""
        with self._lock:
            self._num_merging += 1
            future = self._drop(message)
        try:
            yield future.result() if future else self._read(message, template)
        finally:
            with self._lock:
                self._num_merging -= 1
                self._read_next()

    def passed(self, message: UpdateReady) -> None:
        """This message needs no update any more: it came late, or could not be decided."""
        with self._lock:
            self._drop(message)
            self._read_next()

    def forget(self) -> None:
        """Nothing that was heard of is waiting: it was decided, or the broker has it back."""
        with self._lock:
            self._heard.clear()
            self._ahead = None

    def close(self) -> None:
        self.forget()
        self._pool.shutdown(cancel_futures=True)

    def _drop(self, message: UpdateReady) -> Future[Fetched] | None:
        self._heard.pop(message, None)
        if self._ahead is None or self._ahead[0] != message:
            return None
        future, self._ahead = self._ahead[1], None
        return future

    def _read_next(self) -> None:
        if self._ahead is not None or self._num_merging:
            return
        for message in self._heard:
            template = self._templates.get(message.uid)
            if template is not None:
                self._ahead = message, self._pool.submit(self._read, message, template)
                return

    def _read(self, message: UpdateReady, template: Template) -> Fetched:
        with metrics.fetch_seconds.time():
            return fetch(self._store, message, template)
