"""The aggregation functions of other frameworks, each in an environment of its own.

    python benchmarks/peers.py --setup       makes the environments (make bench-setup)

`merge.py` starts this file with an environment's interpreter, so it imports nothing of FedFa. What
is measured is the framework's own function, called as its server calls it, on tensors that are in
memory already; no codec, no network. FedML and APPFL are installed without what the rest of them
needs, and their packages' own imports are passed over. torch is the one of our own environment.
"""

import argparse
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np

HOME = Path.home() / ".cache" / "fedfa" / "peers"
INSTALLED = {
    "flwr": ["flwr==1.42.0"],
    "nvflare": ["nvflare==2.9.0"],
    "fedml": ["--no-deps", "fedml==0.9.6", "numpy"],
    "appfl": ["--no-deps", "appfl==1.12.0", "numpy", "omegaconf", "PyYAML"],
}
Tensors = dict[str, np.ndarray]
Case = Callable[[], object]


class Peer:
    """A process of one environment, which runs its cases when it is told to."""

    def __init__(self, name: str, arrays: Path, shapes: Path, window: int) -> None:
        self._command = [str(python(name)), __file__, name, str(arrays), str(shapes), str(window)]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.cases: list[str] = json.loads(self._answer())

    def run(self, case: str) -> None:
        assert self._process.stdin
        print(case, file=self._process.stdin, flush=True)
        self._answer()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._command}: ended with code {self._process.wait()}")
        return line


def python(name: str) -> Path:
    return HOME / name / "bin" / "python"


def present() -> list[str]:
    return [name for name in INSTALLED if python(name).exists()]


def setup() -> None:
    ours = Path(np.__file__).parents[1]
    for name, packages in INSTALLED.items():
        subprocess.run([sys.executable, "-m", "venv", HOME / name], check=True)
        subprocess.run([python(name), "-m", "pip", "install", "-q", *packages], check=True)
        # Behind the environment's own packages: for torch and what torch needs.
        (theirs,) = (HOME / name).glob("lib/python*/site-packages")
        (theirs / "ours.pth").write_text(f"{ours}\n")


# -- in the peer's process ------------------------------------------------------------------------


def flower(window: list[Tensors]) -> dict[str, Case]:
    aggregate = importlib.import_module("flwr.server.strategy.aggregate").aggregate
    results = [(list(tensors.values()), 10) for tensors in window]
    return {"Flower: aggregate()": lambda: aggregate(results)}


def nvflare(window: list[Tensors]) -> dict[str, Case]:
    package = "nvflare.app_common.aggregators"
    module = importlib.import_module(f"{package}.weighted_aggregation_helper")

    def of(updates: list[dict[str, object]]) -> Case:
        helper = module.WeightedAggregationHelper()

        def run() -> object:
            for number, update in enumerate(updates):
                helper.add(update, 10, f"client-{number}", 0)
            return helper.get_result()

        return run

    return {
        "NVIDIA FLARE: helper, torch": of([torch_tensors(each) for each in window]),
        "NVIDIA FLARE: helper, numpy": of([dict(each) for each in window]),
    }


def fedml(window: list[Tensors]) -> dict[str, Case]:
    bypass("fedml", "fedml.core", "fedml.core.common", "fedml.ml", "fedml.ml.aggregator")
    operator = importlib.import_module("fedml.ml.aggregator.agg_operator")
    options = types.SimpleNamespace(federated_optimizer="FedAvg")
    updates = [torch_tensors(each) for each in window]

    def run() -> object:  # it puts the result into the first of the dicts that it is given
        results = [(10, dict(update)) for update in updates]
        return operator.torch_aggregator(options, results, 10 * len(results))

    return {"FedML: FedAvg": run}


def appfl(window: list[Tensors]) -> dict[str, Case]:
    package = "appfl.algorithm.aggregator"
    bypass("appfl.algorithm", package)
    parent = sys.modules[package]
    for name in ("Base", "FedAsync", "FedBuff"):
        module = importlib.import_module(f"{package}.{name.lower()}_aggregator")
        setattr(parent, f"{name}Aggregator", getattr(module, f"{name}Aggregator"))
    configuration = importlib.import_module("omegaconf").OmegaConf
    updates = [torch_tensors(each) for each in window]

    def of(*, optimize_memory: bool) -> Case:
        fields = {"K": len(window), "num_clients": len(window), "optimize_memory": optimize_memory}
        aggregator = parent.FedBuffAggregator(None, configuration.create(fields))

        def run() -> None:
            for number, update in enumerate(updates):
                aggregator.aggregate(f"client-{number}", dict(update))

        return run

    return {
        "APPFL: FedBuff, K updates": of(optimize_memory=True),
        "APPFL: FedBuff, K updates, optimize_memory off": of(optimize_memory=False),
    }


def torch_tensors(tensors: Tensors) -> dict[str, object]:
    import torch

    return {name: torch.from_numpy(array) for name, array in tensors.items()}


def bypass(*packages: str) -> None:
    """Let submodules be imported without running their packages' own imports."""
    for name in packages:
        path = name.replace(".", "/")
        (folder,) = (Path(each) / path for each in sys.path if (Path(each) / path).is_dir())
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package


PEERS = {"flwr": flower, "nvflare": nvflare, "fedml": fedml, "appfl": appfl}


def serve(name: str, arrays: Path, shapes: Path, window: int) -> None:
    fields = json.loads(shapes.read_text())
    size = sum(int(np.prod(shape)) for shape in fields.values())
    # Private pages: what writes into them does not change what the others read.
    flat = np.memmap(arrays, np.float32, "c", shape=(window, size))
    updates = []
    for vector in flat:
        parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in fields.values()]))
        updates.append(
            {
                key: np.asarray(part).reshape(shape)
                for (key, shape), part in zip(fields.items(), parts, strict=False)
            }
        )
    cases = PEERS[name](updates)
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        cases[line.strip()]()
        print("done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", action="store_true", required=True)
    parser.parse_args()
    setup()


if __name__ == "__main__":
    if len(sys.argv) == 5:
        serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
