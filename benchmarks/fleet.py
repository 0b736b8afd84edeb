"""Plays scheduler and trainers towards a real aggregator, with files of random numbers."""

import random
import time
from dataclasses import dataclass, field

import numpy as np
from played import Played, numbers

from fedfa import keys, manifests
from fedfa.broker import Consumer, Publisher
from fedfa.canonical import canonical_json
from fedfa.events import Job
from fedfa.federation import Slot, is_evaluation_due
from fedfa.log import Manifest
from fedfa.messages import UpdateReady
from fedfa.s3 import S3Store
from fedfa.spec import Submitted
from fedfa.tensors import Template, Tensor
from fedfa.topology import UPDATES

MODEL = Template((Tensor("weight", "parameter", "F32", (64, 64)),))  # 4096 floats
STRAY_SHARE, REPEAT_SHARE, BAD_SHARE = 0.02, 0.02, 0.02  # of all updates


@dataclass
class Fleet:
    """Plays scheduler and trainers: an update file for every open job, and some mischief."""

    store: S3Store
    publisher: Publisher
    broadcast: Consumer
    submitted: Submitted
    draw: random.Random
    sent: dict[int, int] = field(default_factory=dict)  # slot -> generation
    evaluated: int = -1
    known: int = 0
    num_files: int = 0

    @property
    def id(self) -> str:
        return self.submitted.federation

    def be_born(self) -> None:
        self.publisher.publish(self.played(1.0).initial(attempt=self._attempt()), UPDATES)

    def turn(self) -> Manifest | None:
        """Look at the newest manifest, finish every job that it opened."""
        head = manifests.newest(self.store, self.id, known=self.known)
        if head is None:
            return None
        self.known = head.manifest.n
        for number, slot in enumerate(head.manifest.state.slots):
            if self.sent.get(number) != slot.generation:
                self._finish(Job(number, slot.generation), slot, head.manifest.state.version)
                self.sent[number] = slot.generation
        self._evaluate(head.manifest)
        return head.manifest

    def wait(self) -> None:
        """Until the aggregator says something, or a while."""
        deadline = time.monotonic() + 0.5
        while not (heard := self.broadcast.ready()) and time.monotonic() < deadline:
            time.sleep(0.005)
        for delivery in heard:
            delivery.ack()

    def _finish(self, job: Job, slot: Slot, version: int) -> None:
        if self.draw.random() < STRAY_SHARE:
            self._write(job, slot, version)  # an attempt that nobody announces
        is_bad = self.draw.random() < BAD_SHARE
        message = self._write(job, slot, version, scale=np.nan if is_bad else 1.0)
        self.publisher.publish(message, UPDATES)
        if self.draw.random() < REPEAT_SHARE:
            self.publisher.publish(message, UPDATES)

    def _write(self, job: Job, slot: Slot, version: int, *, scale: float = 1.0) -> UpdateReady:
        played = self.played(scale)
        return played.update(job, client=slot.client, version=version, attempt=self._attempt())

    def _evaluate(self, manifest: Manifest) -> None:
        """As the scheduler would: the newest version that is due, if it is there by itself."""
        model = manifest.model
        if model is None or model.version <= self.evaluated:
            return
        if is_evaluation_due(self.submitted.spec, manifest.state, model.version):
            self.evaluated = model.version
            metrics = {"accuracy": self.draw.random()}
            fields = {"version": model.version, "at": time.time(), "metrics": metrics}
            self.store.put(keys.evaluation(self.id, model.version), canonical_json(fields).encode())

    def played(self, scale: float) -> Played:
        """Whose next file has other numbers than the last."""
        vector = numbers(MODEL, seed=self.draw.getrandbits(64))
        vector.floats[:] *= np.float32(scale)
        return Played(self.store, self.submitted, vector)

    def _attempt(self) -> str:
        self.num_files += 1
        return f"{int(time.time() * 1000)}-0a0b0c0d-{self.num_files:06d}"
