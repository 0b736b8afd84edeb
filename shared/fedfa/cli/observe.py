"""`fedfa status` and `fedfa watch`: looking at federations, through the bucket alone."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedfa import connections, manifests, submission
from fedfa.cli import EXIT_INTERRUPTED, console, views
from fedfa.cli.control import Folder, Id
from fedfa.errors import FedfaError, Unavailable
from fedfa.history import HistoryReader
from fedfa.rows import History, is_over
from fedfa.store import ObjectStore
from fedfa.summary import Summary, series, summarize
from fedfa.tracebacks import first_line

LOOK_SECONDS = 0.5  # between two looks at the bucket
LINE_SECONDS = 5.0  # between two lines where there is no terminal
EXIT_FAILED = 1

Json = Annotated[bool, typer.Option("--json", help="for scripts: JSON on stdout")]


def status(
    federation: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="one in detail; all without", show_default=False),
    ] = None,
    as_json: Json = False,
    folder: Folder = None,
) -> None:
    """Show all federations in the bucket, or one in detail."""
    store = connections.store(folder)
    if federation is not None:
        history = HistoryReader(store, federation).refresh()
        summary = summarize(history, now=time.time() if folder is None else history.at)
        if as_json:
            console.print_json(summary.as_json())
        else:
            console.out.print(views.details(summary))
        return
    overview = [_brief(store, name) for name in sorted(store.folders()) if _is_id(name)]
    if as_json:
        console.print_json(overview)
    elif overview:
        console.out.print(_table(overview))
    else:
        console.say(f"no federations in {store.name}; start one with `fedfa submit SPEC`")


def watch(federation: Id, as_json: Json = False) -> None:
    """Follow a federation until it has ended and its last version is evaluated.

    Ends with 0 when it finished or was stopped, with 1 when it failed. With --json, one line of
    JSON for every change.
    """
    reader = HistoryReader(connections.store(), federation)
    try:
        history = follow_as_json(reader) if as_json else follow(reader)
    except KeyboardInterrupt:
        console.err.print(f"{federation} goes on; `fedfa stop {federation}` ends it")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if not as_json:
        say_end(summarize(history, now=time.time()))
    raise typer.Exit(exit_code(history))


def say_end(summary: Summary) -> None:
    """How it ended, and why; `follow` leaves the latter to this line."""
    console.say(f"{summary.status}: {first_line(summary.reason)}", views.STYLES[summary.status])


def exit_code(history: History) -> int:
    return EXIT_FAILED if history.state and history.state.status == "failed" else 0


def follow(reader: HistoryReader, *, tend: Callable[[], list[str]] = list) -> History:
    """Show a federation live until it is over. `tend` is called at every look.

    The lines that it returns are shown to the user.
    """
    if not console.is_screen(console.out):
        return _follow_in_lines(reader, tend)
    with Live(console=console.out, auto_refresh=False) as live:
        while True:
            for line in tend():
                console.say(line, "yellow")
            history, trouble = _look(reader)
            if history is not None:
                summary = summarize(history, now=time.time())
                live.update(_panel(history, summary, trouble), refresh=True)
                if is_over(history, now=time.time()):
                    return history
            time.sleep(LOOK_SECONDS)


def follow_as_json(reader: HistoryReader) -> History:
    """Print a line of JSON for every change until a federation is over."""
    before: tuple[Any, ...] = ()
    while True:
        history, _ = _look(reader)
        if history is not None:
            now = (history.state, history.evaluations)
            if now != before:
                console.print_json(summarize(history, now=time.time()).as_json())
            before = now
            if is_over(history, now=time.time()):
                return history
        time.sleep(LOOK_SECONDS)


def _follow_in_lines(reader: HistoryReader, tend: Callable[[], list[str]]) -> History:
    printed_at, shown = float("-inf"), ""
    while True:
        for line in tend():
            console.say(line)
        history, trouble = _look(reader)
        over = history is not None and is_over(history, now=time.time())
        if over or time.monotonic() > printed_at + LINE_SECONDS:
            text = trouble if history is None else _line(history, trouble)
            if text != shown:
                console.say(text)
            printed_at, shown = time.monotonic(), text
        if history is not None and over:
            return history
        time.sleep(LOOK_SECONDS)


def _look(reader: HistoryReader) -> tuple[History | None, str]:
    """What is there now; an outage is not the end, the services do not mind it either."""
    try:
        return reader.refresh(), ""
    except Unavailable as error:
        return reader.latest, f"trying again: {error}"


def _line(history: History, trouble: str) -> str:
    summary = summarize(history, now=time.time())
    extra = trouble or ("" if history.has_ended else first_line(summary.reason))
    return f"{views.line(summary)}  {extra}".rstrip()


def _panel(history: History, summary: Summary, trouble: str) -> Any:
    values = [one.value for one in series(history, summary.metric)] if summary.metric else []
    reason = "" if history.has_ended else summary.reason
    return views.panel(replace(summary, reason=reason), values, note=trouble)


def _is_id(folder: str) -> bool:
    return submission.ID.fullmatch(folder) is not None


def _brief(store: ObjectStore, federation: str) -> dict[str, Any]:
    """One federation in a few fields, from its newest manifest alone."""
    try:
        submitted = manifests.read_submission(store, federation)
        newest = manifests.newest(store, federation)
    except Unavailable:
        raise
    except FedfaError as error:  # one damaged federation must not hide the others
        return {"federation": federation, "status": "unreadable", "reason": str(error)}
    state = newest.manifest.state if newest else None
    return {
        "federation": federation,
        "status": state.status if state else "waiting",
        "reason": state.reason if state else "",
        "created_at": submitted.created_at,
        "task": submitted.spec.task.name,
        "rule": submitted.spec.rule.name,
        "version": state.version if state else 0,
        "merged": state.num_merged if state else 0,
        "open_jobs": sum(slot.is_open for slot in state.slots) if state else 0,
    }


def _table(overview: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("federation", "status", "task", "rule"):
        table.add_column(column, no_wrap=True)
    for column in ("version", "merged", "open"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("submitted", no_wrap=True)
    table.add_column("reason", style="dim", no_wrap=True)
    for one in overview:
        reason = first_line(one["reason"])
        if one["status"] == "unreadable":
            table.add_row(one["federation"], Text("unreadable", "red"), *[""] * 6, reason)
            continue
        submitted = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["created_at"]))
        table.add_row(
            one["federation"],
            Text(one["status"], views.STYLES[one["status"]]),
            one["task"],
            one["rule"],
            str(one["version"]),
            str(one["merged"]),
            str(one["open_jobs"]),
            submitted,
            reason,
        )
    return table
