"""`fedfa new`: what it writes works, whatever it is called."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.unit.commands import Fedfa, assert_one_line
from tests.unit.test_packaging import requirements

# Python runs it at its start. Whoever looks for a hidden module is told that there is none.
HIDING = """\
from importlib.machinery import PathFinder

HIDDEN = {hidden}
found = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *where: None if name.partition(".")[0] in HIDDEN else found(name, *where)
)
"""


def foreign(*extras: str) -> set[str]:
    """The modules of this environment that no requirement of fedfa with these extras brings."""
    brought = {"fedfa"}.union(*(requirements("fedfa", extra) for extra in extras))
    known = set(map(canonicalize_name, brought))
    return {
        module
        for module, owners in packages_distributions().items()
        if known.isdisjoint(map(canonicalize_name, owners))
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_task_is_named_throughout(fedfa: Fedfa, here: Path) -> None:
    done = fedfa("new", "demo-task")
    assert done.code == 0, done.stderr
    for line in ("cd demo-task", "fedfa simulate demo_task.yaml", "make test"):
        assert line in done.stdout
    files = {path.name: path.read_text() for path in (here / "demo-task").iterdir()}
    assert set(files) == {
        *("demo_task.py", "demo_task.yaml", "test_demo_task.py"),
        *("Dockerfile", "Makefile", "README.md", "pyproject.toml"),
    }
    assert "class DemoTask:" in files["demo_task.py"]
    assert "name: demo_task:DemoTask" in files["demo_task.yaml"]
    assert 'demo-task = "demo_task:DemoTask"' in files["pyproject.toml"]
    assert "FEDFA_TRAINER_TASK_ALLOW=demo_task" in files["Dockerfile"]
    for body in files.values():
        assert not any(name in body for name in ("my_task", "my-task", "MyTask"))


@pytest.mark.timeout(300)
def test_its_own_tests_pass_and_it_runs_at_once(fedfa: Fedfa, here: Path) -> None:
    # given what its Makefile asks for: no setting, and no package that fedfa[trainer,cli] lacks
    assert fedfa("new", "demo_task").code == 0
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FEDFA_")
    }
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text(HIDING.format(hidden=foreign("trainer", "cli")))
    environment["PYTHONPATH"] = f"{here / 'site'}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", "import torch, typer, pytest"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "No module named 'pytest'" in done.stderr
    # when, with a whole federation among them
    done = subprocess.run(
        ["make", "test", f"PYTHON={sys.executable}"],
        cwd=here / "demo_task",
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    # then
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 4 tests" in done.stderr


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("../up", ["'../up': no name for a task", "as in my-task"]),
        ("Demo", ["'Demo': no name"]),
        ("class", ["Python has a module class already"]),
        ("torch", ["Python has a module torch already"]),
        ("taken", ["taken: is there already"]),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    fedfa: Fedfa, here: Path, name: str, parts: list[str]
) -> None:
    (here / "taken").mkdir()
    assert_one_line(fedfa("new", name), *parts)
    assert list(here.iterdir()) == [here / "taken"]
