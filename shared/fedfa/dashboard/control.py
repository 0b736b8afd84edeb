"""Start and stop from the page: for whoever knows the token, and for nobody else.

The token travels in the Authorization header alone. A browser adds that to no request by itself,
so another site's page cannot make its visitor's browser start anything.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from fedfa import spec_files, submission
from fedfa.complaints import describe
from fedfa.errors import InvalidInput
from fedfa.messages import MAX_TEXT_CHARACTERS
from fedfa.spec import Submission
from fedfa.store import ObjectStore

STOPPED = "stopped from the dashboard"

Asked = TypeVar("Asked", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Control:
    """token: at least 16 characters. announce: tells the scheduler what was changed."""

    token: SecretStr
    announce: Callable[[Submission], None]

    def allows(self, authorization: str | None) -> bool:
        """Whether an Authorization header names the token; takes as long for any wrong one."""
        scheme, _, given = (authorization or "").partition(" ")
        known = self.token.get_secret_value().encode()
        is_right = hmac.compare_digest(given.strip().encode(), known)
        return is_right and scheme.lower() == "bearer"


class _Start(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    spec: str = Field(description="YAML, as in a spec's file")
    id: str = Field(default="", description="empty: the task's name and a few digits")


class _Stop(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(default=STOPPED, max_length=MAX_TEXT_CHARACTERS)


def start(store: ObjectStore, control: Control, body: bytes) -> dict[str, Any]:
    """Submit a spec. Raises InvalidInput with what to change."""
    asked = _parsed(_Start, body)
    spec = spec_files.loads(asked.spec)
    name = asked.id or submission.new_id(spec.task.name.rpartition(":")[2])
    submitted = submission.submit(store, spec, name)
    control.announce(submitted)
    return {"id": submitted.federation}


def stop(store: ObjectStore, control: Control, federation: str, body: bytes) -> dict[str, Any]:
    """Ask a federation to end. Raises NotFound, and InvalidInput with what to change."""
    asked = _parsed(_Stop, body or b"{}")
    control.announce(submission.request_stop(store, federation, asked.reason or STOPPED))
    return {"id": federation}


def _parsed(kind: type[Asked], body: bytes) -> Asked:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidInput(f"request: {describe(error)}") from error
