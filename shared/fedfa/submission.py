"""How a federation enters the bucket, and how it is asked to end. Both objects are create-once."""

import re
import secrets
import time

from fedfa import keys, manifests
from fedfa.canonical import canonical_json
from fedfa.errors import AlreadyExists, InvalidSpec, NotFound
from fedfa.messages import ID_PATTERN, StartFederation
from fedfa.rule_choices import FedAvg
from fedfa.spec import FederationSpec, Submission
from fedfa.store import ObjectStore

ID = re.compile(ID_PATTERN)


def new_id(stem: str) -> str:
    """A readable id that nobody has yet: the stem and four random digits."""
    return f"{slug(stem)}-{secrets.token_hex(2)}"


def slug(stem: str) -> str:
    """A well-formed id as much like the stem as possible."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:50] or "federation"


def check_id(federation: str) -> str:
    """The id itself, or InvalidSpec when it is malformed."""
    if not ID.fullmatch(federation):
        raise InvalidSpec(
            f"id: {federation!r:.100} is not one; use up to 63 of a-z, 0-9 and -, no - in front"
        )
    return federation


def submit(store: ObjectStore, spec: FederationSpec, federation: str) -> Submission:
    """Create spec.json. Raises InvalidSpec when the id is malformed or taken."""
    key = keys.spec(check_id(federation))
    # A read refuses a missing bucket; some servers would make one at the first write.
    if store.exists(key):
        raise _taken(store, federation)
    submission = Submission(
        federation=federation, uid=secrets.token_hex(16), created_at=time.time(), spec=spec
    )
    try:
        body = submission.model_dump_json(by_alias=True).encode()
        store.create(key, body)
    except AlreadyExists as error:
        raise _taken(store, federation) from error
    return submission


def _taken(store: ObjectStore, federation: str) -> InvalidSpec:
    return InvalidSpec(f"id: {federation} is taken in {store.name}; choose another, or give none")


def caution(spec: FederationSpec) -> str | None:
    """What is allowed, and may not be meant."""
    if not isinstance(spec.rule, FedAvg) or spec.clients != spec.concurrency:
        return None
    return (
        f"concurrency: all {spec.clients} clients are in each round of fedavg: it waits for the "
        "slowest, and nobody takes the place of one that always fails, until "
        f"{spec.limits.max_consecutive_rejections} refused jobs in a row end the federation; give "
        f"less than {spec.clients}, or more clients"
    )


def start_message(submission: Submission) -> StartFederation:
    """The hint that lets the scheduler see a new spec, or a stop, at once."""
    return StartFederation(federation=submission.federation, uid=submission.uid)


def request_stop(store: ObjectStore, federation: str, reason: str) -> Submission:
    """Create stop.json; asking again changes nothing. Raises NotFound for an unknown federation."""
    submission = read_submission(store, federation)
    try:
        request = {"at": time.time(), "reason": reason}
        store.create(keys.stop(federation), canonical_json(request).encode())
    except AlreadyExists:
        pass
    return submission


def read_submission(store: ObjectStore, federation: str) -> Submission:
    """The federation as submitted, or NotFound with where to look."""
    try:
        return manifests.read_submission(store, check_id(federation))
    except NotFound as error:
        raise NotFound(
            f"{federation}: no such federation in {store.name}; `fedfa status` lists them"
        ) from error
