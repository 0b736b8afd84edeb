"""A real aggregator with a backlog: updates per second, CPU time per update, peak memory.

    python benchmarks/aggregator.py                                 0.15, 17.5 and 45 MB
    python benchmarks/aggregator.py --models bert --updates 8       438 MB

A private RabbitMQ, and two stores that share the processor with what is measured: SeaweedFS, which
is what bounds a small machine, and null_store.py, which shows what the aggregator itself does. In
each round, interleaved: the store's own limit (raw GET and PUT of the same bytes), ours one commit
for each update, ours with a backlog that shares commits, and the straightforward way
(plain_aggregator.py). Each is a fresh process that has filled its window before the clock starts.
"""

import itertools
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import template
from played import Played, numbers
from results import Group, options, write
from stage import AGGREGATOR, Stage, announce, cpu_seconds, peak_mib, received, wait

from fedfa import submission
from fedfa.canonical import sha256
from fedfa.events import Job
from fedfa.federation import found
from fedfa.spec import parse
from fedfa.tensor_files import file_parts
from fedfa.tensors import FlatModel
from fedfa.topology import BROADCAST_QUEUE, UPDATES

WINDOW = 5
MODELS = {  # updates of a run beside the window's, and the model's name for people
    "lora": (300, "0.15 MB (LoRA)"),
    "tiny": (30, "17.5 MB (a small BERT)"),
    "resnet18": (16, "45 MB (ResNet18)"),
    "bert": (8, "438 MB (BERT)"),
}
MOST_RAW = 40
STORES = ("SeaweedFS", "null")
RATE, CPU, PEAK = "updates/s", "CPU ms/update", "peak MiB"
LIMIT, PUT, ONE, BACKLOG, PLAIN = (
    "limit: raw GET and PUT",
    "limit: raw PUT",
    "ours, one by one",
    "ours, backlog",
    "straightforward",
)
Run = dict[str, float]  # metric -> what one process did with its updates


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["lora", "tiny", "resnet18"])
    parser.add_argument("--updates", type=int, help="of each run, beside the window's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    given = parser.parse_args()
    for model, store in itertools.product(given.models, given.stores):
        number, title = MODELS[model]
        with Stage(has_null_store=store == "null") as stage:
            runs = measure(
                stage,
                numbers(template(model)),
                rounds=given.rounds,
                num_updates=given.updates or number,
            )
        cases = {
            name: {metric: [run[metric] for run in each] for metric in each[0]}
            for name, each in runs.items()
        }
        baselines = {RATE: [PUT, ONE], CPU: [PLAIN]}
        write(given.results, "aggregator", Group(f"{title}, {store} store", cases, baselines))


def measure(
    stage: Stage, vector: FlatModel, *, rounds: int, num_updates: int
) -> dict[str, list[Run]]:
    plain = [sys.executable, str(Path(__file__).with_name("plain_aggregator.py"))]

    def ours(max_batch: int) -> Run:
        return aggregate(stage, vector, AGGREGATOR, max_batch=max_batch, num_updates=num_updates)

    num_raw = min(num_updates, MOST_RAW)
    cases: dict[str, Callable[[], Run]] = {
        LIMIT: lambda: raw(stage, vector, with_get=True, number=num_raw),
        PUT: lambda: raw(stage, vector, with_get=False, number=num_raw),
        ONE: lambda: ours(1),
        BACKLOG: lambda: ours(64),
        PLAIN: lambda: aggregate(stage, vector, plain, max_batch=1, num_updates=num_updates),
    }
    raw(stage, vector, with_get=False, number=1)
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            runs[name].append(case())
    return runs


def raw(stage: Stage, vector: FlatModel, *, with_get: bool, number: int) -> Run:
    """The same bytes through the same client, and nothing else."""
    parts = file_parts(vector)
    digest = sha256(*parts)
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(number):
        if with_get:
            stage.store.download("raw/model")
        stage.store.upload("raw/model", parts, digest=digest)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {RATE: number / seconds, CPU: cpu * 1e3 / number}


def aggregate(
    stage: Stage, vector: FlatModel, command: Sequence[str], *, max_batch: int, num_updates: int
) -> Run:
    """Updates are announced at once; the clock runs from there to the last ModelReady."""
    total = WINDOW + num_updates
    fields = {
        "rule": {"name": "fedfa-param", "window": WINDOW},
        "concurrency": total,
        "clients": total,
        "evaluation": {"every_versions": 1_000_000},
        "limits": {"max_batch": max_batch},
    }
    name = f"bench-{secrets.token_hex(4)}"
    played = Played(stage.store, submission.submit(stage.store, parse(fields), name), vector)
    slots = found(played.submitted.spec, played.clients).state.slots
    updates = [
        played.update(Job(number, 1), client=slot.client, version=0)
        for number, slot in enumerate(slots)
    ]
    init = played.initial()
    process = stage.start(command)
    publisher = stage.publisher()
    heard = stage.consumer((BROADCAST_QUEUE, 1000))
    publisher.publish(init, UPDATES)
    wait(lambda: received(heard))
    announce(publisher, heard, updates[:WINDOW])
    cpu, started = cpu_seconds(process), time.perf_counter()
    announce(publisher, heard, updates[WINDOW:])
    seconds, cpu = time.perf_counter() - started, cpu_seconds(process) - cpu
    run = {RATE: num_updates / seconds, CPU: cpu * 1e3 / num_updates, PEAK: peak_mib(process)}
    process.stop()
    for each in stage.store.list(f"{name}/"):
        stage.store.delete(each.key)
    return run


if __name__ == "__main__":
    main()
