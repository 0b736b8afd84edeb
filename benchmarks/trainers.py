"""Plays any number of trainers in one process, towards a real scheduler and a real aggregator."""

import time
from collections.abc import Mapping
from dataclasses import replace

from played import Played
from stage import Stage

from fedfa import keys
from fedfa.broker import Delivery, Publisher
from fedfa.canonical import canonical_json
from fedfa.events import Job
from fedfa.messages import (
    AnyMessage,
    EvalJob,
    EvalReady,
    InitModel,
    JobReleased,
    JobStarted,
    TrainJob,
    UpdateReady,
)
from fedfa.pools import DEFAULT_POOL
from fedfa.tensors import FlatModel
from fedfa.topology import BROADCAST, EVENTS, UPDATES, jobs_queue

NAME = "played"


class Trainers:
    """Takes every job at once, and finishes each when it is told to.

    A lease must be longer than any job: there are no heartbeats.
    """

    def __init__(
        self,
        stage: Stage,
        federations: Mapping[str, Played],
        *,
        at_once: int,
    ) -> None:
        """at_once: the most jobs that are handed out and not claimed yet."""
        self._federations = federations
        self._publisher: Publisher = stage.publisher()
        self._consumer = stage.consumer((jobs_queue(DEFAULT_POOL), at_once))

    def publish(self, message: AnyMessage) -> None:
        """What goes to the scheduler, before there are jobs."""
        self._publisher.publish(message, EVENTS)

    def take(self, seconds: float) -> list[tuple[TrainJob, float]]:
        """The jobs that have arrived, each with the moment, or that arrive within these seconds.

        Other work is done on the way.
        """
        deadline = time.perf_counter() + seconds
        while True:
            now = time.perf_counter()
            jobs = [(job, now) for each in self._consumer.ready() if (job := self._claim(each))]
            if jobs or now >= deadline:
                return jobs
            time.sleep(0.0005)

    def prepare(self, job: TrainJob, *, vector: FlatModel | None = None) -> UpdateReady:
        """Write the update's file: of these numbers, or of the federation's."""
        played = self._federations[job.federation]
        return replace(played, vector=vector or played.vector).update(
            Job(job.slot, job.generation),
            client=job.client,
            version=job.opened_at,
            attempt=job.attempt,
        )

    def deliver(self, update: UpdateReady) -> None:
        self._publisher.publish(update, UPDATES)

    def hand_back(self, job: TrainJob) -> None:
        """The scheduler will hand it out again."""
        released = JobReleased.model_validate(_facts(job) | {"reason": "handed back"})
        self._publisher.publish(released, EVENTS)

    def _claim(self, delivery: Delivery) -> TrainJob | None:
        message = delivery.message()
        match message:
            case TrainJob():
                started = JobStarted.model_validate(_facts(message))
                self._publisher.publish(started, EVENTS)
                self._publisher.publish(started, BROADCAST)
            case InitModel():
                played = self._federations[message.federation]
                self._publisher.publish(played.initial(attempt=message.attempt), UPDATES)
            case EvalJob():
                self._evaluate(message)
            case _:
                raise AssertionError(message.kind)
        delivery.ack()
        return message if isinstance(message, TrainJob) else None

    def _evaluate(self, job: EvalJob) -> None:
        fields = {"version": job.version, "at": time.time(), "metrics": {"loss": 1.0}}
        store = self._federations[job.federation].store
        store.put(keys.evaluation(job.federation, job.version), canonical_json(fields).encode())
        ready = EvalReady(federation=job.federation, uid=job.uid, version=job.version)
        self._publisher.publish(ready, EVENTS)


def _facts(job: TrainJob) -> dict[str, object]:
    """What every message about it says."""
    return {
        "federation": job.federation,
        "uid": job.uid,
        "task": "train",
        "slot": job.slot,
        "generation": job.generation,
        "attempt": job.attempt,
        "trainer": NAME,
        "pools": (DEFAULT_POOL,),
    }
