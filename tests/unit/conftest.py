"""For the unit tests."""

import os
import sys

import pytest

from fedfa.cli import main
from tests.unit.commands import Ended, Fedfa


@pytest.fixture
def fedfa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fedfa:
    """Run the command in this process, with nothing of FEDFA_* but what is given."""

    def run(*arguments: object, **environment: str) -> Ended:
        for name in [name for name in os.environ if name.startswith("FEDFA_")]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["fedfa", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ended(int(ended.value.code or 0), printed.out, printed.err)

    return run
