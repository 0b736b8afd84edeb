"""A federation's report: PNG figures and one HTML page that needs nothing else, from its history.

Importing this package imports matplotlib, which takes a while.
"""

from pathlib import Path

from fedfa.report.figures import draw
from fedfa.report.page import page
from fedfa.rows import History

PAGE = "report.html"


def write(history: History, folder: Path) -> Path:
    """Write all figures and the page into a folder; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(history)
    for figure in figures:
        (folder / f"{figure.name}.png").write_bytes(figure.png)
    path = folder / PAGE
    path.write_text(page(history, figures), "utf-8")
    return path
