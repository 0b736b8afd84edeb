"""The paper's tables 2 to 6 and our own, as rows of text for Markdown and of numbers for CSV."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedfa.paper.outcomes import Outcome, Point, Spread, speed_up, spread
from fedfa.paper.plan import COMBINED, FEDBUFFS, SWEPT, VARIANTS, Plan, Run, TablePart
from fedfa.paper.profiles import METHOD, METHODS, Benchmark

NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Cell:
    """speed_up: against FedAvg, or whom row or column names, where the numbers are to a target."""

    column: str
    text: str
    numbers: Spread
    speed_up: float | None = None


@dataclass(slots=True)
class Table:
    """rows: for people. records: for programs, one for each cell."""

    name: str
    title: str
    note: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    records: list[dict[str, object]] = field(default_factory=list)

    def add(self, method: str, cells: Sequence[Cell]) -> None:
        self.rows.append([method, *(cell.text for cell in cells)])
        for cell in cells:
            numbers = cell.numbers
            self.records.append(
                {
                    "method": method,
                    "column": cell.column,
                    "mean": "" if numbers.mean is None else repr(numbers.mean),
                    "deviation": repr(numbers.deviation),
                    "seeds_having": numbers.having,
                    "seeds": numbers.of,
                    "speed_up": "" if cell.speed_up is None else repr(cell.speed_up),
                }
            )

    @property
    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.note, ""]
        lines.append("| " + " | ".join(self.header) + " |")
        lines.append("|---|" + "---:|" * (len(self.header) - 1))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    @property
    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Measure:
    """What it takes to reach a target."""

    title: str
    unit: str
    of: Callable[[Point], float]


TIME = Measure("Virtual time", "in units of the fastest client's job", lambda p: p.seconds)
ROUNDS = Measure("Communication rounds", "one round is Mc client updates", lambda p: p.rounds)

VERSUS = ("fedavg", *FEDBUFFS)
SEED_BY_SEED = (
    "the median over the seeds (the lower one of two), and in brackets each of the seeds from 0 up"
)

Outcomes = Mapping[str, Outcome]  # by the run's id
Targets = Mapping[str, float]  # by benchmark


def draw(part: TablePart, plan: Plan, outcomes: Outcomes, targets: Targets) -> Table:
    match part:
        case "table2":
            return _to_target(part, plan, outcomes, targets, TIME)
        case "table3":
            return _to_target(part, plan, outcomes, targets, ROUNDS)
        case "table4":
            return _best(plan, outcomes)
        case "table5":
            return _concurrency(plan, outcomes)
        case "table6":
            return _combined(plan, outcomes, targets)


def _to_target(
    part: TablePart, plan: Plan, outcomes: Outcomes, targets: Targets, measure: Measure
) -> Table:
    table = Table(
        part,
        f"Table {part[-1]}. {measure.title} to the target accuracy",
        f"{_over(plan.seeds)}, {measure.unit}. Where not every "
        "seed reached the target, the mean is of those that did, and their number follows. In "
        "brackets how many times sooner than FedAvg with the same seed: the median over the seeds "
        "(the lower one of two), where a run that did not reach the target is infinitely late.",
        ["", *(f"{one.title} ({targets[one.name]:g})" for one in plan.profile.benchmarks)],
    )
    for method in METHODS:
        cells = []
        for benchmark in plan.profile.benchmarks:
            goal = targets[benchmark.name]
            measured = _reached(outcomes, plan.seeded(benchmark, method.name), goal, measure)
            fedavg = _reached(outcomes, plan.seeded(benchmark, "fedavg"), goal, measure)
            ratio, numbers = speed_up(fedavg, measured), spread(measured)
            cells.append(Cell(benchmark.name, _with_ratio(numbers, ratio), numbers, ratio))
        table.add(method.title, cells)
    return table


def versus(plan: Plan, outcomes: Outcomes, targets: Targets) -> Table:
    """FedFa-Delta against what the paper compares it with, seed by seed."""
    table = Table(
        "versus",
        "FedFa-Delta against the others, seed by seed",
        "How many times sooner FedFa-Delta reaches the target in virtual time, and how many times "
        f"fewer client updates it needs: {SEED_BY_SEED}. `never`: FedFa-Delta did not reach it; "
        "`only`: the other one did not; `-`: neither did.",
        ["", "time", "client updates"],
    )
    for benchmark in plan.profile.benchmarks:
        goal = targets[benchmark.name]
        for method in VERSUS:
            cells = []
            for measure in (TIME, ROUNDS):  # a round is Mc updates by either
                theirs = _reached(outcomes, plan.seeded(benchmark, method), goal, measure)
                ours = _reached(outcomes, plan.seeded(benchmark, "fedfa-delta"), goal, measure)
                cells.append(_sooner(measure.title, theirs, ours))
            table.add(f"{benchmark.title}: {METHOD[method].title}", cells)
    return table


def further(plan: Plan, benchmark: Benchmark, outcomes: Outcomes, goal: float) -> Table:
    """FedFa-Delta's variants against FedBuff in both forms, seed by seed."""
    own = plan.run(benchmark, "fedfa-delta")
    table = Table(
        f"further-{benchmark.name}",
        f"What could make FedFa-Delta faster than FedBuff: {benchmark.title}",
        f"Target {goal:g}; as it is: server_lr 1, K = {own.window}, Mc = {own.concurrency}. "
        "How many times sooner than FedBuff in each form it reaches the target in virtual time: "
        f"{SEED_BY_SEED}. `never`: it did not reach it; `only`: FedBuff did not; `-`: neither did. "
        "Diverged: the guard ended the run, or it ended nearer to the untrained model's accuracy "
        "than to the target.",
        [
            "",
            *(f"sooner than {METHOD[name].title}" for name in FEDBUFFS),
            *("time to the target", "best accuracy", "diverged"),
        ],
    )
    fedbuffs = {
        name: _reached(outcomes, plan.seeded(benchmark, name), goal, TIME) for name in FEDBUFFS
    }
    for title, runs in plan.further(benchmark):
        ours = _reached(outcomes, runs, goal, TIME)
        seconds = spread(ours)
        best = spread([outcomes[run.id].best for run in runs])
        lost = [outcomes[run.id].has_diverged(goal) for run in runs]
        cells = [
            *(_sooner(name, theirs, ours) for name, theirs in fedbuffs.items()),
            Cell("time", _text(seconds, "{:.1f}"), seconds),
            Cell("best", _text(best, "{:.3f}"), best),
            Cell("diverged", f"{sum(lost)} of {len(lost)}", spread([float(one) for one in lost])),
        ]
        table.add(title, cells)
    return table


