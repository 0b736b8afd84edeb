"""How many jobs really run, with trainers that sleep by a long-tailed law.

    python benchmarks/concurrency.py

A real scheduler, a real aggregator, a private RabbitMQ and SeaweedFS; there are trainers enough,
and they are played: each job sleeps its client's delay (Pareto with exponent 1.5, at least one
second, drawn by the spec) and then delivers 0.15 MB. Counted is the sleep alone: hand-out, claim,
upload, merge and the benchmark's own work are all time in which a slot does not run. FedAvg, which
waits for the slowest of each round, and FedBuff, whose slots reopen together, run the same law.
"""

import heapq
import time
from concurrent.futures import Future, ThreadPoolExecutor

from measure import template
from played import Played, numbers
from results import Curves, Group, options, write
from stage import AGGREGATOR, SCHEDULER, Stage
from trainers import Trainers

from fedfa import submission
from fedfa.messages import TrainJob
from fedfa.spec import parse

LEASE_SECONDS = 3600
DELIVERERS = 8
LOOK_SECONDS = 0.005
SHARE, RATE = "mean running / Mc", "updates/s"
BASELINE = "fedavg"
RULES: dict[str, dict[str, object]] = {
    "fedfa-delta": {"name": "fedfa-delta", "window": 5},
    "fedbuff, refill at flush": {"name": "fedbuff", "window": 4, "refill": "at_flush"},
    BASELINE: {"name": "fedavg"},
}

Interval = tuple[float, float]  # a sleep, in seconds of one clock


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--slots", nargs="+", type=int, default=[4, 16, 64], help="Mc")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    given = parser.parse_args()
    for slots in given.slots:
        cases, lines = {}, {}
        for name, rule in RULES.items():
            with Stage() as stage:
                began, sleeps = run(stage, rule, slots, given.seconds)
            running = sum(clipped(each, began, given.seconds) for each in sleeps)
            finished = sum(began <= end < began + given.seconds for _, end in sleeps)
            share = running / (given.seconds * slots)
            cases[name] = {SHARE: [share], RATE: [finished / given.seconds]}
            lines[name] = over_time(sleeps, began, given.seconds)
        curves = Curves("seconds", "jobs that run", lines)
        baselines = {SHARE: [], RATE: [BASELINE]}
        write(given.results, "concurrency", Group(f"Mc = {slots}", cases, baselines, curves))


def run(
    stage: Stage, rule: dict[str, object], slots: int, seconds: float
) -> tuple[float, list[Interval]]:
    """When every slot ran for the first time, and all sleeps that began before the end."""
    fields = {
        "rule": rule,
        "concurrency": slots,
        "clients": 4 * slots,
        "delay": {"distribution": "pareto", "shape": 1.5, "unit_seconds": 1.0},
        "evaluation": {"every_versions": 1_000_000},
    }
    submitted = submission.submit(stage.store, parse(fields), "concurrency")
    played = Played(stage.store, submitted, numbers(template("lora")))
    trainers = Trainers(stage, {played.id: played}, at_once=2 * slots)
    stage.start(AGGREGATOR)
    stage.start(SCHEDULER, FEDFA_LEASE_TTL_SECONDS=str(LEASE_SECONDS))
    trainers.publish(submission.start_message(submitted))
    sleeps: list[Interval] = []
    waking: list[tuple[float, int, TrainJob]] = []
    began = end = float("inf")
    delivered: list[Future[None]] = []

    def deliver(job: TrainJob) -> None:
        trainers.deliver(trainers.prepare(job))

    with ThreadPoolExecutor(DELIVERERS) as deliverers:
        while time.perf_counter() < end:
            for job, arrived in trainers.take(LOOK_SECONDS):
                sleeps.append((arrived, arrived + job.delay_seconds))
                heapq.heappush(waking, (sleeps[-1][1], len(sleeps), job))
            if began == float("inf") and len(sleeps) >= slots:
                began = time.perf_counter()
                end = began + seconds
            while waking and waking[0][0] <= time.perf_counter():
                delivered.append(deliverers.submit(deliver, heapq.heappop(waking)[2]))
    for each in delivered:
        each.result()  # raises what it raised
    return began, sleeps


def clipped(sleep: Interval, began: float, seconds: float) -> float:
    return max(0.0, min(sleep[1], began + seconds) - max(sleep[0], began))


def over_time(sleeps: list[Interval], began: float, seconds: float) -> list[tuple[float, float]]:
    """The jobs that sleep at each of 200 moments."""
    moments = [began + seconds * at / 200 for at in range(200)]
    return [
        (round(at - began, 2), sum(start <= at < end for start, end in sleeps)) for at in moments
    ]


if __name__ == "__main__":
    main()
