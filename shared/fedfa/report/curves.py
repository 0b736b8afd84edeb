"""Several runs in one figure: a metric over the time since submission, and over versions."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedfa.report.figures import STYLE, level_line, png
from fedfa.rows import History
from fedfa.summary import series

# Okabe and Ito's colours, that people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dashed", "dotted")  # once the colours are used up


def draw(histories: Sequence[History], metric: str | None, level: float | None) -> bytes:
    """A PNG. level: a dashed line at a value that all of them reached."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.8), layout="constrained")
        over_time, over_versions = figure.subplots(1, 2, sharey=True)
        for number, history in enumerate(histories):
            points = series(history, metric) if metric else []
            values = [point.value for point in points]
            for axes, x in (
                (over_time, [point.seconds for point in points]),
                (over_versions, [point.version for point in points]),
            ):
                axes.plot(
                    x,
                    values,
                    color=COLOURS[number % len(COLOURS)],
                    linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
                    marker="o" if len(values) <= 60 else None,
                    markersize=4,
                    label=history.submission.federation,
                )
        over_time.set(xlabel="seconds since submission", ylabel=metric or "")
        over_versions.set(xlabel="version")
        over_versions.xaxis.set_major_locator(MaxNLocator(integer=True))
        if level is not None:
            level_line(over_time, level, f"all reach {level:.4g}", below=True)
        over_versions.legend(loc="best")
        return png(figure, bbox_inches="tight")
