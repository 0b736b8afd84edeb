"""A federation that nobody trains: its files are real, and their numbers are made up."""

import time
from dataclasses import dataclass

import numpy as np

from fedfa import keys, ledger
from fedfa.canonical import sha256
from fedfa.events import Job
from fedfa.federation import Client
from fedfa.log import Birth
from fedfa.messages import InitReady, UpdateReady
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.tensor_files import file_parts
from fedfa.tensors import FlatModel, Template
from fedfa.update_files import UNNAMED, finished

ATTEMPT = "1764495000000-0a1b2c3d-000001"
SCALE = 0.01  # of the numbers: any federation of them stays finite


def numbers(template: Template, *, seed: int = 0) -> FlatModel:
    generator = np.random.default_rng(seed)
    floats = generator.standard_normal(template.num_floats, dtype=np.float32)
    floats *= np.float32(SCALE)
    return FlatModel(template, floats, np.zeros(template.num_integers, np.int64))


@dataclass(frozen=True, slots=True)
class Played:
    """Writes what trainers write. vector: the content of every file."""

    store: ObjectStore
    submitted: Submission
    vector: FlatModel

    @property
    def id(self) -> str:
        return self.submitted.federation

    @property
    def clients(self) -> tuple[Client, ...]:
        number = self.submitted.spec.clients or 0
        return tuple(Client(f"client-{at:06d}", 10) for at in range(number))

    def initial(self, *, attempt: str = ATTEMPT) -> InitReady:
        """Version 0 is written; the message announces it."""
        birth = Birth(self.clients, self.vector.template, sha256(b""))
        parts = file_parts(self.vector, ledger.birth_metadata(birth))
        digest = sha256(*parts)
        key = keys.model(self.id, 0, digest)
        self.store.upload(key, parts, digest=digest)
        return InitReady(
            federation=self.id,
            uid=self.submitted.uid,
            attempt=attempt,
            key=key,
            digest=digest,
        )

    def update(
        self,
        job: Job,
        *,
        client: str,
        version: int,
        attempt: str = ATTEMPT,
    ) -> UpdateReady:
        """The update's file is written; the message announces it."""
        draft = UpdateReady(
            federation=self.id,
            uid=self.submitted.uid,
            slot=job.slot,
            generation=job.generation,
            attempt=attempt,
            key=UNNAMED,
            client=client,
            base_version=version,
            num_examples=10,
            num_steps=5,
            loss=1.0,
            trainer="played",
            started_at=time.time(),
            train_seconds=0.1,
            delay_seconds=0.0,
        )
        update, parts, digest = finished(draft, self.vector, self.submitted.spec)
        self.store.upload(update.key, parts, digest=digest)
        return update
