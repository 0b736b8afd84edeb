"""For the tests with real servers. A missing one is a failure."""

from collections.abc import Iterator

import pytest

from fedfa.settings import BrokerSettings, StoreSettings
from tests.servers import variables
from tests.services.faults import World, Worlds, tracebacks, world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/services/" in item.path.as_posix():
            item.add_marker("services")


@pytest.fixture
def environment(store_settings: StoreSettings, broker_settings: BrokerSettings) -> dict[str, str]:
    """The variables that point a process at this module's broker and bucket."""
    return variables(store_settings, broker_settings)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    with Worlds(lambda: world(tmp_path_factory.mktemp("world"))) as worlds:
        yield worlds


@pytest.fixture
def here(worlds: Worlds, request: pytest.FixtureRequest) -> Iterator[World]:
    """A whole stack to break. Each test mends what it broke; after a failure there is a new one."""
    failures = request.session.testsfailed
    here = worlds.current()
    yield here
    surprised = tracebacks(here)
    if surprised or request.session.testsfailed > failures:
        worlds.discard()
    assert not surprised
