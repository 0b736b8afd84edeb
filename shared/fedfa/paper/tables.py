"""Tables 2 to 6, each as rows of text for Markdown and of numbers for CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedfa.paper.outcomes import Outcome, Spread, spread
from fedfa.paper.plan import COMBINED, SWEPT, VARIANTS, Part, Plan, Run
from fedfa.paper.profiles import METHOD, METHODS

NOT_REACHED = "not reached"


@dataclass(slots=True)
class Table:
    """rows: for people. records: for programs, one for each cell."""

    name: Part
    title: str
    note: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    records: list[dict[str, object]] = field(default_factory=list)

    def add(self, method: str, cells: Sequence[tuple[str, str, Spread]]) -> None:
        """cells: (column, text, numbers)."""
        self.rows.append([method, *(text for _, text, _ in cells)])
        for column, _, numbers in cells:
            self.records.append(
                {
                    "method": method,
                    "column": column,
                    "mean": "" if numbers.mean is None else repr(numbers.mean),
                    "deviation": repr(numbers.deviation),
                    "seeds_having": numbers.having,
                    "seeds": numbers.of,
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


Outcomes = Mapping[str, Outcome]  # by the run's id
Targets = Mapping[str, float]  # by benchmark


def draw(part: Part, plan: Plan, outcomes: Outcomes, targets: Targets) -> Table:
    match part:
        case "table2":
            return _to_target(part, plan, outcomes, targets, is_time=True)
        case "table3":
            return _to_target(part, plan, outcomes, targets, is_time=False)
        case "table4":
            return _best(plan, outcomes)
        case "table5":
            return _concurrency(plan, outcomes)
        case "table6":
            return _combined(plan, outcomes, targets)
    raise ValueError(part)


def _to_target(
    part: Part, plan: Plan, outcomes: Outcomes, targets: Targets, *, is_time: bool
) -> Table:
    what = "Virtual time" if is_time else "Communication rounds"
    unit = "in units of the fastest client's job" if is_time else "one round is Mc client updates"
    table = Table(
        part,
        f"{'Table 2' if is_time else 'Table 3'}. {what} to the target accuracy",
        f"Mean and standard deviation over {plan.seeds} seeds, {unit}; in brackets how many times "
        "sooner than FedAvg. Where not every seed reached the target, the mean is of those that "
        "did, and their number follows.",
        ["", *(f"{one.title} ({targets[one.name]:g})" for one in plan.profile.benchmarks)],
    )
    for method in METHODS:
        cells = []
        for benchmark in plan.profile.benchmarks:
            goal = targets[benchmark.name]
            measured = _reached(outcomes, plan.seeded(benchmark, method.name), goal, is_time)
            fedavg = _reached(outcomes, plan.seeded(benchmark, "fedavg"), goal, is_time)
            cells.append((benchmark.name, _with_ratio(measured, fedavg), measured))
        table.add(method.title, cells)
    return table


def _best(plan: Plan, outcomes: Outcomes) -> Table:
    table = Table(
        "table4",
        "Table 4. Best accuracy within the budget",
        f"Mean and standard deviation over {plan.seeds} seeds; every method has the same number of "
        "client updates.",
        ["", *(one.title for one in plan.profile.benchmarks)],
    )
    for method in METHODS:
        cells = []
        for benchmark in plan.profile.benchmarks:
            best = spread([outcomes[r.id].best for r in plan.seeded(benchmark, method.name)])
            cells.append((benchmark.name, _text(best, "{:.3f}"), best))
        table.add(method.title, cells)
    return table


def _concurrency(plan: Plan, outcomes: Outcomes) -> Table:
    table = Table(
        "table5",
        "Table 5. Best accuracy by the concurrency Mc",
        f"{plan.sweep.title}, K = {plan.sweep.window} (FedAvg's round is Mc), one seed.",
        ["", *(f"Mc = {number}" for number in plan.profile.concurrencies)],
    )
    for name in SWEPT:
        cells = []
        for run in plan.by_concurrency(name):
            best = spread([outcomes[run.id].best])
            cells.append((f"Mc={run.concurrency}", _text(best, "{:.3f}"), best))
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
            title = METHOD[name].title + (f" with {_VARIANT[variant]}" if variant else "")
            rounds = _reached(outcomes, [run], goal, is_time=False)
            seconds = _reached(outcomes, [run], goal, is_time=True)
            best = spread([outcomes[run.id].best])
            cells = [
                ("rounds", _text(rounds, "{:.1f}"), rounds),
                ("time", _text(seconds, "{:.1f}"), seconds),
                ("best", _text(best, "{:.3f}"), best),
            ]
            table.add(title, cells)
    return table


_VARIANT = {"fedprox": "FedProx", "fednova": "FedNova"}


def _reached(outcomes: Outcomes, runs: Sequence[Run], goal: float, is_time: bool) -> Spread:
    points = [outcomes[run.id].reached(goal) for run in runs]
    read: Callable[..., float] = lambda p: p.seconds if is_time else p.rounds  # noqa: E731
    return spread([None if point is None else read(point) for point in points])


def _with_ratio(measured: Spread, fedavg: Spread) -> str:
    text = _text(measured, "{:.1f}")
    if measured.mean is None or fedavg.mean is None or measured.mean == 0:
        return text
    return f"{text} ({fedavg.mean / measured.mean:.1f}x)"


def _text(numbers: Spread, form: str) -> str:
    if numbers.mean is None:
        return NOT_REACHED
    text = form.format(numbers.mean)
    if numbers.having > 1:
        text += f" ± {form.format(numbers.deviation)}"
    return text if numbers.having == numbers.of else f"{text} [{numbers.having} of {numbers.of}]"
