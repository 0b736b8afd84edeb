"""Figures 1 to 6 as PNG, in the report's style."""

from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedfa.paper.outcomes import Outcome, Point
from fedfa.paper.plan import COMBINED, PARADIGMS, VARIANTS, FigurePart, Plan
from fedfa.paper.profiles import METHOD, METHODS
from fedfa.paper.tables import VARIANT, Outcomes, Targets
from fedfa.partition import split
from fedfa.report.figures import GREY, STYLE, png
from fedfa.sections import Dirichlet

COLOURS = (  # Okabe and Ito's, which the colour-blind can tell apart; wine for their pale yellow
    *("#000000", "#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#882255"),
)
COLOUR = dict(zip((method.name for method in METHODS), COLOURS, strict=True))
ALPHAS = (0.1, 0.3, 1.0, 10.0)
SPLIT_CLIENTS, SPLIT_CLASSES, SPLIT_EXAMPLES = 20, 10, 5000
ROUNDS_SHOWN = 3


def draw(part: FigurePart, plan: Plan, outcomes: Outcomes, targets: Targets) -> bytes:
    """The figure as a PNG."""
    with mpl.rc_context(STYLE):
        match part:
            case "fig1":
                figure = _timelines(plan, outcomes)
            case "fig2":
                figure = _splits()
            case "fig3":
                figure = _curves(plan, outcomes, targets, lambda p: p.seconds, "virtual time")
            case "fig4":
                label = "communication rounds (Mc client updates)"
                figure = _curves(plan, outcomes, targets, lambda p: p.rounds, label)
            case "fig5":
                figure = _windows(plan, outcomes)
            case "fig6":
                figure = _combined(plan, outcomes)
        return png(figure)


def _figure(number: int, *, columns: int = 2, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """`number` axes, row by row."""
    rows, columns = -(-number // columns), min(number, columns)
    figure = Figure(figsize=(5.0 * columns, height * rows), layout="constrained")
    axes = [each for row in figure.subplots(rows, columns, squeeze=False) for each in row]
    for unused in axes[number:]:
        unused.set_axis_off()
    return figure, axes[:number]


def _timelines(plan: Plan, outcomes: Outcomes) -> Figure:
    """Who trained when, by slot; what is empty waited."""
    runs = [plan.run(plan.sweep, name) for name in PARADIGMS]
    first = outcomes[runs[0].id].history
    end = _end_of_rounds(outcomes[runs[0].id]) - first.submission.created_at
    figure, axes = _figure(len(runs), columns=3)
    for axis, run in zip(axes, runs, strict=True):
        history = outcomes[run.id].history
        start = history.submission.created_at
        num_shown = 0
        for row in history.merged:
            assert row.slot is not None
            assert row.started_at is not None
            if row.started_at - start < end:
                shown = (row.started_at - start, row.at - row.started_at)
                axis.broken_barh(
                    [shown],
                    (row.slot - 0.4, 0.8),
                    facecolor=COLOUR[run.method],
                    edgecolor="white",
                    linewidth=0.5,
                )
                num_shown += row.at - start <= end
        axis.set(
            title=f"{METHOD[run.method].title}: {num_shown} updates",
            xlabel="virtual time",
            ylabel="slot",
            xlim=(0, end),
        )
        axis.grid(axis="y", visible=False)
    return figure


def _end_of_rounds(fedavg: Outcome) -> float:
    rounds = fedavg.history.merged[: ROUNDS_SHOWN * fedavg.run.concurrency]
    return rounds[-1].at


def _splits() -> Figure:
    """What share of each class each client has, for balanced classes."""
    labels = np.repeat(np.arange(SPLIT_CLASSES), SPLIT_EXAMPLES // SPLIT_CLASSES)
    figure, axes = _figure(len(ALPHAS))
    for axis, alpha in zip(axes, ALPHAS, strict=True):
        shards = split(labels, Dirichlet(alpha=alpha), SPLIT_CLIENTS, 0)
        counts = np.array([np.bincount(labels[s], minlength=SPLIT_CLASSES) for s in shards])
        left = np.zeros(SPLIT_CLIENTS)
        for label in range(SPLIT_CLASSES):
            colour = mpl.colormaps["tab10"](label)
            axis.barh(range(SPLIT_CLIENTS), counts[:, label], left=left, color=colour)
            left += counts[:, label]
        axis.set(title=f"alpha = {alpha:g}", xlabel="examples, by class", ylabel="client")
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(axis="y", visible=False)
    return figure


def _curves(
    plan: Plan,
    outcomes: Outcomes,
    targets: Targets,
    x_of: Callable[[Point], float],
    label: str,
) -> Figure:
    benchmarks = plan.profile.benchmarks
    figure, axes = _figure(len(benchmarks), height=4.2)
    for axis, benchmark in zip(axes, benchmarks, strict=True):
        ends, reached = [], 0.0
        goal = targets[benchmark.name]
        for method in METHODS:
            found = [outcomes[run.id] for run in plan.seeded(benchmark, method.name)]
            for outcome in found:
                xs, ys = _best_so_far(outcome, x_of)
                is_first = outcome is found[0]
                axis.step(
                    xs,
                    ys,
                    where="post",
                    color=COLOUR[method.name],
                    linewidth=1.8 if is_first else 0.6,
                    label=method.title if is_first else None,
                )
                ends.append(xs[-1] if xs else 0.0)
                if (point := outcome.reached(goal)) is not None:
                    reached = max(reached, x_of(point))
        axis.axhline(goal, color=GREY, linestyle=":", linewidth=1)
        # Of the slowest, whose rounds are many times longer, no more than to its target.
        end = min(max(ends), max(sorted(ends)[len(ends) // 2] * 2, reached))
        axis.set(title=benchmark.title, xlabel=label, xlim=(0, end * 1.02))
        axis.set_ylabel("best accuracy so far")
    lines, titles = axes[0].get_legend_handles_labels()
    figure.legend(lines, titles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _windows(plan: Plan, outcomes: Outcomes) -> Figure:
    figure, (axis,) = _figure(1, height=4.2)
    for run, colour in zip(plan.by_window(), COLOURS[1:], strict=False):
        xs, ys = _best_so_far(outcomes[run.id], lambda p: p.rounds)
        axis.step(xs, ys, where="post", color=colour, label=f"K = {run.window}")
    axis.set(
        title=f"FedFa-Param, {plan.sweep.title}",
        xlabel="communication rounds (Mc client updates)",
        ylabel="best accuracy so far",
    )
    axis.legend()
    return figure


def _combined(plan: Plan, outcomes: Outcomes) -> Figure:
    figure, axes = _figure(len(VARIANTS), height=4.2)
    for axis, variant in zip(axes, VARIANTS, strict=True):
        for name in COMBINED:
            for run in plan.combined(name):
                if run.variant not in ("", variant):
                    continue
                points = outcomes[run.id].points
                title = METHOD[name].title + (f" with {VARIANT[variant]}" if run.variant else "")
                axis.plot(
                    [point.rounds for point in points],
                    [point.accuracy for point in points],
                    color=COLOUR[name],
                    linestyle="-" if run.variant else ":",
                    label=title,
                )
        axis.set(title=VARIANT[variant], xlabel="communication rounds (Mc client updates)")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("accuracy")
    return figure


def _best_so_far(
    outcome: Outcome, x_of: Callable[[Point], float]
) -> tuple[list[float], list[float]]:
    xs, ys, best = [], [], 0.0
    for point in outcome.points:
        best = max(best, point.accuracy)
        xs.append(x_of(point))
        ys.append(best)
    return xs, ys
