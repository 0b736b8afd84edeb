"""Where a task's data and pre-trained models lie on a trainer, and fetching them from a bucket."""

import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedfa import store
from fedfa.canonical import sha256
from fedfa.errors import InvalidData
from fedfa.keys import ObjectInfo
from fedfa.settings import StoreSettings

MAX_OBJECT_BYTES = 1 << 30
READERS = 16  # objects that are fetched side by side


def place(location: str) -> Path:
    """The local path of what a spec names: below FEDFA_DATA unless absolute, or s3://bucket/prefix.

    Nothing says yet that it exists.
    """
    if location.startswith("s3://"):
        return _fetched(location)
    return Path(os.environ.get("FEDFA_DATA", "data")) / location


def _fetched(location: str) -> Path:
    """A local copy of an object, or of all objects under a prefix; fetched once per machine."""
    parts = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(.*[^/])/*", location)
    if parts is None:
        raise InvalidData(f"task.options: {location}: expected s3://bucket/prefix")
    bucket, prefix = parts.groups()
    source = store.from_settings(StoreSettings(bucket=bucket))
    root = Path(tempfile.gettempdir()) / "fedfa-data" / sha256(location.encode())

    def fetch(found: ObjectInfo) -> None:
        inside = Path(found.key.removeprefix(prefix).lstrip("/") or Path(prefix).name)
        if ".." in inside.parts:
            return  # it would leave the folder
        file = root / inside
        if not file.exists() or file.stat().st_size != found.size_bytes:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as partial:
                partial.write(source.get(found.key, max_bytes=MAX_OBJECT_BYTES))
            os.replace(partial.name, file)  # another trainer may be fetching the same

    # A sibling's name may start alike.
    found = [each for each in source.list(prefix) if f"{each.key}/".startswith(f"{prefix}/")]
    if not found:
        raise InvalidData(
            f"task.options: {location}: no objects there; correct the prefix, or upload the data"
        )
    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(fetch, found))
    return root / Path(prefix).name if prefix in {each.key for each in found} else root
