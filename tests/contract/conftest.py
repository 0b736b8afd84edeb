"""The stores that every contract test runs against."""

import uuid
from pathlib import Path

import pytest

from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings
from fedfa.store import DirectoryStore, ObjectStore
from tests.servers import own_bucket


@pytest.fixture(scope="session")
def bucket(s3: StoreSettings) -> S3Store:
    """One for all tests: to make a client takes long."""
    bucket = S3Store(own_bucket(s3))
    bucket.ensure_bucket()
    return bucket


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.services)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return DirectoryStore(tmp_path / "store")
    bucket: S3Store = request.getfixturevalue("bucket")
    return bucket


@pytest.fixture
def folder() -> str:
    """A fresh first component for keys: the S3 tests share one bucket."""
    return f"test-{uuid.uuid4().hex}"
