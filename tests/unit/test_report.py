"""The report of a federation: figures that say what the rows say, a page that needs nothing."""

import re
from pathlib import Path

import pytest

from fedfa.history import HistoryReader
from fedfa.report import write
from fedfa.report.figures import in_flight, utilisation
from fedfa.rows import Row
from fedfa.store import DirectoryStore
from tests.unit.sample_run import born, write_sample_run

PNG = b"\x89PNG\r\n\x1a\n"


def row(trainer: str, started: float, decided: float, *, train_seconds: float = 1.0) -> Row:
    return Row(
        n=1,
        at=decided,
        outcome="merged",
        version=1,
        trainer=trainer,
        started_at=started,
        train_seconds=train_seconds,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = DirectoryStore(tmp_path_factory.mktemp("bucket"))
    write_sample_run(store, stop={"updates": 30, "target": {"metric": "accuracy", "value": 2.0}})
    return write(HistoryReader(store, "fed").refresh(), tmp_path_factory.mktemp("report")).parent


@pytest.fixture
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_the_folder_holds_the_page_and_its_figures(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    figures = {"quality.png", "staleness.png", "trainers.png", "outcomes.png"}
    assert names == {"report.html", *figures}
    assert all((folder / name).read_bytes().startswith(PNG) for name in figures)


def test_the_page_needs_no_other_file_and_no_network(page: str) -> None:
    sources = re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", page)
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import|<script", page)


def test_the_page_shows_numbers_and_spec(page: str) -> None:
    assert "merged 30 updates" in page
    assert "target 2" in page
    assert "name: fedfa-delta" in page


def test_reasons_from_trainers_are_escaped(page: str) -> None:
    assert "failed 3 times: &lt;b&gt;out of memory&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_federation_without_any_update_has_a_page(tmp_path: Path) -> None:
    # given
    store = DirectoryStore(tmp_path / "bucket")
    born(store, "fed")
    # when
    path = write(HistoryReader(store, "fed").refresh(), tmp_path / "report")
    # then
    assert "running" in path.read_text()
    assert list(path.parent.glob("*.png")) == []


def test_a_job_is_in_flight_from_its_start_to_its_decision() -> None:
    # given: two overlapping jobs, and one that starts as the first is decided
    rows = [row("a", 101, 104), row("b", 102, 106), row("a", 104, 105)]
    # when
    times, counts = in_flight(rows, 100)
    # then
    assert times == [1, 2, 4, 5, 6]
    assert counts == [1, 2, 2, 1, 0]


def test_a_trainers_utilisation_counts_from_its_first_job() -> None:
    # given: b came late and computed half of its time
    rows = [row("a", 0, 10, train_seconds=10), row("b", 50, 60, train_seconds=25)]
    # when, then
    assert utilisation(rows, 100) == {"a": 0.1, "b": 0.5}
