"""The figures: quality over time and versions, staleness, the trainers' work, outcomes.

Drawn with matplotlib's Figure objects and no pyplot, so that nothing is global and no screen is
needed. Colours are Okabe and Ito's, which the colour-blind can tell apart.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedfa.rows import History, Row
from fedfa.summary import headline, metric_names, series

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#6B7280"
OUTCOMES = {"merged": BLUE, "rejected": RED, "abandoned": ORANGE}
MOST_METRICS = 4
MOST_TRAINERS = 24  # shown by name; a longer list could not be read
MOST_BINS = 60
STYLE: Any = {  # matplotlib types each key
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture everywhere
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#374151",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 130,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure: name is its file's, title and caption are for people."""

    name: str
    title: str
    caption: str
    png: bytes


def draw(history: History) -> list[Drawn]:
    """Every figure for which the history has data."""
    figures = []
    if metric_names(history):
        figures.append(
            Drawn(
                "quality",
                "Quality",
                "Each evaluated version, over the time since submission and over versions.",
                _render(_quality, history),
            )
        )
    if history.merged:
        figures += [
            Drawn(
                "staleness",
                "Staleness",
                "How many versions the model had moved on while an update was made.",
                _render(_staleness, history),
            ),
            Drawn(
                "trainers",
                "Trainers",
                "Left: jobs in flight, from the start of their training to their decision (jobs "
                "still open at the end are not in the log). Right: the share of its time that each "
                "trainer spent computing, since its first job.",
                _render(_trainers, history),
            ),
        ]
    if any(row.outcome in OUTCOMES for row in history.rows):
        figures.append(
            Drawn(
                "outcomes",
                "Outcomes",
                "What became of the jobs, over the time since submission.",
                _render(_outcomes, history),
            )
        )
    return figures


def in_flight(rows: Iterable[Row], start: float) -> tuple[list[float], list[int]]:
    """When the number of started and undecided jobs changes, in seconds since start; and to what.

    A job counts from its trainer's start to the commit of its decision.
    """
    changes: Counter[float] = Counter()
    for row in rows:
        if row.started_at is not None:
            changes[min(row.started_at, row.at) - start] += 1
            changes[row.at - start] -= 1
    times, counts, now = [], [], 0
    for time in sorted(changes):
        now += changes[time]
        times.append(time)
        counts.append(now)
    return times, counts


def utilisation(rows: Iterable[Row], end: float) -> dict[str, float]:
    """The fraction of its time, from its first job to the end, that each trainer computed."""
    first: dict[str, float] = {}
    busy: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.trainer is None or row.started_at is None or row.train_seconds is None:
            continue
        first[row.trainer] = min(first.get(row.trainer, row.started_at), row.started_at)
        busy[row.trainer] += row.train_seconds
    return {
        trainer: min(1.0, busy[trainer] / max(end - first[trainer], 1e-9))
        for trainer in sorted(first)
    }


def png(figure: Figure, **options: Any) -> bytes:
    """The figure as a file. Call it in the style that it was drawn in."""
    image = io.BytesIO()
    figure.savefig(image, format="png", facecolor="white", **options)
    return image.getvalue()


def _render(draw: Callable[[History], Figure], history: History) -> bytes:
    with mpl.rc_context(STYLE):
        return png(draw(history), bbox_inches="tight")


def _quality(history: History) -> Figure:
    metrics = metric_names(history)[:MOST_METRICS]
    figure = Figure(figsize=(10.5, 3.1 * len(metrics)), layout="constrained")
    rows = figure.subplots(len(metrics), 2, squeeze=False, sharey="row")
    for metric, (over_time, over_versions) in zip(metrics, rows, strict=True):
        points = series(history, metric)
        values = [point.value for point in points]
        _curve(over_time, [point.seconds for point in points], values)
        _curve(over_versions, [point.version for point in points], values)
        over_time.set(title=metric, ylabel=metric)
        over_versions.xaxis.set_major_locator(MaxNLocator(integer=True))
        target = history.submission.spec.stop.target
        if target is not None and metric == headline(history):
            for axes in (over_time, over_versions):
                level_line(axes, target.value, f"target {target.value:g}", below=True)
    rows[-1][0].set_xlabel("seconds since submission")
    rows[-1][1].set_xlabel("version")
    return figure


