"""The page of a results folder, and what differs between two.

python benchmarks/report.py                         writes docs/benchmarks.md and its plots
python benchmarks/report.py --check                 fails if they do not show the results
python benchmarks/report.py --compare OLD NEW       medians of NEW over those of OLD
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import aims
import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from results import FOLDER, Curves, Group, benchmarks, read, table

from fedfa.report.figures import STYLE, png

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
IMAGES = DOCS / "images"
ORDER = (  # of the page
    *("merge", "aggregator", "dispatch", "concurrency", "crew", "prefetch", "scale", "speedup"),
    *("smaller_updates", "batchnorm", "recovery", "dashboard"),
)
INTRODUCTION = """\
# Benchmarks

Written by `python benchmarks/report.py` from the files in `benchmarks/results`; not by hand. Every
figure is a median, with its quartiles where it was repeated. Compare cases within one table: they
were measured in turn, on the machine that is named below it. `x` columns are ratios of medians to
the case in their heading. Where there is an aim, the median that it is about stands beside it.

Nothing here is about a GPU: how a trainer compares there with a plain PyTorch loop is not measured.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    given = parser.parse_args()
    if given.compare:
        print(comparison(*given.compare))
    elif given.check:
        if not PAGE.exists() or PAGE.read_text() != page(FOLDER):
            sys.exit(f"{PAGE} does not show the results; run: python benchmarks/report.py")
    else:
        PAGE.write_text(page(FOLDER))
        for name in benchmarks(FOLDER):
            for path, group in plotted(name, FOLDER):
                assert group.curves
                path.write_bytes(drawn(group.name, group.curves))


def page(folder: Path) -> str:
    return "\n".join([INTRODUCTION, *(section(name, folder) for name in ORDER)])


def section(name: str, folder: Path) -> str:
    """What is measured, in its own words, then a table for each group, and what is not there."""
    images = {group.name: path.name for path, group in plotted(name, folder)}
    lines = [f"## {name}\n", described(name), ""]
    groups = read(folder, name)
    for group in groups:
        lines += [f"### {group.name}\n", group.table(), ""]
        if group.name in images:
            lines += [f"![{group.name}](images/{images[group.name]})\n"]
        machine = group.machine
        lines += [
            f"`{group.command}`, {machine['processor']}, {machine['cores']} cores, "
            f"Python {machine['python']}, {machine['at']}, load average "
            f"{float(str(machine['load_average'])):.1f} at the end\n"
        ]
        if said := list(aims.of_group(name, group)):
            lines += ["Aims:\n", *(f"- {each}" for each in said), ""]
    names = {group.name for group in groups}
    if missing := [f"`{each}`" for each in aims.RARE.get(name, ()) if each not in names]:
        lines += [f"No results yet: {', '.join(missing)}.\n"]
    return "\n".join(lines)


def described(name: str) -> str:
    """The benchmark's own docstring, its commands in blocks."""
    source = Path(__file__).with_name(f"{name}.py").read_text()
    text = ast.get_docstring(ast.parse(source))
    assert text
    return re.sub(r"((?:^    .*\n?)+)", _as_block, text, flags=re.MULTILINE)


def _as_block(match: re.Match[str]) -> str:
    return f"```text\n{textwrap.dedent(match[1]).rstrip()}\n```\n"


def plotted(name: str, folder: Path) -> Iterator[tuple[Path, Group]]:
    """Each group with curves, and where its picture is."""
    for number, group in enumerate(read(folder, name)):
        if group.curves:
            yield IMAGES / f"benchmark-{name}-{number}.png", group


def drawn(title: str, curves: Curves) -> bytes:
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(8, 3.6), layout="constrained")
        axes = canvas.add_subplot()
        axes.set(title=title, xlabel=curves.x, ylabel=curves.y)
        for label, points in curves.lines.items():
            axes.plot(*zip(*points, strict=True), label=label)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return png(canvas)


def comparison(old: Path, new: Path) -> str:
    """Cases that both folders have. A ratio outside the quartiles of both is marked."""
    rows = []
    for name in benchmarks(new):
        before = {group.name: group for group in read(old, name)}
        for group in read(new, name):
            if group.name in before:
                rows += list(changes(name, before[group.name], group))
    return table(["benchmark", "group", "case", "metric", "old", "new", "new / old", ""], rows)


def changes(name: str, old: Group, new: Group) -> Iterator[list[str]]:
    for case in (case for case in new.cases if case in old.cases):
        for metric in new.metrics:
            now, then = new.figure(case, metric), old.figure(case, metric)
            if now is None or then is None or not then.median:
                continue
            is_apart = now.quartiles[0] > then.quartiles[1] or now.quartiles[1] < then.quartiles[0]
            ratio = f"{now.median / then.median:.2f}"
            mark = "differs" if is_apart and len(now.samples) > 2 else ""
            yield [name, new.name, case, metric, str(then), str(now), ratio, mark]


if __name__ == "__main__":
    main()
