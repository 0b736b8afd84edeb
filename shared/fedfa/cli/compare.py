"""`fedfa compare`: several runs in one table and one figure."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedfa import connections
from fedfa.cli import console, results
from fedfa.cli.control import Folder
from fedfa.cli.observe import Json
from fedfa.comparison import COLUMNS, Comparison, cells
from fedfa.history import HistoryReader

NUMBERS = {"K", "Mc", "versions", "updates", "seconds", "staleness", "last", "best"}


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="ids in the bucket, or folders of runs", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="the figure's file")] = Path("runs/compare.png"),
    as_json: Json = False,
    folder: Folder = None,
) -> None:
    """Show federations side by side, and draw their curves together.

    The last column says when each was as good as the worst one at its best. With --json nothing is
    drawn.
    """
    readers = [
        HistoryReader(connections.store(folder), run)
        if folder is not None
        else HistoryReader(*connections.find_run(run))
        for run in runs
    ]
    comparison = Comparison.of([reader.refresh() for reader in readers])
    if as_json:
        console.print_json(comparison.as_json())
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=True)
    for line in comparison.lines:
        table.add_row(*cells(line))
    console.out.print(table)
    if comparison.metric is None:
        console.warn("no metric is in all of these runs; nothing is drawn")
        return
    with results.writing("--out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(comparison.png())
    console.say(f"figure: {out}")