def _curve(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    few = len(x) <= 60
    axes.plot(x, y, color=BLUE, marker="o" if few else None, markersize=4)
    axes.set_xlim(left=0)


def level_line(axes: Axes, value: float, label: str, *, below: bool) -> None:
    """A dashed line; its label stands below at the left, where a curve starts, or above."""
    axes.axhline(value, color=RED, linestyle=(0, (5, 3)), linewidth=1.3)
    axes.annotate(
        label,
        (0.0 if below else 1.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(5, -4) if below else (-4, 4),
        textcoords="offset points",
        ha="left" if below else "right",
        va="top" if below else "bottom",
        color=RED,
        fontsize=10,
    )


def _staleness(history: History) -> Figure:
    values = [row.staleness for row in history.merged if row.staleness is not None]
    figure = Figure(figsize=(10.5, 3.3), layout="constrained")
    axes = figure.subplots()
    width = max(1, -(-(max(values) + 1) // MOST_BINS))  # in versions, so that few bars remain
    edges = [at - 0.5 for at in range(0, max(values) + width + 1, width)]
    axes.hist(values, bins=edges, color=BLUE, edgecolor="white", linewidth=0.8)
    mean = sum(values) / len(values)
    axes.axvline(mean, color=RED, linestyle=(0, (5, 3)), linewidth=1.3)
    axes.annotate(
        f"mean {mean:.1f}",
        (mean, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -4),
        textcoords="offset points",
        va="top",
        color=RED,
        fontsize=10,
    )
    axes.set(xlabel="staleness (versions)", ylabel="merged updates")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _trainers(history: History) -> Figure:
    start, concurrency = history.submission.created_at, history.submission.spec.concurrency
    shares = utilisation(history.rows, history.at)
    named = dict(list(shares.items())[:MOST_TRAINERS])
    figure = Figure(
        figsize=(10.5, max(3.3, 0.3 * len(named) + 1.5)),
        layout=ConstrainedLayoutEngine(wspace=0.08),
    )
    jobs, bars = figure.subplots(1, 2, width_ratios=(1.7, 1))
    times, counts = in_flight(history.rows, start)
    jobs.step(times, counts, where="post", color=BLUE, linewidth=1.2)
    jobs.fill_between(times, counts, step="post", color=BLUE, alpha=0.15, linewidth=0)
    level_line(jobs, concurrency, f"Mc = {concurrency}", below=False)
    jobs.set(title="jobs in flight", xlabel="seconds since submission")
    jobs.set_xlim(0, max(history.at - start, 1e-3))
    jobs.set_ylim(0, max([concurrency, *counts]) * 1.2)
    jobs.yaxis.set_major_locator(MaxNLocator(integer=True))
    bars.barh(list(named), list(named.values()), color=GREEN, height=0.5)
    for at, share in enumerate(named.values()):
        bars.annotate(
            f"{share:.0%}",
            (share, at),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color="#374151",
        )
    bars.set(title="time spent computing", xlim=(0, 1.12))
    bars.xaxis.set_major_formatter(PercentFormatter(1.0))
    bars.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
    bars.grid(axis="y", visible=False)
    bars.invert_yaxis()
    if len(shares) > len(named):
        bars.set_xlabel(f"the first {len(named)} of {len(shares)} trainers")
    return figure


def _outcomes(history: History) -> Figure:
    start = history.submission.created_at
    figure = Figure(figsize=(10.5, 3.0), layout="constrained")
    axes = figure.subplots()
    for outcome, color in OUTCOMES.items():
        times = [row.at - start for row in history.rows if row.outcome == outcome]
        if times or outcome == "merged":
            x = [0.0, *times, history.at - start]
            y = [*range(len(times) + 1), len(times)]
            axes.step(x, y, where="post", color=color, label=f"{outcome} ({len(times)})")
    axes.set(xlabel="seconds since submission", ylabel="jobs so far")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left")
    return figure
