"""Options of the simulation: `pytest tests/simulation --seed 42`, or `--schedules 200000`."""

import pytest

SCHEDULES = 2_000


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="run this one schedule and print its effects")
    parser.addoption("--schedules", type=int, default=SCHEDULES, help="how many seeds to run")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int | None:
    """None where pytest was started elsewhere and does not know the option."""
    found: int | None = request.config.getoption("--seed", default=None)
    return found


@pytest.fixture
def num_schedules(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--schedules", default=SCHEDULES))
