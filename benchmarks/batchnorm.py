"""BatchNorm under FedFa-Delta: how good are the statistics that the rule averages?

    FEDFA_DATA=/where/your/data/lies python benchmarks/batchnorm.py

One simulated run of a narrow ResNet18 on CIFAR-10 for each split and seed. At every evaluated
version the same weights are measured with three sets of statistics: the committed ones, which move
with the weights (beta = server_lr / K); the mean of the last K updates' statistics (beta = 1); and
those computed anew from training images, which no server could do, as it has none.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Group, options, write
from torch import nn

from fedfa import ledger, manifests, modules, training
from fedfa.events import Merged
from fedfa.simulate.simulation import simulation
from fedfa.spec import FederationSpec, parse
from fedfa.store import DirectoryStore
from fedfa.tasks import base as tasks
from fedfa.tensors import FlatModel

CPU = torch.device("cpu")
WINDOW, EVERY, UPDATES = 5, 20, 300
SPLITS: dict[str, dict[str, Any]] = {
    "IID": {"kind": "iid"},
    "Dirichlet 0.3": {"kind": "dirichlet", "alpha": 0.3},
}
LAST, MEAN, BEST = "accuracy at the end", "mean over the run", "best accuracy"
COMMITTED, WINDOWED, ANEW = "beta = 1/K (committed)", "beta = 1", "computed anew"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--width", type=int, default=8)
    given = parser.parse_args()
    for split, partition in SPLITS.items():
        cases: dict[str, dict[str, list[float]]] = {
            name: {LAST: [], MEAN: [], BEST: []} for name in (COMMITTED, WINDOWED, ANEW)
        }
        for seed in given.seeds:
            spec = parse(fields(partition, seed, given.updates, given.width))
            with tempfile.TemporaryDirectory() as folder:
                measured = run(Path(folder), spec)
            for name, accuracies in measured.items():
                cases[name][LAST].append(accuracies[-1])
                cases[name][MEAN].append(statistics.fmean(accuracies))
                cases[name][BEST].append(max(accuracies))
        write(given.results, "batchnorm", Group(split, cases, {}))


def fields(partition: dict[str, Any], seed: int, updates: int, width: int) -> dict[str, Any]:
    return {
        "task": {
            "name": "cifar10",
            "options": {"width": width, "train_examples": 2000, "test_examples": 1000},
        },
        "rule": {"name": "fedfa-delta", "window": WINDOW},
        "concurrency": 10,
        "clients": 20,
        "partition": partition,
        "local": {
            "epochs": 1,
            "batch_size": 20,
            "optimizer": {"name": "sgd", "learning_rate": 0.05},
        },
        "delay": {"distribution": "pareto", "shape": 1.5, "unit_seconds": 1.0},
        "evaluation": {"every_versions": EVERY},
        "stop": {"updates": updates},
        "seed": seed,
    }


def run(folder: Path, spec: FederationSpec) -> dict[str, list[float]]:
    """Accuracy of each evaluated version but the first, by the statistics it is measured with."""
    with simulation(folder, spec, "run", num_workers=1) as running:
        for _ in running.run():
            pass
    store, task = DirectoryStore(folder), tasks.load(spec, ())
    module = task.model()
    template = modules.template_of(module)
    buffers = slice(template.num_parameters, template.num_floats)
    window: list[FlatModel] = []
    found: dict[str, list[float]] = {COMMITTED: [], WINDOWED: [], ANEW: []}
    for committed in manifests.log(store, "run"):
        manifest = committed.manifest
        for decision in manifest.decisions:
            if isinstance(decision.event, Merged):
                update = decision.event.update
                window.append(ledger.read_vector(store, update.key, update.digest, template))
        window = window[-WINDOW:]
        assert manifest.model is not None
        if manifest.model.version % EVERY or len(window) < WINDOW:
            continue
        model = ledger.read_model(store, manifest.model, template)
        found[COMMITTED].append(accuracy(task, module, model))
        mean = np.mean([one.floats[buffers] for one in window], axis=0, dtype=np.float64)
        floats = model.floats.copy()
        floats[buffers] = mean
        found[WINDOWED].append(accuracy(task, module, FlatModel(template, floats, model.integers)))
        modules.write(module, model)
        compute_anew(module, task)
        found[ANEW].append(accuracy(task, module, modules.read(module, template)))
    return found


def accuracy(task: tasks.Task, module: nn.Module, model: FlatModel) -> float:
    return training.evaluate(task, module, model, CPU)["accuracy"]


def compute_anew(module: nn.Module, task: tasks.Task) -> None:
    """Every norm's statistics become the mean of those of batches from all clients."""
    norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
    momenta = [each.momentum for each in norms]
    for each in norms:
        each.reset_running_stats()
        each.momentum = None  # the mean over all batches
    module.train()
    with torch.no_grad():
        for client, num_examples in tasks.clients_of(task).items():
            task.loss(
                module, training.batch_of(task.shard(client), torch.arange(num_examples), CPU)
            )
    for each, momentum in zip(norms, momenta, strict=True):
        each.momentum = momentum


if __name__ == "__main__":
    main()
