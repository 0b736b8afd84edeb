"""From a finished update to the next job in a trainer's hands; how late the scheduler's loop is.

    python benchmarks/dispatch.py

A real scheduler, a real aggregator, a private RabbitMQ and SeaweedFS; trainers are played. The
clock runs from the moment before UpdateReady (0.15 MB, stored already) is published to the arrival
of the slot's next TrainJob. `alone`: one update at a time, the federations in turn. `full`: every
job is finished as soon as it is claimed, which is all that this machine can do: what is open waits
in some queue. `half`: about half as many a second. The floor is what any such path costs here:
two confirmed messages through the same broker and one 0.15 MB object written to the same bucket.

`handed back`: from JobReleased to the same job again; under traffic it is every tenth job. The
scheduler does that by itself, with one look at the bucket, and hears it in the same queue as
heartbeats: so much later than alone as it comes, so late is its loop. The aim is a loop that does
not fall behind with 10,000 clients, be they of 50 federations or of one with Mc = 1,000.

The aims for `alone` are for a machine with nothing else to do: see the load average.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

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

HANDED_BACK_EVERY = 10  # jobs, under traffic
LEASE_SECONDS = 3600
PATIENCE_SECONDS = 60.0
P50, P99, RATE = "p50 ms", "p99 ms", "jobs/s"
FLOOR = "floor: two messages, one object"

Answer = Callable[[Trainers, TrainJob], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Size:
    """slots and clients are those of each federation."""

    federations: int
    slots: int
    clients: int

    def __str__(self) -> str:
        plural = "s" * (self.federations > 1)
        return (
            f"{self.federations} federation{plural} of Mc = {self.slots:,} and "
            f"{self.clients:,} clients"
        )


SIZES = (
    Size(1, 4, 16),
    Size(10, 4, 16),
    Size(100, 4, 16),
    Size(50, 20, 200),
    Size(1, 1000, 10_000),
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", type=size, default=SIZES, help="each FEDERATIONSxMcxCLIENTS"
    )
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--full-seconds", type=float, default=10.0)
    given = parser.parse_args()
    for each in given.sizes:
        with Stage() as stage:
            cases = measure(stage, each, samples=given.samples, seconds=given.full_seconds)
        baselines = {P50: [FLOOR], P99: [FLOOR]}
        write(given.results, "dispatch", Group(str(each), cases, baselines))


def size(text: str) -> Size:
    return Size(*map(int, text.split("x")))


def measure(
    stage: Stage, case: Size, *, samples: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    federations = dict(submitted(stage, case))
    num_jobs = case.federations * case.slots
    trainers = Trainers(stage, federations, at_once=2 * num_jobs)
    stage.start(AGGREGATOR)
    stage.start(SCHEDULER, FEDFA_LEASE_TTL_SECONDS=str(LEASE_SECONDS))
    for played in federations.values():
        trainers.publish(submission.start_message(played.submitted))
    jobs = deque(take(trainers, num_jobs))
    floors = list(floor(stage, samples))
    alone = one_by_one(trainers, jobs, samples, finish)
    alone_back = one_by_one(trainers, jobs, samples, hand_back)
    full, most = traffic(trainers, jobs, seconds, pause=0.0)
    half, rate = traffic(trainers, jobs, seconds, pause=2 / most)
    return {
        FLOOR: percentiles(floors),
        "alone": percentiles(alone),
        "half": percentiles(half[finish]) | {RATE: [rate]},
        "full": percentiles(full[finish]) | {RATE: [most]},
        "handed back, alone": percentiles(alone_back),
        "handed back, half": percentiles(half[hand_back]),
        "handed back, full": percentiles(full[hand_back]),
    }


def percentiles(milliseconds: list[float]) -> dict[str, list[float]]:
    return {P50: [percentile(milliseconds, 0.5)], P99: [percentile(milliseconds, 0.99)]}


def submitted(stage: Stage, case: Size) -> Iterator[tuple[str, Played]]:
    vector = numbers(template("lora"))
    fields = {
        "rule": {"name": "fedfa-delta", "window": 5},
        "concurrency": case.slots,
        "clients": case.clients,
        "evaluation": {"every_versions": 1_000_000},
    }
    for at in range(case.federations):
        name = f"dispatch-{at:03d}"
        yield name, Played(stage.store, submission.submit(stage.store, parse(fields), name), vector)


def take(trainers: Trainers, number: int) -> list[TrainJob]:
    jobs: list[TrainJob] = []

    def is_complete() -> bool:
        jobs.extend(job for job, _ in trainers.take(0.1))
        return len(jobs) >= number

    wait(is_complete)
    return jobs


def finish(trainers: Trainers, job: TrainJob) -> Callable[[], None]:
    return partial(trainers.deliver, trainers.prepare(job))


def hand_back(trainers: Trainers, job: TrainJob) -> Callable[[], None]:
    return partial(trainers.hand_back, job)


def one_by_one(
    trainers: Trainers, jobs: deque[TrainJob], samples: int, answer: Answer
) -> list[float]:
    """The milliseconds of each exchange; `jobs` are those that are open, before and after."""
    latencies: list[float] = []
    for _ in range(samples):
        send = answer(trainers, jobs.popleft())
        time.sleep(0.02)  # what the file's writing left to do is done
        started = time.perf_counter()
        send()
        arrived = trainers.take(PATIENCE_SECONDS)
        assert arrived, f"no job for {PATIENCE_SECONDS:g} s"
        latencies.append((arrived[0][1] - started) * 1e3)
        jobs.extend(job for job, _ in arrived)
    return latencies


def traffic(
    trainers: Trainers, jobs: deque[TrainJob], seconds: float, *, pause: float
) -> tuple[dict[Answer, list[float]], float]:
    """Milliseconds from each answer to the slot's next job, and finished jobs per second.

    An open job is answered every `pause` seconds. All are open again at the end.
    """
    latencies: dict[Answer, list[float]] = {finish: [], hand_back: []}
    sent: dict[tuple[str, int], tuple[Answer, float]] = {}
    started, turn = time.perf_counter(), 0
    end = started + seconds
    while (now := time.perf_counter()) < end or sent:
        assert now < end + PATIENCE_SECONDS, f"{len(sent)} jobs are missing"
        if jobs and started + turn * pause <= now < end:
            turn += 1
            job = jobs.popleft()
            answer = finish if turn % HANDED_BACK_EVERY else hand_back
            send = answer(trainers, job)
            sent[job.federation, job.slot] = answer, time.perf_counter()
            send()
        for job, at in trainers.take(0.001):
            answer, since = sent.pop((job.federation, job.slot))
            latencies[answer].append((at - since) * 1e3)
            jobs.append(job)
    return latencies, len(latencies[finish]) / (time.perf_counter() - started)


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