def _sooner(column: str, theirs: Sequence[float | None], ours: Sequence[float | None]) -> Cell:
    each = [speed_up([one], [other]) for one, other in zip(theirs, ours, strict=True)]
    median = speed_up(theirs, ours)
    text = f"{_ratio_text(median)} ({', '.join(map(_ratio_text, each))})"
    known = [one if one and math.isfinite(one) else None for one in each]
    return Cell(column, text, spread(known), median)


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return {0.0: "never", math.inf: "only"}.get(ratio, f"{ratio:.2f}")


def _best(plan: Plan, outcomes: Outcomes) -> Table:
    table = Table(
        "table4",
        "Table 4. Best accuracy within the budget",
        f"{_over(plan.seeds)}; every method has the same number of client updates.",
        ["", *(one.title for one in plan.profile.benchmarks)],
    )
    for method in METHODS:
        cells = []
        for benchmark in plan.profile.benchmarks:
            best = spread([outcomes[r.id].best for r in plan.seeded(benchmark, method.name)])
            cells.append(Cell(benchmark.name, _text(best, "{:.3f}"), best))
        table.add(method.title, cells)
    return table


def _concurrency(plan: Plan, outcomes: Outcomes) -> Table:
    table = Table(
        "table5",
        "Table 5. Best accuracy by the concurrency Mc",
        f"{plan.sweep.title}, K = {plan.sweep.window} (FedAvg's round is Mc), one seed.",
        ["", *(f"Mc = {number}" for number in plan.concurrencies)],
    )
    for name in SWEPT:
        cells = []
        for run in plan.by_concurrency(name):
            best = spread([outcomes[run.id].best])
            cells.append(Cell(f"Mc={run.concurrency}", _text(best, "{:.3f}"), best))
        table.add(METHOD[name].title, cells)
    return table


