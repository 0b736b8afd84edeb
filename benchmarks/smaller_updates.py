"""Updates in fewer bits: the bytes of their files, and the accuracy of what is trained with them.

    python benchmarks/smaller_updates.py                                        digits
    FEDFA_DATA=/your/data python benchmarks/smaller_updates.py --tasks cifar10  LEAF's CNN, narrow

FedFa-Delta on a virtual clock, with 20 clients of skewed data and Pareto delays; updates are
written and read by the same code as a trainer's and an aggregator's. The seed fixes split, initial
weights, delays and the order of all jobs, so that the runs of a seed differ by the rounding alone.
A run that does not reach the target counts with all of its updates.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import Curves, Group, options, write

from fedfa import keys
from fedfa.history import HistoryReader
from fedfa.rows import History
from fedfa.simulate.simulation import simulation
from fedfa.spec import parse
from fedfa.store import DirectoryStore

ID = "run"
BASELINE = "none"
COMPRESSIONS = (BASELINE, "bf16", "int8")
SIZE, FINAL, BEST = "kB/update", "accuracy at the end", "best accuracy"
UPDATES, REACHED = "updates to target", "reached it"
CLIENTS, SLOTS, ALPHA = 20, 8, 0.3


@dataclass(frozen=True, slots=True)
class Trial:
    """What is trained, for how many updates, and the accuracy that counts as learnt."""

    task: dict[str, Any]
    local: dict[str, Any]
    updates: int
    target: float


TRIALS = {
    "digits": Trial(
        {"name": "digits"},
        {"epochs": 5, "batch_size": 32, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
        updates=400,
        target=0.9,
    ),
    "cifar10": Trial(
        {
            "name": "cifar10",
            "options": {"model": "cnn", "width": 8, "train_examples": 5000, "test_examples": 1000},
        },
        {"epochs": 1, "batch_size": 20, "optimizer": {"name": "sgd", "learning_rate": 0.05}},
        updates=300,
        target=0.4,
    ),
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TRIALS, default=["digits"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    for name in given.tasks:
        write(given.results, "smaller_updates", measured(name, TRIALS[name], given.seeds))


def measured(name: str, trial: Trial, seeds: Sequence[int]) -> Group:
    cases: dict[str, dict[str, list[float]]] = {each: {} for each in COMPRESSIONS}
    accuracies: dict[str, list[dict[int, float]]] = {each: [] for each in COMPRESSIONS}
    for seed in seeds:
        for compression in COMPRESSIONS:
            size, history = run(trial, compression, seed)
            by_version = {each.version: each.metrics["accuracy"] for each in history.evaluations}
            found = {SIZE: size / 1e3, **figures(by_version, history, trial.target)}
            for metric, value in found.items():
                cases[compression].setdefault(metric, []).append(value)
            accuracies[compression].append(by_version)
            print(f"seed {seed}, {compression}: {found}", flush=True)
    title = f"{name}, Dirichlet {ALPHA}, Mc = {SLOTS}, target {trial.target:g}"
    curves = Curves("version", "accuracy, mean of the seeds", mean_of_each(accuracies))
    baselines = {metric: [BASELINE] for metric in (SIZE, FINAL, BEST, UPDATES)}
    return Group(title, cases, baselines, curves)


def run(trial: Trial, compression: str, seed: int) -> tuple[float, History]:
    """The mean bytes of an update's file, and what the log says."""
    spec = {
        "task": trial.task,
        "rule": {"name": "fedfa-delta", "window": 5},
        "concurrency": SLOTS,
        "clients": CLIENTS,
        "partition": {"kind": "dirichlet", "alpha": ALPHA},
        "local": trial.local,
        "compression": compression,
        "delay": {"distribution": "pareto", "shape": 1.5, "unit_seconds": 1.0},
        "evaluation": {"every_versions": 10},
        "stop": {"updates": trial.updates},
        "seed": seed,
    }
    with tempfile.TemporaryDirectory(prefix="fedfa-") as folder:
        with simulation(Path(folder), parse(spec), ID) as running:
            for _ in running.run():
                pass
        store = DirectoryStore(Path(folder))
        sizes = [info.size_bytes for info in store.list(keys.updates(ID))]
        return statistics.fmean(sizes), HistoryReader(store, ID).refresh()


def figures(by_version: dict[int, float], history: History, target: float) -> dict[str, float]:
    """by_version: the accuracy of each version that was evaluated, in order."""
    last = max(by_version)
    reached = [version for version, accuracy in by_version.items() if accuracy >= target]
    version = reached[0] if reached else last
    return {
        FINAL: by_version[last],
        BEST: max(by_version.values()),
        UPDATES: float(sum(row.version <= version for row in history.merged)),
        REACHED: float(bool(reached)),
    }


def mean_of_each(
    accuracies: dict[str, list[dict[int, float]]],
) -> dict[str, list[tuple[float, float]]]:
    """The versions that were evaluated are the same for every seed."""
    return {
        name: [
            (float(version), statistics.fmean(each[version] for each in runs))
            for version in runs[0]
        ]
        for name, runs in accuracies.items()
    }


if __name__ == "__main__":
    main()
