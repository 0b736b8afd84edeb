"""Failpoints: every name is somewhere in the code, and an armed one strikes when it should."""

import ast
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fedfa import failpoints
from fedfa.errors import Misconfigured

ROOT = Path(__file__).parents[2]
SOURCES = [*ROOT.glob("shared/fedfa/**/*.py"), *ROOT.glob("services/*/*/*.py")]


def reached_in(path: Path) -> list[str]:
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "reach"
    ]


def run(armed: str, program: str) -> subprocess.CompletedProcess[str]:
    """What a process does that reaches failpoints, with one of them armed."""
    return subprocess.run(
        [sys.executable, "-c", f"from fedfa.failpoints import reach\n{program}"],
        env={failpoints.VARIABLE: armed},
        capture_output=True,
        text=True,
    )


def test_every_name_is_one_place_in_the_code_and_every_place_has_a_name() -> None:
    places = Counter(name for path in SOURCES for name in reached_in(path))
    assert places == Counter(failpoints.NAMES)


def test_nothing_strikes_unless_it_is_armed() -> None:
    assert run("", "reach('trainer.put'); print('alive')").stdout == "alive\n"
    assert run("trainer.trained", "reach('trainer.put'); print('alive')").stdout == "alive\n"


def test_an_armed_place_kills_the_process_at_its_nth_time() -> None:
    done = run("trainer.put@3", "for n in range(9): print(n, flush=True); reach('trainer.put')")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n2\n")


def test_an_exit_has_its_code() -> None:
    assert run("trainer.put=exit:7", "reach('trainer.put')").returncode == 7


def test_a_sleep_delays_every_time() -> None:
    began = time.monotonic()
    done = run("trainer.put=sleep:0.3", "reach('trainer.put'); reach('trainer.put'); print('on')")
    assert done.stdout == "on\n"
    assert time.monotonic() - began > 0.6


@pytest.mark.parametrize(
    "text", ["nowhere", "trainer.put@first", "trainer.put=explode", "trainer.put=sleep:long"]
)
def test_a_mistake_is_one_clear_error(text: str) -> None:
    with pytest.raises(Misconfigured, match=f"^FEDFA_FAILPOINT: '{text}' is no failpoint; write"):
        failpoints.parse(text)