def _combined(plan: Plan, outcomes: Outcomes, targets: Targets) -> Table:
    goal = targets[plan.sweep.name]
    table = Table(
        "table6",
        "Table 6. With FedProx and FedNova",
        f"{plan.sweep.title}, target {goal:g}, one seed: communication rounds and virtual time to "
        "the target, and best accuracy.",
        ["", "rounds", "time", "best"],
    )
    for name in COMBINED:
        for run, variant in zip(plan.combined(name), ("", *VARIANTS), strict=True):
            title = METHOD[name].title + (f" with {VARIANT[variant]}" if variant else "")
            rounds = spread(_reached(outcomes, [run], goal, ROUNDS))
            seconds = spread(_reached(outcomes, [run], goal, TIME))
            best = spread([outcomes[run.id].best])
            cells = [
                Cell("rounds", _text(rounds, "{:.1f}"), rounds),
                Cell("time", _text(seconds, "{:.1f}"), seconds),
                Cell("best", _text(best, "{:.3f}"), best),
            ]
            table.add(title, cells)
    return table


def runs(outcomes: Outcomes, targets: Targets) -> str:
    """CSV, one line a run: what it was, and what came of it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            *("run", "benchmark", "method", "variant", "seed", "window", "concurrency", "rate"),
            *("updates", "target", "time_to_target", "rounds_to_target", "best", "ended_early"),
        )
    )
    for name, one in outcomes.items():
        run, goal = one.run, targets[one.run.benchmark.name]
        reached = one.reached(goal)
        writer.writerow(
            (
                *(name, run.benchmark.name, run.method, run.variant, run.seed, run.window),
                *(run.concurrency, run.rate, run.updates, goal),
                *(("", "") if reached is None else (reached.seconds, reached.rounds)),
                *(one.best, one.reason),
            )
        )
    return text.getvalue()


def sensitivity(plan: Plan, benchmark: Benchmark, outcomes: Outcomes, goal: float) -> Table:
    own = plan.run(benchmark, "fedfa-delta")
    table = Table(
        f"sensitivity-{benchmark.name}",
        f"FedFa-Delta's sensitivity: {benchmark.title}",
        f"Target {goal:g}; as it is: server_lr 1, K = {own.window}, Mc = {own.concurrency}, "
        f"learning rate {own.rate:g}. One setting at a time is another one. "
        f"{_over(plan.seeds)}.",
        ["", "time to the target", "client updates to the target", "best accuracy", "ended early"],
    )
    for title, runs in plan.sensitivity(benchmark):
        found = [outcomes[run.id] for run in runs]
        seconds = spread(_reached(outcomes, runs, goal, TIME))
        rounds = _reached(outcomes, runs, goal, ROUNDS)
        updates = spread([None if one is None else one * runs[0].concurrency for one in rounds])
        best = spread([one.best for one in found])
        early = spread([float(bool(one.reason)) for one in found])
        cells = [
            Cell("time", _text(seconds, "{:.1f}"), seconds),
            Cell("updates", _text(updates, "{:.0f}"), updates),
            Cell("best", _text(best, "{:.3f}"), best),
            Cell("ended early", f"{sum(1 for one in found if one.reason)} of {len(runs)}", early),
        ]
        table.add(title, cells)
    return table


VARIANT = {"fedprox": "FedProx", "fednova": "FedNova"}


def _over(seeds: int) -> str:
    return "One seed" if seeds == 1 else f"Mean and standard deviation over {seeds} seeds"


def _reached(
    outcomes: Outcomes, runs: Sequence[Run], goal: float, measure: Measure
) -> list[float | None]:
    """For each run what it took, None where it did not get there."""
    points = [outcomes[run.id].reached(goal) for run in runs]
    return [None if point is None else measure.of(point) for point in points]


def _with_ratio(numbers: Spread, ratio: float | None) -> str:
    text = _text(numbers, "{:.1f}")
    if numbers.mean is None or ratio is None:
        return text
    return f"{text} ({'FedAvg: never' if ratio == math.inf else f'{ratio:.1f}x'})"


def _text(numbers: Spread, form: str) -> str:
    if numbers.mean is None:
        return NOT_REACHED
    text = form.format(numbers.mean)
    if numbers.having > 1:
        text += f" ± {form.format(numbers.deviation)}"
    return text if numbers.having == numbers.of else f"{text} [{numbers.having} of {numbers.of}]"
