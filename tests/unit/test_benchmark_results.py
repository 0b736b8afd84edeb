"""The benchmarks' own arithmetic: what a table, a file and a comparison say."""

import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import aims
import report
import results


def group(**cases: list[float]) -> results.Group:
    return results.Group(
        "K = 5",
        {name: {"ms": samples} for name, samples in cases.items()},
        {"ms": ["naive"]},
        results.Curves("seconds", "accuracy", {"ours": [(0.0, 0.1), (1.0, 0.9)]}),
        command="merge.py",
        machine={"cores": 2},
    )


def test_a_ratio_is_the_median_over_that_of_the_baseline() -> None:
    rows = group(naive=[8.0, 10.0, 90.0], ours=[2.0, 2.5, 3.0]).table().splitlines()
    assert [cell.strip() for cell in rows[3].strip("|").split("|")] == ["ours", "2.5 (2-3)", "0.25"]


def test_a_file_gives_back_what_was_written(tmp_path: Path, capsys: Any) -> None:
    results.write(tmp_path, "merge", group(naive=[1.0, 2.0]))
    (found,) = results.read(tmp_path, "merge")
    assert found.table() == group(naive=[1.0, 2.0]).table()
    assert found.curves is not None
    assert found.curves.lines.keys() == {"ours"}


def test_a_group_replaces_the_one_of_its_name_and_no_other(tmp_path: Path, capsys: Any) -> None:
    for name, sample in (("K = 5", 1.0), ("K = 10", 2.0), ("K = 5", 3.0)):
        results.write(tmp_path, "merge", results.Group(name, {"ours": {"ms": [sample]}}, {}))
    found = {each.name: each.cases["ours"]["ms"] for each in results.read(tmp_path, "merge")}
    assert found == {"K = 5": [3.0], "K = 10": [2.0]}


@pytest.mark.parametrize(("now", "mark"), [([9.0, 9.5, 10.0], ""), ([20.0, 21.0, 22.0], "differs")])
def test_a_comparison_marks_what_lies_outside_both_spreads(
    now: list[float], mark: str, tmp_path: Path, capsys: Any
) -> None:
    results.write(tmp_path / "old", "merge", group(naive=[9.0, 9.4, 10.0]))
    results.write(tmp_path / "new", "merge", group(naive=now))
    *_, row = report.comparison(tmp_path / "old", tmp_path / "new").splitlines()
    assert row.split("|")[-2].strip() == mark


def test_an_aim_is_met_or_missed_by_the_median_over_the_least_of_those_it_names() -> None:
    # given
    measured = group(naive=[8.0, 10.0, 90.0], other=[4.0, 5.0, 6.0], ours=[2.0, 2.5, 3.0])
    aim = aims.Aim("K = *", "ours", "ms", "at most", 0.5, ("naive", "other", "absent"), "the best")
    # then
    assert aim.said_of(measured) == "ours, ms, at most 0.5 x the best: 0.5, met"
    assert replace(aim, limit=0.4).said_of(measured) == (
        "ours, ms, at most 0.4 x the best: 0.5, **missed**"
    )
    absolute = replace(aim, bound="at least", of=())
    assert replace(absolute, limit=2.5).said_of(measured) == "ours, ms, at least 2.5: 2.5, met"
    assert replace(absolute, limit=3).said_of(measured) == "ours, ms, at least 3: 2.5, **missed**"
    for foreign in ({"group": "Mc = *"}, {"case": "absent"}, {"of": ("absent",)}):
        assert replace(aim, **foreign).said_of(measured) is None


def test_every_aim_stands_beside_a_figure_or_waits_for_a_group_that_is_said_to_be_missing() -> None:
    for benchmark, its_aims in aims.AIMS.items():
        measured = list(results.read(results.FOLDER, benchmark))
        for aim in its_aims:
            is_rare = any(fnmatchcase(name, aim.group) for name in aims.RARE.get(benchmark, ()))
            assert is_rare or any(aim.said_of(each) for each in measured), aim


def test_the_page_shows_the_results_that_are_there() -> None:
    assert set(results.benchmarks(results.FOLDER)) <= set(report.ORDER)
    assert report.PAGE.read_text() == report.page(results.FOLDER)
