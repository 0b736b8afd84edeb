"""What a trainer gains by reading the next job's model while one trains, and what that costs.

    python benchmarks/prefetch.py

Two real trainers, a real scheduler and aggregator on a private RabbitMQ and SeaweedFS, a ResNet18
of 45 MB, and four times as many open jobs as trainers: a job always waits. Training is a sleep of
two seconds, as it would be on an accelerator of a trainer's own; reads, uploads and merges are
real, and share the processor. In each round, interleaved, each on servers of its own: one job at a
time; FEDFA_TRAINER_PREFETCH, which holds a second one and reads its model at once; and two jobs
held without it (FEDFA_TRAINER_JOBS), where the second reads its model when its turn has come. The
pause lies between the end of a training and the start of the same trainer's next, by the trainers'
own times in the log. Staleness is in versions, of all updates that were merged in the round.
"""

import itertools
import os
import statistics
import time

import torch
from crew import await_everyone
from results import Group, options, write
from torch import nn
from torch.utils.data import TensorDataset

from fedfa import submission
from fedfa.broker import Publisher
from fedfa.history import HistoryReader
from fedfa.local.stack import LocalStack
from fedfa.rows import Row
from fedfa.spec import FederationSpec, parse
from fedfa.tasks import base as tasks
from fedfa.tasks.classification import client_name
from fedfa.tasks.vision import small_resnet18
from fedfa.topology import EVENTS

ID = "prefetch"
TRAINERS, SLOTS = 2, 8
TRAIN_SECONDS = 2.0
RATE, PAUSE, STALENESS = "updates/s", "pause s", "mean staleness"
BASELINE = "one job"
CASES = {  # jobs that a trainer holds, and FEDFA_TRAINER_PREFETCH
    BASELINE: (1, False),
    "one job, prefetch": (1, True),
    "two jobs": (2, False),
}


class Sleeper:
    """A task whose training takes time, and next to nothing of the processor."""

    def __init__(self, spec: FederationSpec) -> None:
        self._spec = spec

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._spec.seed)
            return small_resnet18(64, 10)

    def clients(self) -> dict[str, int]:
        return {client_name(number): 1 for number in range(self._spec.clients or 0)}

    def shard(self, client: str) -> TensorDataset:
        return TensorDataset(torch.zeros(1, 1))

    def loss(self, model: nn.Module, batch: tasks.Batch) -> torch.Tensor:
        """A function of the last bias alone; the other updates are zeros, of as many bytes."""
        time.sleep(TRAIN_SECONDS)
        return model.get_parameter("fc.bias").square().mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": 0.0}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    given = parser.parse_args()
    cases: dict[str, dict[str, list[float]]] = {name: {} for name in CASES}
    for _ in range(given.rounds):
        for name, (jobs, prefetch) in CASES.items():
            found = figures(run(given.seconds, jobs=jobs, prefetch=prefetch))
            for metric, value in found.items():
                cases[name].setdefault(metric, []).append(value)
            print(f"{name}: {found}", flush=True)
    title = f"45 MB, {TRAINERS} trainers, Mc = {SLOTS}, trainings of {TRAIN_SECONDS:g} s"
    baselines = {metric: [BASELINE] for metric in (RATE, PAUSE, STALENESS)}
    write(given.results, "prefetch", Group(title, cases, baselines))


def run(seconds: float, *, jobs: int, prefetch: bool) -> list[Row]:
    """What is merged within so many seconds, once every trainer has delivered."""
    spec = {
        "task": {"name": "prefetch:Sleeper"},
        "rule": {"name": "fedfa-delta", "window": 5},
        "concurrency": SLOTS,
        "clients": 2 * SLOTS,
        "local": {"steps": 1, "optimizer": {"name": "sgd", "learning_rate": 0.01}},
        "evaluation": {"every_versions": 1_000_000},
    }
    os.environ["FEDFA_TRAINER_PREFETCH"] = str(prefetch)  # which the trainers inherit
    with LocalStack(
        trainers=TRAINERS,
        jobs_per_trainer=jobs,
        lease_ttl_seconds=60,
        task_allow="prefetch",
    ) as stack:
        store = stack.store()
        submitted = submission.submit(store, parse(spec), ID)
        publisher = Publisher(stack.broker_settings(), name=ID)
        publisher.publish(submission.start_message(submitted), EVENTS)
        history = HistoryReader(store, ID)
        await_everyone(history, {name for name in stack.processes if "trainer" in name})
        started_at = time.time() + 2 * TRAIN_SECONDS  # the first jobs read their models unprepared
        time.sleep(2 * TRAIN_SECONDS + seconds)
        publisher.close()
        merged = history.refresh().merged
    return [row for row in merged if started_at <= row.at < started_at + seconds]


def figures(rows: list[Row]) -> dict[str, float]:
    pauses = []
    for trainer in {row.trainer for row in rows}:
        times = sorted(
            (row.started_at, row.train_seconds)
            for row in rows
            if row.trainer == trainer and row.started_at and row.train_seconds
        )
        pauses += [
            after - (before + trained)
            for (before, trained), (after, _) in itertools.pairwise(times)
        ]
    return {
        RATE: (len(rows) - 1) / (rows[-1].at - rows[0].at),
        PAUSE: statistics.fmean(pauses),
        STALENESS: statistics.fmean(row.staleness for row in rows if row.staleness is not None),
    }


if __name__ == "__main__":
    main()
