"""Where the commands write: results to stdout, everything else to stderr. NO_COLOR is respected."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

PIPE_WIDTH = 300  # a table that goes into a file or a pipe is not folded to fit a screen

out = Console(highlight=False)
if not out.is_terminal:
    out.width = PIPE_WIDTH
err = Console(stderr=True, highlight=False)


def say(text: str, style: str = "") -> None:
    """One line for people, never wrapped and never read as markup."""
    out.print(Text(text, style), soft_wrap=True)


def warn(text: str) -> None:
    err.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)


def error(text: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON value, one line, on stdout."""
    print(json.dumps(value, allow_nan=False), flush=True)
