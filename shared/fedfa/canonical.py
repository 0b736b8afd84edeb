"""The same text for the same value, and the digest that names the bytes of an object."""

import hashlib
import json
from typing import Any

from fedfa.memory import Bytes


def canonical_json(value: Any) -> str:
    """The same text for the same value, always; NaN and infinities are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(*parts: Bytes) -> str:
    """The digest of an object, given whole or in parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
