"""Options of the simulation: `pytest tests/simulation --seed 42`, or `--schedules 200000 -n 2`."""

import pytest

CHUNK = 500  # seeds in one test: small enough for workers to share, each with its start and end


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seeds" in metafunc.fixturenames:
        number = int(metafunc.config.getoption("--schedules"))
        chunks = [range(at, min(at + CHUNK, number)) for at in range(0, number, CHUNK)]
        if metafunc.config.getoption("--seed") is not None:
            chunks = []
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int | None:
    found: int | None = request.config.getoption("--seed")
    return found
