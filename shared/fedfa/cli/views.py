"""A federation's summary as a person sees it: one plain line, or a panel that is drawn anew."""

from collections.abc import Iterable
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedfa.summary import Measured, Summary
from fedfa.tracebacks import code_of, first_line

STYLES = {
    "waiting": "yellow",
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
}
SPARKS = "".join(map(chr, range(0x2581, 0x2589)))  # eight bars of growing height
SPARK_WIDTH = 40


def duration(seconds: float | None) -> str:
    """4.2s, 3m05s, 2h07m."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def measured(value: Measured | None) -> str:
    return "-" if value is None else f"{value.value:.4f} (version {value.version})"


def line(summary: Summary) -> str:
    """Everything that matters while it runs, in one line for logs and pipes."""
    parts = [
        f"{duration(summary.seconds):>6} {summary.status}",
        f"version {summary.version}",
        f"updates {summary.merged}",
    ]
    if summary.latest is not None and summary.best is not None:
        best = f" (best {summary.best.value:.4f})"
        parts.append(f"{summary.metric} {summary.latest.value:.4f}{best}")
    if summary.staleness_mean is not None:
        parts.append(f"staleness {summary.staleness_mean:.1f} (max {summary.staleness_max})")
    parts.append(f"open {summary.open_jobs}/{summary.concurrency}")
    parts.append(f"{summary.updates_per_second:.2f}/s")
    if summary.eta_seconds is not None:
        parts.append(f"eta {_eta(summary)}")
    if summary.evaluation_error:
        parts.append(f"evaluation {first_line(summary.evaluation_error)}")
    return "  ".join(parts)


def panel(summary: Summary, values: Iterable[float] = (), *, note: str = "") -> RenderableType:
    """values: the metric over the versions, drawn small. note: a passing trouble, if any."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", min_width=10)
    rows.add_column()
    rows.add_row("updates", _progress(summary))
    rows.add_row("version", str(summary.version))
    rows.add_row(summary.metric or "metric", _quality(summary, list(values)))
    rows.add_row("staleness", _staleness(summary))
    rows.add_row("open jobs", f"{summary.open_jobs} of {summary.concurrency}")
    if summary.held_up:
        rows.add_row("", Text(summary.held_up))
    rows.add_row("speed", f"{summary.updates_per_second:.2f} updates/s")
    if summary.rejected or summary.abandoned:
        refused = f"{summary.rejected} rejected, {summary.abandoned} abandoned"
        last = ""
        if summary.refusal:
            last = f"; the last, {summary.refused}"
            if summary.refusal not in summary.reason:  # which is shown below
                last += f": {first_line(summary.refusal)}"
        rows.add_row("refused", Text(refused + last, "yellow"))
    if summary.evaluation_error:
        rows.add_row("evaluation", Text(first_line(summary.evaluation_error), "yellow"))
    parts: list[RenderableType] = [rows]
    if summary.reason:
        parts.append(Text(first_line(summary.reason), "dim"))
    if note:
        parts.append(Text(note, "yellow"))
    style = STYLES[summary.status]
    title = Text.assemble(
        (summary.federation, "bold"),
        "  ",
        (summary.status, style),
        f"  {duration(summary.seconds)}",
    )
    return Panel(Group(*parts), title=title, title_align="left", border_style=style, width=78)


def details(summary: Summary) -> RenderableType:
    """`fedfa status ID`: the panel, the newest evaluation, and where a task's own code failed.

    An error with lines of code is told once, with them.
    """
    brief = replace(
        summary,
        reason=_without_code(summary.reason),
        refusal=summary.refusal and _without_code(summary.refusal),
        evaluation_error=summary.evaluation_error and _without_code(summary.evaluation_error),
    )
    parts = [panel(brief)]
    if summary.metrics:
        text = ", ".join(f"{name} {value:.4f}" for name, value in summary.metrics.items())
        parts.append(Text(f"newest evaluation: {text}", "dim"))
    failed: dict[str, str] = {}  # the lines of code -> whose, and the error
    for whose, error in (
        (summary.refused, summary.refusal),
        ("evaluation", summary.evaluation_error),
        (summary.federation, summary.reason),
    ):
        if error and code_of(error):
            failed.setdefault(code_of(error), f"{whose}: {first_line(error)}")
    parts += [Text(f"{told}\n{code}", "red") for code, told in failed.items()]
    return Group(*parts)


def _without_code(error: str) -> str:
    """An error as it is told where its last cause follows, with the lines of code."""
    return error.partition(", at last: ")[0] if code_of(error) else error


def _eta(summary: Summary) -> str:
    # A target may end it sooner; the counted conditions are the latest end.
    most = "<" if summary.target is not None else ""
    return f"{most}{duration(summary.eta_seconds)}"


def _progress(summary: Summary) -> RenderableType:
    if summary.progress is None:
        return Text(str(summary.merged))
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=1.0, completed=summary.progress, width=SPARK_WIDTH - 10)
    eta = "" if summary.eta_seconds is None else f"eta {_eta(summary)}"
    row.add_row(str(summary.merged), bar, f"{summary.progress:.0%}", Text(eta, "dim"))
    return row


def _quality(summary: Summary, values: list[float]) -> RenderableType:
    text = Text(measured(summary.latest))
    if summary.best is not None:
        text.append(f"   best {measured(summary.best)}", "green")
    if summary.target is not None:
        text.append(f"   target {summary.target:g}", "dim")
    if len(values) < 2:
        return text
    return Group(text, Text(spark(values), "cyan"))


def spark(values: list[float]) -> str:
    """The last values as bars between their least and their greatest."""
    shown = values[-SPARK_WIDTH:]
    low, high = min(shown), max(shown)
    height = (high - low) or 1.0
    return "".join(SPARKS[int((value - low) / height * (len(SPARKS) - 1))] for value in shown)


def _staleness(summary: Summary) -> str:
    if summary.staleness_mean is None:
        return "-"
    return f"mean {summary.staleness_mean:.1f}, at most {summary.staleness_max} versions"
