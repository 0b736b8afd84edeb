"""What benchmarks write: groups of cases with their samples, as JSON, and tables of them.

A results folder holds one file for each benchmark. `report.py` makes the page of a folder, and
says what differs between two.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure import machine

FOLDER = Path(__file__).parent / "results"
Samples = Sequence[float]


@dataclass(frozen=True, slots=True)
class Figure:
    """Repetitions of one measurement, in one unit."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) < 3:
            return min(self.samples), max(self.samples)
        low, _, high = statistics.quantiles(self.samples, n=4)
        return low, high

    def __str__(self) -> str:
        if len(self.samples) == 1:
            return _short(self.median)
        low, high = map(_short, self.quartiles)
        return f"{_short(self.median)} ({low}-{high})"


def _short(value: float) -> str:
    """Three digits, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over one axis: name -> (x, y) in order."""

    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that were measured together, interleaved.

    cases: case -> metric, with its unit -> samples. baselines: metric -> the cases that its
    ratios refer to.
    """

    name: str
    cases: Mapping[str, Mapping[str, Samples]]
    baselines: Mapping[str, Sequence[str]]
    curves: Curves | None = None
    command: str = field(default_factory=lambda: " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    machine: Mapping[str, object] = field(default_factory=machine)

    def figure(self, case: str, metric: str) -> Figure | None:
        samples = self.cases[case].get(metric)
        return Figure(tuple(samples)) if samples else None

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for each in self.cases.values() for metric in each))

    def table(self) -> str:
        """Medians with quartiles, each followed by its ratios to the baselines."""
        columns = [
            (metric, baseline)
            for metric in self.metrics
            for baseline in (None, *self.baselines.get(metric, ()))
        ]
        heading = [f"x {baseline}" if baseline else metric for metric, baseline in columns]
        rows = [
            [case, *(self._cell(case, metric, baseline) for metric, baseline in columns)]
            for case in self.cases
        ]
        return table(["", *heading], rows)

    def _cell(self, case: str, metric: str, baseline: str | None) -> str:
        figure = self.figure(case, metric)
        if figure is None:
            return ""
        if baseline is None:
            return str(figure)
        reference = self.figure(baseline, metric)
        return f"{figure.median / reference.median:.2f}" if reference and reference.median else ""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def options(description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark, with the options that all of them have."""
    assert description
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder to write to")
    return parser


def write(folder: Path, benchmark: str, group: Group) -> None:
    """Print the group, and put it into the benchmark's file in place of one of its name."""
    print(f"\n{group.name}\n\n{group.table()}", flush=True)
    groups = {each.name: each for each in read(folder, benchmark)} | {group.name: group}
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps([asdict(each) for each in groups.values()], indent=1)
    (folder / f"{benchmark}.json").write_text(content + "\n")


def read(folder: Path, benchmark: str) -> list[Group]:
    path = folder / f"{benchmark}.json"
    return [_group(fields) for fields in json.loads(path.read_text())] if path.exists() else []


def benchmarks(folder: Path) -> Iterator[str]:
    """The names of those that have a file."""
    return (path.stem for path in sorted(folder.glob("*.json")))


def _group(fields: dict[str, Any]) -> Group:
    curves = fields.pop("curves")
    return Group(**fields, curves=Curves(**curves) if curves else None)
