"""Time to the same accuracy by FedFa-Delta, FedBuff and FedAvg, through the real services.

    python benchmarks/speedup.py                     three seeds, accuracy 0.9 on digits

Two real trainers with eight jobs each, a real scheduler and aggregator on a private RabbitMQ and
SeaweedFS; every client's upload is held back by its own Pareto delay, really slept. The clock runs
from the birth of version 0 to the evaluation that reaches the target; a run that does not reach it
in time counts with the time it had, which flatters it. The seed fixes split, clients and delays,
and is the same for all rules of a round. One model, one data set, one law of delays: how much FedFa
gains elsewhere is another measurement.
"""

import time
from argparse import Namespace

from results import Curves, Group, options, write

from fedfa import submission
from fedfa.broker import Publisher
from fedfa.history import HistoryReader
from fedfa.local.stack import LocalStack
from fedfa.rows import History
from fedfa.spec import parse
from fedfa.topology import EVENTS

SECONDS, UPDATES, REACHED = "s to target", "updates to target", "reached it"
LOOK_SECONDS = 0.5
TRAINERS, JOBS_PER_TRAINER, SLOTS = 2, 8, 8  # room for an evaluation while every slot sleeps
BASELINE = "fedavg"
RULES = {  # and the versions between two evaluations: about Mc updates under each
    "fedfa-delta": ({"name": "fedfa-delta", "window": 5}, SLOTS),
    "fedbuff": ({"name": "fedbuff", "window": 5}, 2),
    BASELINE: ({"name": "fedavg"}, 1),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.9, help="accuracy")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one run")
    parser.add_argument("--unit", type=float, default=0.2, help="seconds, of the delays")
    given = parser.parse_args()
    cases: dict[str, dict[str, list[float]]] = {
        name: {SECONDS: [], UPDATES: [], REACHED: []} for name in RULES
    }
    lines = {}
    with LocalStack(
        trainers=TRAINERS, jobs_per_trainer=JOBS_PER_TRAINER, lease_ttl_seconds=120
    ) as stack:
        publisher = Publisher(stack.broker_settings(), name="bench")
        for seed in given.seeds:
            for name in RULES:
                history = run(stack, publisher, name, seed, given)
                assert history.born_at is not None
                reached = [
                    each
                    for each in history.evaluations
                    if each.metrics.get("accuracy", 0.0) >= given.target
                ]
                ended = reached[0].at if reached else history.born_at + given.limit
                merged = sum(row.outcome == "merged" and row.at <= ended for row in history.rows)
                cases[name][SECONDS].append(ended - history.born_at)
                cases[name][UPDATES].append(merged)
                cases[name][REACHED].append(float(bool(reached)))
                lines[f"{name}, seed {seed}"] = over_time(history)
                print(f"seed {seed}, {name}: {cases[name][SECONDS][-1]:.1f} s", flush=True)
        publisher.close()
    title = f"digits, 20 clients, Dirichlet 0.3, Mc = {SLOTS}, accuracy {given.target:g}"
    curves = Curves("seconds", "accuracy", lines)
    write(given.results, "speedup", Group(title, cases, {SECONDS: [BASELINE]}, curves))


def run(stack: LocalStack, publisher: Publisher, name: str, seed: int, given: Namespace) -> History:
    rule, every_versions = RULES[name]
    spec = {
        "task": {"name": "digits"},
        "rule": rule,
        "concurrency": SLOTS,
        "clients": 20,
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "local": {
            "epochs": 5,
            "batch_size": 32,
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
        },
        "delay": {"distribution": "pareto", "shape": 1.5, "unit_seconds": given.unit},
        "evaluation": {"every_versions": every_versions},
        "stop": {"target": {"value": given.target}, "wall_seconds": given.limit},
        "seed": seed,
    }
    store, federation = stack.store(), f"{name}-{seed}"
    submitted = submission.submit(store, parse(spec), federation)
    publisher.publish(submission.start_message(submitted), EVENTS)
    reader = HistoryReader(store, federation)
    while not (history := reader.refresh()).has_ended:
        stack.supervise()
        time.sleep(LOOK_SECONDS)
    return history


def over_time(history: History) -> list[tuple[float, float]]:
    born_at = history.born_at or 0.0
    return [
        (round(each.at - born_at, 2), each.metrics["accuracy"])
        for each in history.evaluations
        if "accuracy" in each.metrics
    ]


if __name__ == "__main__":
    main()
