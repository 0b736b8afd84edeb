"""The settings of the paper's evaluation, as data: benchmarks, methods, and two sizes.

`full` has the paper's own settings, for GPUs. `cpu` is the same evaluation, for an hour on two
cores: fewer and smaller clients, smaller networks, less local training, and a fixed budget of
client updates per run.
"""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import yaml

from fedfa.errors import InvalidSpec

ProfileName = Literal["cpu", "full"]

# The paper's section 5.2: "a long-tailed distribution"; shape and unit are ours. Training itself
# takes no virtual time: one unit is what the fastest client needs for a job.
DELAY = {"distribution": "pareto", "shape": 1.5, "unit_seconds": 1.0}
TARGET_SHARE = 0.97  # of the best accuracy that FedAvg reaches within the budget
TUNING_SEED = 1000  # none of the seeds that are reported


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A task, its split, and how much of it one run is.

    family: benchmarks of one family share their learning rates. fields: of the spec. updates: the
    budget of client updates. rates: the learning rates that are searched. needs: what must lie in
    the data folder.
    """

    name: str
    title: str
    family: str
    fields: dict[str, Any]
    concurrency: int
    window: int
    updates: int
    optimizer: Literal["sgd", "adamw"]
    rates: tuple[float, ...]
    needs: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Where none was searched: the middle one, the upper of two."""
        return self.rates[len(self.rates) // 2]

    def allows(self, concurrency: int) -> bool:
        """Whether it has so many clients; a natural split's number is known to its data alone."""
        clients: int = self.fields.get("clients", concurrency)
        return concurrency <= clients


@dataclass(frozen=True, slots=True)
class Profile:
    """sweep: the benchmark of tables 5 and 6 and of figures 1, 5 and 6."""

    name: ProfileName
    benchmarks: tuple[Benchmark, ...]
    sweep: str
    windows: tuple[int, ...] = (1, 5, 10, 20)
    concurrencies: tuple[int, ...] = (5, 10, 20)
    proximal: float = 0.1

    def benchmark(self, name: str) -> Benchmark:
        return next(one for one in self.benchmarks if one.name == name)


@dataclass(frozen=True, slots=True)
class Method:
    """rule: its fields in the spec, but for the window. merges: which updates make a version."""

    name: str
    title: str
    rule: dict[str, Any]
    merges: Literal["one", "window", "round"]
    server_lr_is_window: bool = False


METHODS = (
    Method("fedavg", "FedAvg", {"name": "fedavg"}, "round"),
    Method("fedbuff", "FedBuff", {"name": "fedbuff", "refill": "at_flush"}, "window"),
    Method(
        "fedbuff-at-once",
        "FedBuff, slots refilled at once",
        {"name": "fedbuff", "refill": "at_once"},
        "window",
    ),
    Method("fedasync", "FedAsync", {"name": "fedasync"}, "one"),
    Method("port", "Port", {"name": "port"}, "window"),
    Method("fedfa-param", "FedFa-Param", {"name": "fedfa-param"}, "one"),
    Method("fedfa-delta", "FedFa-Delta", {"name": "fedfa-delta"}, "one"),
    Method(
        "fedfa-delta-literal",
        "FedFa-Delta, literal step (server_lr K)",
        {"name": "fedfa-delta"},
        "one",
        server_lr_is_window=True,
    ),
)
METHOD = {method.name: method for method in METHODS}


def _cifar10(
    name: str, title: str, partition: dict[str, Any], common: dict[str, Any], **size: Any
) -> Benchmark:
    return Benchmark(
        name=name,
        title=title,
        family="cifar10",
        fields=common | {"partition": partition},
        needs=("cifar10",),
        optimizer="sgd",
        **size,
    )


_IID = {"kind": "iid"}
_SKEWED = {"kind": "dirichlet", "alpha": 0.3}

_CIFAR10_CPU = {
    "task": {
        "name": "cifar10",
        "options": {"model": "cnn", "width": 8, "train_examples": 5000, "test_examples": 1000},
    },
    "clients": 50,
    "local": {"epochs": 2, "batch_size": 10},
}
_CIFAR10_CPU_SIZE = {
    "concurrency": 10,
    "window": 5,
    "updates": 360,
    "rates": (0.005, 0.02, 0.05, 0.1),  # the first for the literal step, which is K times longer
}
_CIFAR10_FULL = {
    "task": {"name": "cifar10", "options": {"model": "resnet18"}},
    "clients": 100,
    "local": {"epochs": 10, "batch_size": 32},
}
_CIFAR10_FULL_SIZE = {
    "concurrency": 10,
    "window": 5,
    "updates": 3000,
    "rates": (0.003, 0.01, 0.03),
}
_DIGITS = {"task": {"name": "digits"}, "clients": 50, "local": {"epochs": 5, "batch_size": 32}}
_DIGITS_SIZE: dict[str, Any] = {
    "family": "digits",
    "concurrency": 10,
    "window": 5,
    "updates": 400,
    "optimizer": "sgd",
    "rates": (0.03, 0.1, 0.2),
}

CPU = Profile(
    name="cpu",
    sweep="cifar10-noniid",
    benchmarks=(
        _cifar10("cifar10-iid", "CIFAR-10, IID", _IID, _CIFAR10_CPU, **_CIFAR10_CPU_SIZE),
        _cifar10(
            "cifar10-noniid",
            "CIFAR-10, Dirichlet 0.3",
            _SKEWED,
            _CIFAR10_CPU,
            **_CIFAR10_CPU_SIZE,
        ),
        Benchmark(
            name="sent140",
            title="critics for Sent140, natural split",
            family="sent140",
            fields={
                "task": {
                    "name": "sent140",
                    "options": {
                        "data": "rt_critics",
                        "files": "leaf_top146",
                        "model": "models/bert-tiny-h128-distilled",
                        "max_tokens": 32,
                    },
                },
                "partition": {"kind": "natural"},
                "local": {"epochs": 1, "batch_size": 16, "max_examples": 64},
            },
            concurrency=10,
            window=5,
            updates=150,
            optimizer="adamw",
            rates=(0.0004, 0.001, 0.002),
            needs=("rt_critics", "models/bert-tiny-h128-distilled"),
        ),
        Benchmark(
            name="sst2",
            title="SST-2 by LoRA, Dirichlet 0.3",
            family="sst2",
            fields={
                "task": {
                    "name": "sst2",
                    "options": {
                        "model": "models/bert-tiny-h128-distilled",
                        "lora_rank": 1,
                        "lora_alpha": 1,
                        "max_tokens": 32,
                        "train_examples": 6000,
                    },
                },
                "clients": 10,
                "partition": _SKEWED,
                "local": {"epochs": 1, "batch_size": 32, "max_examples": 160},
            },
            concurrency=5,
            window=3,
            updates=150,
            optimizer="adamw",
            rates=(0.001, 0.003, 0.01, 0.03),
            needs=("sst2", "models/bert-tiny-h128-distilled"),
        ),
    ),
)

FULL = Profile(
    name="full",
    sweep="cifar10-noniid",
    benchmarks=(
        _cifar10("cifar10-iid", "CIFAR-10, IID", _IID, _CIFAR10_FULL, **_CIFAR10_FULL_SIZE),
        _cifar10(
            "cifar10-noniid",
            "CIFAR-10, Dirichlet 0.3",
            _SKEWED,
            _CIFAR10_FULL,
            **_CIFAR10_FULL_SIZE,
        ),
        Benchmark(
            name="sent140",
            title="Sent140, natural split",
            family="sent140",
            fields={
                "task": {"name": "sent140", "options": {"min_samples": 100}},
                "partition": {"kind": "natural"},
                "local": {"epochs": 15, "batch_size": 5},
            },
            concurrency=10,
            window=5,
            updates=2000,
            optimizer="adamw",
            rates=(0.0001, 0.0004, 0.001),
            needs=("sent140", "models/bert-tiny"),
        ),
        Benchmark(
            name="sst2",
            title="SST-2 by LoRA, Dirichlet 0.3",
            family="sst2",
            fields={
                "task": {"name": "sst2", "options": {"lora_rank": 1, "lora_alpha": 1}},
                "clients": 10,
                "partition": _SKEWED,
                "local": {"epochs": 1, "batch_size": 32},
            },
            concurrency=5,
            window=3,
            updates=300,
            optimizer="adamw",
            rates=(0.00003, 0.0001, 0.0003),
            needs=("sst2", "models/bert-base-uncased"),
        ),
    ),
)

# What stands in for everything where there is no data folder.
DIGITS = (
    Benchmark(
        name="digits-iid",
        title="digits, IID",
        fields=_DIGITS | {"partition": _IID},
        **_DIGITS_SIZE,
    ),
    Benchmark(
        name="digits-noniid",
        title="digits, Dirichlet 0.3",
        fields=_DIGITS | {"partition": _SKEWED},
        **_DIGITS_SIZE,
    ),
)

# What is measured beside digits, which is always there.
SENSITIVITY = ("sst2",)
FURTHER = ("cifar10-noniid", "sst2", "sent140")

PROFILES: dict[str, Profile] = {"cpu": CPU, "full": FULL}


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates that `fedfa paper tune` found, by family and method."""

    found: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, benchmark: Benchmark, method: str) -> float:
        return self.found.get(benchmark.family, {}).get(method, benchmark.rate)

    def is_tuned(self, benchmark: Benchmark, method: str) -> bool:
        return method in self.found.get(benchmark.family, {})


def tuned(profile: ProfileName) -> Rates:
    """The committed result of `fedfa paper tune`."""
    body = files("fedfa.paper").joinpath("tuned.yaml").read_text("utf-8")
    fields: Any = yaml.safe_load(body) or {}
    if not isinstance(fields, dict):
        raise InvalidSpec("fedfa/paper/tuned.yaml: expected profile, family, method, rate")
    return Rates(fields.get(profile) or {})
