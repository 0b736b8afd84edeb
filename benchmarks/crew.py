"""Throughput with 1 to 16 trainer processes whose jobs take a known time.

    python benchmarks/crew.py

Real trainers, a real scheduler and aggregator on a private RabbitMQ and SeaweedFS. A job is a short
training on digits and one second of simulated delay, which a trainer with one job sleeps out: what
16 of them need of the processor is small, and what is left is hand-out, claim, delivery and merge.
The limit is so many trainers that deliver once a second each.
"""

import time

from results import Group, options, write

from fedfa import manifests, submission
from fedfa.broker import Publisher
from fedfa.delays import delay_seconds
from fedfa.history import HistoryReader
from fedfa.local.stack import LocalStack
from fedfa.sections import Delay
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import EVENTS

ID = "crew"
JOB_SECONDS = 1.0
DELAY = Delay(distribution="pareto", shape=100.0, unit_seconds=JOB_SECONDS)  # hardly a tail
RATE, SHARE = "updates/s", "of the limit"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--trainers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each size")
    given = parser.parse_args()
    most = max(given.trainers)
    spec = {
        "task": {"name": "digits"},
        "rule": {"name": "fedfa-delta", "window": 5},
        "concurrency": 2 * most,
        "clients": 4 * most,
        "local": {"steps": 1, "optimizer": {"name": "sgd", "learning_rate": 0.01}},
        "delay": DELAY.model_dump(),
        "evaluation": {"every_versions": 1_000_000},
    }
    cases: dict[str, dict[str, list[float]]] = {}
    with LocalStack(trainers=1, jobs_per_trainer=1, lease_ttl_seconds=60) as stack:
        store = stack.store()
        submitted = submission.submit(store, parse(spec), ID)
        publisher = Publisher(stack.broker_settings(), name=ID)
        publisher.publish(submission.start_message(submitted), EVENTS)
        mean_delay = sum(
            delay_seconds(DELAY, seed=submitted.spec.seed, client=name) for name in clients(store)
        ) / (4 * most)
        history = HistoryReader(store, ID)
        for number in sorted(given.trainers):
            for _ in range(number - sum(name.startswith("trainer") for name in stack.processes)):
                stack.add_trainer()
            stack.wait_until_up()
            await_everyone(history, {name for name in stack.processes if "trainer" in name})
            before, started = merged(store), time.perf_counter()
            time.sleep(given.seconds)
            rate = (merged(store) - before) / (time.perf_counter() - started)
            cases[f"{number} trainer{'s' * (number > 1)}"] = {
                RATE: [rate],
                SHARE: [rate * mean_delay / number],
            }
        publisher.close()
    baselines = {RATE: [next(iter(cases))]}
    write(given.results, "crew", Group(f"jobs of {mean_delay:.2f} s", cases, baselines))


def clients(store: ObjectStore) -> list[str]:
    """Once the federation is born."""
    await_merged(store, 0)
    return [client.name for client in manifests.birth_of(store, ID).clients]


def merged(store: ObjectStore) -> int:
    newest = manifests.newest(store, ID)
    return -1 if newest is None else newest.manifest.state.num_merged


def await_merged(store: ObjectStore, number: int) -> None:
    while merged(store) < number:
        time.sleep(0.1)


def await_everyone(history: HistoryReader, trainers: set[str]) -> None:
    """Until each has delivered once: its task is loaded, its model built."""
    while trainers - {row.trainer for row in history.refresh().rows}:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
