"""One real RabbitMQ and one real S3 server for the whole session. A missing one is a failure.

FEDFA_TEST_S3 names the store: `weed` (the default), `minio` (a minio binary on the PATH), or the
URL of any S3 server, with FEDFA_S3_ACCESS_KEY and FEDFA_S3_SECRET_KEY in the environment. Every
module gets a bucket and a virtual host of its own.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from fedfa.local.processes import ServerProcess, accepts, free_ports
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from tests.services.driver import virtual_host
from tests.services.faults import World, Worlds, tracebacks, world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/services/" in item.path.as_posix():
            item.add_marker("services")


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreSettings]:
    """Where the S3 server of this session is; the bucket named here may not exist yet."""
    choice = os.environ.get("FEDFA_TEST_S3", "weed")
    folder = tmp_path_factory.mktemp("s3")
    if choice.startswith("http"):
        yield StoreSettings(endpoint=choice)
    elif choice == "minio":
        yield from _minio(folder)
    else:
        server = SeaweedFS(folder)
        server.start()
        yield server.settings()
        server.stop()


@pytest.fixture(scope="module")
def store_settings(s3: StoreSettings) -> StoreSettings:
    return s3.model_copy(update={"bucket": f"test-{secrets.token_hex(6)}"})


@pytest.fixture(scope="module")
def store(store_settings: StoreSettings) -> S3Store:
    bucket = S3Store(store_settings)
    bucket.ensure_bucket()
    return bucket


@pytest.fixture(scope="module")
def broker_settings(rabbit: RabbitMQ) -> BrokerSettings:
    """The broker, with a virtual host of this module's own: no queue is shared with others."""
    return virtual_host(rabbit)


@pytest.fixture
def environment(store_settings: StoreSettings, broker_settings: BrokerSettings) -> dict[str, str]:
    """The variables that point a process at this module's broker and bucket."""
    return variables(store_settings, broker_settings)


def variables(store_settings: StoreSettings, broker_settings: BrokerSettings) -> dict[str, str]:
    assert store_settings.endpoint is not None
    assert store_settings.access_key is not None
    assert store_settings.secret_key is not None
    return {
        "FEDFA_AMQP_URL": broker_settings.url.get_secret_value(),
        "FEDFA_S3_ENDPOINT": store_settings.endpoint,
        "FEDFA_S3_BUCKET": store_settings.bucket,
        "FEDFA_S3_ACCESS_KEY": store_settings.access_key.get_secret_value(),
        "FEDFA_S3_SECRET_KEY": store_settings.secret_key.get_secret_value(),
    }


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


def _minio(folder: Path) -> Iterator[StoreSettings]:
    binary = shutil.which("minio")
    assert binary, "FEDFA_TEST_S3=minio needs a minio binary on the PATH"
    port, console = free_ports(2)
    secret = secrets.token_hex(16)
    server = ServerProcess(
        "MinIO",
        [
            binary,
            "server",
            str(folder / "data"),
            f"--address=127.0.0.1:{port}",
            f"--console-address=127.0.0.1:{console}",
        ],
        log=folder / "minio.log",
        env={**os.environ, "MINIO_ROOT_USER": "fedfa", "MINIO_ROOT_PASSWORD": secret},
    )
    server.wait_until(lambda: accepts(port), timeout_seconds=30)
    yield StoreSettings(
        endpoint=f"http://127.0.0.1:{port}",
        access_key=SecretStr("fedfa"),
        secret_key=SecretStr(secret),
    )
    server.stop()
