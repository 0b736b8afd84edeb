"""How the scheduler's process starts, before it needs a server."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"FEDFA_LEASE_TTL_SECONDS": "-1"}, "FEDFA_LEASE_TTL_SECONDS: Input should be greater"),
        (
            {"FEDFA_POOL_DOWN_AFTER_SECONDS": "10"},
            "FEDFA_POOL_DOWN_AFTER_SECONDS: Value error, a busy trainer is heard once in a while; "
            "give at least 60",
        ),
        ({"FEDFA_S3_ACCESS_KEY": "only-one"}, "FEDFA_S3_SECRET_KEY"),
    ],
)
def test_wrong_settings_end_it_at_once_with_one_clear_line(
    variables: dict[str, str], line: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedfa_scheduler"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 64
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_never_imports_torch() -> None:
    code = "import sys, fedfa_scheduler.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "False\n"
