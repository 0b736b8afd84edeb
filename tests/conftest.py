"""For all tests: servers, an empty environment, no deadlines, and who runs what in parallel."""

import os
from collections.abc import Iterator
from typing import Any

# Several workers share the cores: a second thread of torch in each would mostly wait, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from fedfa.local.rabbitmq import ROOT_VARIABLE, RabbitMQ
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from tests.servers import own_bucket, s3_server, variables, virtual_host

# What takes long comes first, so that no worker is left alone with it at the end.
ORDER = ("tests/services/", "tests/", "tests/simulation/")
SCHEDULES = 20_000
TEST_VARIABLES = ("FEDFA_TEST_", ROOT_VARIABLE)

# The broker, the bucket and the settings of whoever runs the tests are not theirs.
for name in [name for name in os.environ if name.startswith("FEDFA_")]:
    if not name.startswith(TEST_VARIABLES):
        del os.environ[name]

settings.register_profile("fedfa", deadline=None)
settings.load_profile("fedfa")


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSettings]:
    with s3_server(tmp_path_factory.mktemp("s3")) as s3:
        yield s3


@pytest.fixture(scope="module")
def store_settings(s3: StoreSettings) -> StoreSettings:
    """The S3 server, with a bucket of this module's own, which nobody has made yet."""
    return own_bucket(s3)


@pytest.fixture(scope="module")
def store(store_settings: StoreSettings) -> S3Store:
    """That bucket, made."""
    bucket = S3Store(store_settings)
    bucket.ensure_bucket()
    return bucket


@pytest.fixture(scope="module")
def broker_settings(rabbit: RabbitMQ) -> BrokerSettings:
    """The broker, with a virtual host of this module's own: no queue is shared with others."""
    return virtual_host(rabbit)


@pytest.fixture(scope="module")
def servers(store_settings: StoreSettings, broker_settings: BrokerSettings) -> Iterator[None]:
    """This process, and what it starts, uses this module's broker and bucket."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(store_settings, broker_settings).items():
            patch.setenv(name, value)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of tests/simulation; here, because pytest asks no deeper folder that it was not given."""
    parser.addoption("--seed", type=int, help="run this one schedule and print its effects")
    parser.addoption("--schedules", type=int, default=SCHEDULES, help="how many seeds to run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, int]:
    folder = max((each for each in ORDER if item.nodeid.startswith(each)), key=len)
    return item.get_closest_marker("faults") is None, ORDER.index(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` a file's tests share a worker and its servers; schedules need none."""
    from xdist.scheduler import LoadFileScheduling

    class Spread(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            is_alone = nodeid.startswith("tests/simulation/")
            return nodeid if is_alone else str(super()._split_scope(nodeid))

    return Spread(config, log) if config.getvalue("dist") == "loadfile" else None
