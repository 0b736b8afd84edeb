"""The trainer's journal: whole lines, from many threads, in a file that others share."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedfa_trainer.journal import Journal
from tests.unit.builders import update_ready

UPDATE = update_ready(slot=3, generation=7)


def test_each_line_names_the_job_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journals = [Journal(path), Journal(path)]
    with ThreadPoolExecutor(8) as pool:
        for journal in journals:
            list(pool.map(lambda _, to=journal: to.putting(UPDATE), range(200)))
            journal.confirmed(UPDATE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines].count("putting") == 400
    assert lines[-1].pop("at") > 0
    assert lines[-1] == {
        "event": "confirmed",
        "trainer": "trainer-1",
        "uid": UPDATE.uid,
        "slot": 3,
        "generation": 7,
        "attempt": UPDATE.attempt,
        "key": UPDATE.key,
    }


def test_without_a_path_there_is_no_journal(tmp_path: Path) -> None:
    Journal().putting(UPDATE)
    assert list(tmp_path.iterdir()) == []
