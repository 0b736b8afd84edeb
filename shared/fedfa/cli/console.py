"""Where the commands write: results to stdout, everything else to stderr. NO_COLOR is respected."""

import json
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TimeRemainingColumn
from rich.text import Text

PIPE_WIDTH = 300  # a table that goes into a file or a pipe is not folded to fit a screen

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def is_screen(console: Console) -> bool:
    """Whether somebody watches, so that what was drawn may be drawn anew.

    rich also calls a pipe a terminal, where FORCE_COLOR asks for colours.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


if not is_screen(out):
    out.width = PIPE_WIDTH


def say(text: str, style: str = "") -> None:
    """One line for people, never wrapped and never read as markup."""
    out.print(Text(text, style), soft_wrap=True)


def warn(text: str) -> None:
    err.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)


def error(text: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def progress(count: str | ProgressColumn = "{task.percentage:.0f}%") -> Progress:
    """A bar for whoever waits at a screen, which leaves nothing behind."""
    return Progress(
        "{task.description}",
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not is_screen(err),
    )


def print_json(value: Any) -> None:
    """One JSON value, one line, on stdout."""
    print(json.dumps(value, allow_nan=False), flush=True)
