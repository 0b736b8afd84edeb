"""Federations side by side: one line of numbers for each, and their curves in one figure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from fedfa.errors import InvalidInput
from fedfa.merge import window_of
from fedfa.rows import History
from fedfa.summary import Measured, best_of, goodness, headline, series, summarize


@dataclass(frozen=True, slots=True)
class Compared:
    """One federation's line. window and staleness_mean are None where there is none.

    metric: the one that all of them have, in `latest` and `best`. reached_seconds: since
    submission, until it was as good as Comparison.level; None without a metric.
    """

    federation: str
    task: str
    rule: str
    window: int | None
    concurrency: int
    status: str
    version: int
    updates: int
    seconds: float
    staleness_mean: float | None
    metric: str | None
    latest: float | None
    best: float | None
    reached_seconds: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs' lines, in the order in which they were given, and what the figure is drawn from.

    level: of the metric, which every run reached: the worst of their best values.
    """

    lines: tuple[Compared, ...]
    metric: str | None
    level: float | None
    histories: tuple[History, ...]

    @staticmethod
    def of(histories: Sequence[History]) -> "Comparison":
        """Raises InvalidInput where there is nothing to compare."""
        if not histories:
            raise InvalidInput("compare: no run; name at least one")
        metric = _common_metric(histories)
        curves = [series(history, metric) if metric else [] for history in histories]
        best = [best_of(curve, metric) for curve in curves]
        values = [one.value for one in best if one is not None]
        level = min(values, key=lambda value: goodness(metric, value), default=None)
        lines = [
            _line(history, metric, curve, one, level)
            for history, curve, one in zip(histories, curves, best, strict=True)
        ]
        return Comparison(tuple(lines), metric, level, tuple(histories))

    def as_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "level": self.level,
            "runs": [asdict(line) for line in self.lines],
        }

    def png(self) -> bytes:
        """The metric of all runs over time and over versions. Needs matplotlib."""
        from fedfa.report.curves import draw  # imports matplotlib

        return draw(self.histories, self.metric, self.level)

    def _repr_png_(self) -> bytes | None:
        return self.png() if self.metric else None

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(line)) + "</tr>"
            for line in self.lines
        )
        return f"<table><tr>{head}</tr>{rows}</table>"


COLUMNS = (
    "federation", "task", "rule", "K", "Mc", "status", "versions", "updates", "seconds",
    "staleness", "metric", "last", "best", "to the common best",
)  # fmt: skip


def cells(line: Compared) -> list[str]:
    """A line as texts, one for each of COLUMNS."""
    return [
        line.federation,
        line.task,
        line.rule,
        "-" if line.window is None else str(line.window),
        str(line.concurrency),
        line.status,
        str(line.version),
        str(line.updates),
        f"{line.seconds:.1f}",
        "-" if line.staleness_mean is None else f"{line.staleness_mean:.1f}",
        line.metric or "-",
        "-" if line.latest is None else f"{line.latest:.4f}",
        "-" if line.best is None else f"{line.best:.4f}",
        "-" if line.reached_seconds is None else f"{line.reached_seconds:.1f} s",
    ]


def _line(
    history: History,
    metric: str | None,
    curve: Sequence[Measured],
    best: Measured | None,
    level: float | None,
) -> Compared:
    spec, summary = history.submission.spec, summarize(history, now=history.at)
    return Compared(
        federation=summary.federation,
        task=spec.task.name,
        rule=spec.rule.name,
        window=window_of(spec),
        concurrency=spec.concurrency,
        status=summary.status,
        version=summary.version,
        updates=summary.merged,
        seconds=summary.seconds,
        staleness_mean=summary.staleness_mean,
        metric=metric,
        latest=curve[-1].value if curve else None,
        best=best.value if best else None,
        reached_seconds=_reached(curve, metric, level),
    )


def _common_metric(histories: Sequence[History]) -> str | None:
    """The first run's headline, or else any metric that all evaluated runs have."""
    named = [
        {name for evaluation in history.evaluations for name in evaluation.metrics}
        for history in histories
    ]
    common = set.intersection(*named)
    first = headline(histories[0])
    return first if first in common else min(common, default=None)


def _reached(curve: Sequence[Measured], metric: str | None, level: float | None) -> float | None:
    if level is None:
        return None
    wanted = goodness(metric, level)
    return next((one.seconds for one in curve if goodness(metric, one.value) >= wanted), None)
