"""From a finished update to the next job in a trainer's hands, with 1, 10 and 100 federations.

    python benchmarks/dispatch.py

A real scheduler, a real aggregator, a private RabbitMQ and SeaweedFS; trainers are played. The
clock runs from the moment before UpdateReady (0.15 MB, stored already) is published to the arrival
of the slot's next TrainJob. `alone`: one update at a time, the federations in turn. `full`: every
job is finished as soon as it is claimed. The floor is what any such path costs here: two confirmed
messages through the same broker and one 0.15 MB object written to the same bucket.
"""

import time
from collections.abc import Iterator

from measure import percentile, template
from played import Played, numbers
from results import Group, options, write
from stage import AGGREGATOR, SCHEDULER, Stage, received, wait
from trainers import Trainers

from fedfa import submission
from fedfa.canonical import sha256
from fedfa.messages import StartFederation, TrainJob
from fedfa.spec import parse
from fedfa.tensor_files import file_parts
from fedfa.topology import Queue, Route

SLOTS = 4
LEASE_SECONDS = 3600
PATIENCE_SECONDS = 60.0
P50, P99, RATE = "p50 ms", "p99 ms", "jobs/s"
FLOOR = "floor: two messages, one object"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--federations", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--full-seconds", type=float, default=10.0)
    given = parser.parse_args()
    for number in given.federations:
        with Stage() as stage:
            cases = measure(stage, number, samples=given.samples, seconds=given.full_seconds)
        name = f"{number} federation{'s' * (number > 1)}, {SLOTS} jobs each"
        baselines = {P50: [FLOOR], P99: [FLOOR]}
        write(given.results, "dispatch", Group(name, cases, baselines))


def measure(
    stage: Stage, number: int, *, samples: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    federations = dict(submitted(stage, number))
    trainers = Trainers(stage, federations, at_once=2 * SLOTS * number)
    stage.start(AGGREGATOR)
    stage.start(SCHEDULER, FEDFA_LEASE_TTL_SECONDS=str(LEASE_SECONDS))
    for played in federations.values():
        trainers.publish(submission.start_message(played.submitted))
    jobs = take(trainers, SLOTS * number)
    floors = list(floor(stage, samples))
    jobs, latencies = one_by_one(trainers, jobs, samples)
    rate, under_load = at_full_speed(trainers, jobs, seconds)
    return {
        FLOOR: {P50: [percentile(floors, 0.5)], P99: [percentile(floors, 0.99)]},
        "alone": {P50: [percentile(latencies, 0.5)], P99: [percentile(latencies, 0.99)]},
        "full": {
            P50: [percentile(under_load, 0.5)],
            P99: [percentile(under_load, 0.99)],
            RATE: [rate],
        },
    }


def submitted(stage: Stage, number: int) -> Iterator[tuple[str, Played]]:
    vector = numbers(template("lora"))
    fields = {
        "rule": {"name": "fedfa-delta", "window": 5},
        "concurrency": SLOTS,
        "clients": 4 * SLOTS,
        "evaluation": {"every_versions": 1_000_000},
    }
    for at in range(number):
        name = f"dispatch-{at:03d}"
        yield name, Played(stage.store, submission.submit(stage.store, parse(fields), name), vector)


def take(trainers: Trainers, number: int) -> list[TrainJob]:
    jobs: list[TrainJob] = []

    def is_complete() -> bool:
        jobs.extend(job for job, _ in trainers.take(0.1))
        return len(jobs) >= number

    wait(is_complete)
    return jobs


def one_by_one(
    trainers: Trainers, jobs: list[TrainJob], samples: int
) -> tuple[list[TrainJob], list[float]]:
    """The jobs that are open then, and the milliseconds of each exchange."""
    latencies: list[float] = []
    for _ in range(samples):
        job, *jobs = jobs
        update = trainers.prepare(job)
        time.sleep(0.02)  # what the file's writing left to do is done
        started = time.perf_counter()
        trainers.deliver(update)
        arrived = trainers.take(PATIENCE_SECONDS)
        assert arrived, f"no job for {PATIENCE_SECONDS:g} s after {update.key}"
        latencies.append((arrived[0][1] - started) * 1e3)
        jobs = [*jobs, *(each for each, _ in arrived)]
    return jobs, latencies


def at_full_speed(
    trainers: Trainers, jobs: list[TrainJob], seconds: float
) -> tuple[float, list[float]]:
    """Jobs per second, and the milliseconds from each delivery to its slot's next job."""
    delivered: dict[tuple[str, int], float] = {}
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for job in jobs:
            update = trainers.prepare(job)
            delivered[job.federation, job.slot] = time.perf_counter()
            trainers.deliver(update)
        arrived = trainers.take(PATIENCE_SECONDS)
        assert arrived, f"no job for {PATIENCE_SECONDS:g} s"
        jobs = [job for job, _ in arrived]
        latencies += [(at - delivered[job.federation, job.slot]) * 1e3 for job, at in arrived]
    return len(latencies) / seconds, latencies


def floor(stage: Stage, samples: int) -> Iterator[float]:
    """Milliseconds, as if nobody decided anything."""
    route = Route("bench.floor", kind="fanout")
    publisher, consumer = stage.publisher(), stage.consumer((Queue("", route), 10))
    parts = file_parts(numbers(template("lora")))
    digest = sha256(*parts)
    message = StartFederation(federation="floor", uid="0" * 32)
    for _ in range(samples):
        started = time.perf_counter()
        for _ in range(2):
            publisher.publish(message, route)
            wait(lambda: received(consumer))
        stage.store.upload("floor/model", parts, digest=digest)
        yield (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
