"""The stores that every contract test runs against."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfa.local.seaweedfs import SeaweedFS
from fedfa.store import DirectoryStore, ObjectStore, from_settings


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return DirectoryStore(tmp_path / "store")
    server: SeaweedFS = request.getfixturevalue("seaweedfs")
    return from_settings(server.settings())


@pytest.fixture
def folder() -> str:
    """A fresh first component for keys: the S3 tests share one bucket."""
    return f"test-{uuid.uuid4().hex}"
