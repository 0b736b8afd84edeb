"""Which runs the tables and figures need. Two that need the same run share it, by its spec."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from fedfa.canonical import canonical_json, sha256
from fedfa.paper.profiles import (
    DELAY,
    METHOD,
    METHODS,
    TUNING_SEED,
    Benchmark,
    Profile,
    Rates,
)
from fedfa.spec import FederationSpec, parse

TablePart = Literal["table2", "table3", "table4", "table5", "table6"]
FigurePart = Literal["fig1", "fig2", "fig3", "fig4", "fig5", "fig6"]
Part = TablePart | FigurePart
TABLES: tuple[TablePart, ...] = get_args(TablePart)
FIGURES: tuple[FigurePart, ...] = get_args(FigurePart)
PARTS: tuple[Part, ...] = (*TABLES, *FIGURES)
Variant = Literal["", "fedprox", "fednova"]

FEDBUFFS = ("fedbuff", "fedbuff-at-once")
PARADIGMS = ("fedavg", "fedbuff", "fedfa-delta")
SWEPT = ("fedavg", "fedbuff", "fedasync", "fedfa-param", "fedfa-delta")
COMBINED = ("fedavg", "fedfa-delta")
VARIANTS: tuple[Variant, ...] = ("fedprox", "fednova")

# FedFa-Delta's sensitivity: one setting at a time is another than the benchmark's own
SERVER_LRS = (0.5, 1.0, 2.0, 3.0, 5.0)  # 1.0 is what the benchmark has
WINDOWS = (1, 2, 3, 5, 10, 20)
CONCURRENCIES = (5, 10, 20)
ALPHAS = (0.1, 0.3, 1.0, 10.0)
EPOCHS = (1, 2, 5, 10)

# What could make it faster than FedBuff and leave it stable
FURTHER_SERVER_LRS = (1.0, 2.0, 3.0)  # with weights by staleness
FURTHER_WINDOWS = (3, 10)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run. window and concurrency are the paper's K and Mc.

    rule: fields of it, beside the method's own. cadence: client updates between two evaluations, if
    not the fewest that suit every rule.
    """

    benchmark: Benchmark
    method: str
    seed: int
    window: int
    concurrency: int
    updates: int
    rate: float
    variant: Variant = ""
    proximal: float = 0.0
    rule: Mapping[str, Any] = field(default_factory=dict)
    cadence: int | None = None

    @property
    def title(self) -> str:
        variant = f" with {self.variant}" if self.variant else ""
        return f"{self.benchmark.name} {self.method}{variant} K={self.window} Mc={self.concurrency}"

    @property
    def evaluated_every(self) -> int:
        """Client updates between two evaluations: whole versions, and the same, by any rule."""
        return self.cadence or math.lcm(self.benchmark.concurrency, self.concurrency, self.window)

    @property
    def every_versions(self) -> int:
        merges = METHOD[self.method].merges
        return (
            self.evaluated_every
            // {
                "one": 1,
                "window": self.window,
                "round": self.concurrency,
            }[merges]
        )

    @property
    def _fields(self) -> dict[str, Any]:
        """Of its spec: those that are not left at their defaults."""
        method, benchmark = METHOD[self.method], self.benchmark
        rule: dict[str, Any] = dict(method.rule)
        if rule["name"] not in ("fedavg", "fedasync"):
            rule["window"] = self.window
        if method.server_lr_is_window:
            rule["server_lr"] = float(self.window)
        if self.variant == "fednova":
            rule["fednova"] = True
        rule |= self.rule
        local = benchmark.fields["local"] | {
            "optimizer": {"name": benchmark.optimizer, "learning_rate": self.rate}
        }
        if self.variant == "fedprox":
            local["proximal"] = self.proximal
        return benchmark.fields | {
            "rule": rule,
            "concurrency": self.concurrency,
            "local": local,
            "delay": DELAY,
            "evaluation": {"every_versions": self.every_versions},
            "stop": {"updates": self.updates},
            "retention": {"keep": "bounded", "keep_last": 1, "min_age_seconds": 0},
            "seed": self.seed,
        }

    @property
    def spec(self) -> FederationSpec:
        return parse(self._fields, source=self.title)

    @property
    def id(self) -> str:
        """Readable, and another one for every other spec.

        It has nothing of the defaults: a field that specs get later changes no id, and the runs
        that were made stay good.
        """
        variant = f"-{self.variant}" if self.variant else ""
        digest = sha256(canonical_json(self._fields).encode())[:8]
        return f"{self.benchmark.name}-{self.method}{variant}-s{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of a profile. seeds: how many of them, from 0 up, where a part has several."""

    profile: Profile
    rates: Rates
    seeds: int

    def run(self, benchmark: Benchmark, method: str, seed: int = 0) -> Run:
        """A benchmark by a method, at the benchmark's own K and Mc."""
        return Run(
            benchmark=benchmark,
            method=method,
            seed=seed,
            window=benchmark.window,
            concurrency=benchmark.concurrency,
            updates=benchmark.updates,
            rate=self.rates.of(benchmark, method),
        )

    @property
    def sweep(self) -> Benchmark:
        return self.profile.benchmark(self.profile.sweep)

    def seeded(self, benchmark: Benchmark, method: str) -> list[Run]:
        return [self.run(benchmark, method, seed) for seed in range(self.seeds)]

    def by_window(self) -> list[Run]:
        return [
            replace(self.run(self.sweep, "fedfa-param"), window=window)
            for window in self.profile.windows
        ]

    @property
    def concurrencies(self) -> list[int]:
        return [number for number in self.profile.concurrencies if self.sweep.allows(number)]

    def by_concurrency(self, method: str) -> list[Run]:
        return [
            replace(self.run(self.sweep, method), concurrency=concurrency)
            for concurrency in self.concurrencies
        ]

    def combined(self, method: str) -> list[Run]:
        """A method alone, then with each of the paper's local variants."""
        alone = self.run(self.sweep, method)
        with_variant = (
            replace(
                alone,
                variant=variant,
                proximal=self.profile.proximal if variant == "fedprox" else 0.0,
            )
            for variant in VARIANTS
        )
        return [alone, *with_variant]

    def needed(self, parts: Iterable[Part]) -> list[Run]:
        """Every run that these parts need, each once."""
        runs = (run for part in parts for run in self._needed(part))
        return list({run.id: run for run in runs}.values())

    def _needed(self, part: Part) -> Iterator[Run]:
        match part:
            case "table2" | "table3" | "table4" | "fig3" | "fig4":
                for benchmark in self.profile.benchmarks:
                    for method in METHODS:
                        yield from self.seeded(benchmark, method.name)
            case "table5":
                for name in SWEPT:
                    yield from self.by_concurrency(name)
            case "table6" | "fig6":
                yield from self.seeded(self.sweep, "fedavg")  # the target
                for name in COMBINED:
                    yield from self.combined(name)
            case "fig1":
                yield from (self.run(self.sweep, name) for name in PARADIGMS)
            case "fig5":
                yield from self.by_window()

    def tuning(self) -> list[Run]:
        """Every method on every family at each of its rates, half a budget, its own seed."""
        families = {one.family: one for one in self.profile.benchmarks}  # the non-IID one is last
        return [
            replace(_halved(self.run(benchmark, method.name, TUNING_SEED)), rate=rate)
            for benchmark in families.values()
            for method in METHODS
            for rate in benchmark.rates
        ]

    def sensitivity(self, benchmark: Benchmark) -> list[tuple[str, list[Run]]]:
        """FedFa-Delta by one setting after the other: what it is, and its runs, one for each seed.

        The first is the benchmark's own. All of one benchmark are evaluated equally often.
        """
        own = self.run(benchmark, "fedfa-delta")
        rows = [("as it is", own)]
        rows += [
            (f"server_lr {lr:g}", replace(own, rule={"server_lr": lr}))
            for lr in SERVER_LRS
            if lr != 1.0
        ]
        rows += _by_staleness(own, SERVER_LRS)
        rows += [(f"K = {one}", replace(own, window=one)) for one in WINDOWS]
        rows += [
            (f"Mc = {one}", replace(own, concurrency=one))
            for one in CONCURRENCIES
            if benchmark.allows(one)
        ]
        for title, section, name, values in (
            ("alpha", "partition", "alpha", ALPHAS),
            ("local epochs", "local", "epochs", EPOCHS),
        ):
            for one in values:
                fields = {section: benchmark.fields[section] | {name: one}}
                changed = replace(benchmark, fields=benchmark.fields | fields)
                rows.append((f"{title} {one:g}", replace(own, benchmark=changed)))
        return self._each_seed(rows)

    def further(self, benchmark: Benchmark) -> list[tuple[str, list[Run]]]:
        """FedBuff in both forms, then FedFa-Delta by what could make it faster."""
        own = self.run(benchmark, "fedfa-delta")
        rows = [("as it is", own), *_by_staleness(own, FURTHER_SERVER_LRS)]
        rows += [(f"K = {one}", replace(own, window=one)) for one in FURTHER_WINDOWS]
        fedbuffs = [(METHOD[name].title, self.seeded(benchmark, name)) for name in FEDBUFFS]
        return fedbuffs + self._each_seed(rows)

    def _each_seed(self, rows: list[tuple[str, Run]]) -> list[tuple[str, list[Run]]]:
        """The first row, and those that differ from it, evaluated as often as it is."""
        _, own = rows[0]
        return [
            (
                title,
                [
                    replace(run, seed=seed, cadence=own.evaluated_every)
                    for seed in range(self.seeds)
                ],
            )
            for title, run in rows
            if run is own or run._fields != own._fields
        ]


def _by_staleness(own: Run, server_lrs: Iterable[float]) -> list[tuple[str, Run]]:
    """With updates weighed by staleness, which makes the steps shorter."""
    return [
        (
            f"server_lr {lr:g}, staleness polynomial",
            replace(own, rule={"server_lr": lr, "staleness": {"kind": "polynomial"}}),
        )
        for lr in server_lrs
    ]


def _halved(run: Run) -> Run:
    """Half a budget, down to the last evaluation that is due in it: every method has as many."""
    half = run.updates // 2
    return replace(run, updates=half - half % run.evaluated_every)
