"""What the author of a task reads when their code fails."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedfa.errors import InvalidData, UnknownTask
from fedfa.spec import parse
from fedfa.tasks.base import load
from fedfa.tracebacks import MAX_CHARACTERS, explain

TASK = """
from torch import nn

def loss(model, batch):
    scores = model(batch)  # torch fails, many calls below
    return scores.mean()

def lookup(names):
    try:
        return names["missing"]
    except KeyError as error:
        raise RuntimeError("no such column") from error

def deep(depth):
    return deep(depth - 1) if depth else 1 / 0
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "my_failing_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(tmp_path))
    return __import__("my_failing_task")


def text_of(function: object, *arguments: object) -> str:
    assert callable(function)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        function(*arguments)
    return explain(caught.value)


def test_an_error_inside_a_library_shows_the_authors_line_and_the_last_one(
    task: ModuleType,
) -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 1)))
    text = text_of(task.loss, model, torch.zeros(2, 5))
    assert text.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 3x1)")
    assert 'my_failing_task.py", line 5, in loss\n    scores = model(batch)' in text
    assert "in _call_impl" not in text
    assert "more lines of libraries" in text
    last = text.rpartition("  File ")[2]
    assert "in forward" in last
    assert "return F.linear" in last


def test_the_cause_is_told_too(task: ModuleType) -> None:
    text = text_of(task.lookup, {})
    assert text.startswith("RuntimeError: no such column (because of KeyError: 'missing')\n  File ")


def test_the_innermost_lines_are_kept_of_many(task: ModuleType) -> None:
    text = text_of(task.deep, 400)
    assert "return deep(depth - 1) if depth else 1 / 0" in text
    assert "Previous line repeated 5 more times" in text  # eight in all
    assert len(text) <= MAX_CHARACTERS


def test_what_we_say_ourselves_has_no_lines_of_code() -> None:
    assert explain(InvalidData("client-1: no such client")) == "client-1: no such client"


def loaded(name: str) -> None:
    load(parse({"task": {"name": name}, "clients": 1, "concurrency": 1}), ["*"])


def test_an_import_that_fails_inside_a_task_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importing_task.py").write_text("import os\nimport not_there_at_all\n")
    (tmp_path / "misspelt_task.py").write_text("def loss(:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    missing, misspelt = (text_of(loaded, f"{name}_task:Task") for name in ("importing", "misspelt"))

    assert missing.startswith("ModuleNotFoundError: No module named 'not_there_at_all'\n  File ")
    assert 'importing_task.py", line 2, in <module>\n    import not_there_at_all' in missing
    assert "importlib" not in missing
    assert misspelt.startswith("SyntaxError: ")
    assert 'misspelt_task.py", line 1\n    def loss(:' in misspelt


@pytest.mark.parametrize("name", ["not_there_at_all:Task", "not_there.at_all:Task"])
def test_a_task_that_is_not_there_is_handed_back(name: str) -> None:
    with pytest.raises(UnknownTask, match="does not load"):
        loaded(name)
