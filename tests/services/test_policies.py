"""The bucket policies of each component, at a real S3 server: enough for its work, and no more."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from pydantic import SecretStr

from fedfa.errors import FedfaError
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.s3 import S3Store

POLICIES = Path(__file__).parents[2] / "k8s" / "s3-policies"
BUCKET = "policies"
SEEDED = [
    "f/spec.json",
    "f/HEAD.json",
    "f/manifests/00000000000000000001.json",
    "f/models/3-0123456789abcdef.safetensors",
    "f/updates/0-1/x-0123456789abcdef.safetensors",
    "f/evals/3.json",
    "_conformance/passed.json",
]

Stores = dict[str, S3Store]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """Component -> the bucket as its key pair sees it."""
    server = SeaweedFS(tmp_path_factory.mktemp("policies"), bucket=BUCKET, has_iam=True)
    server.start()
    iam = boto3.client(
        "iam",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    admin = S3Store(server.settings())
    for key in SEEDED:
        admin.put(key, b"seed")
    made = {"admin": admin}
    for path in POLICIES.glob("*.json"):
        policy = path.read_text().replace("BUCKET", BUCKET)
        iam.create_user(UserName=path.stem)
        iam.put_user_policy(UserName=path.stem, PolicyName="fedfa", PolicyDocument=policy)
        key_pair = iam.create_access_key(UserName=path.stem)["AccessKey"]
        made[path.stem] = S3Store(
            server.settings().model_copy(
                update={
                    "access_key": SecretStr(key_pair["AccessKeyId"]),
                    "secret_key": SecretStr(key_pair["SecretAccessKey"]),
                    "outage_seconds": 5.0,
                }
            )
        )
    for store in made.values():
        await_key(store)
    yield made
    server.stop()


def await_key(store: S3Store) -> None:
    """A new key is known to the server within seconds."""
    deadline = time.monotonic() + 60
    while True:
        try:
            store.get("f/spec.json")
            return
        except (FedfaError, ClientError):
            assert time.monotonic() < deadline
            time.sleep(0.5)


def may(store: S3Store, verb: str, key: str) -> bool:
    try:
        if verb == "get":
            store.get(key)
        elif verb == "put":
            store.put(key, b"new")
        elif verb == "create":
            store.create(key, f"new {time.time_ns()}".encode())
        elif verb == "list":
            list(store.list(key))
        else:
            store.delete(key)
    except FedfaError as error:
        if not re.search("denied|permission|refuse", str(error), re.IGNORECASE):
            raise
        return False
    return True


MODEL, UPDATE = (
    "models/3-0123456789abcdef.safetensors",
    "updates/0-1/x-0123456789abcdef.safetensors",
)
MANIFEST = "manifests/00000000000000000001.json"
NEXT = "manifests/00000000000000000002.json"


@pytest.mark.parametrize(
    ("component", "verb", "key", "allowed"),
    [
        *(("trainer", "get", key, True) for key in ("spec.json", "HEAD.json", MANIFEST, MODEL)),
        *(
            ("trainer", "put", key, True)
            for key in ("updates/1-1/y.safetensors", "models/0-a.safetensors")
        ),
        ("trainer", "create", "evals/4.json", True),
        ("trainer", "list", "models/", True),
        ("trainer", "get", UPDATE, False),
        *(
            ("trainer", "put", key, False)
            for key in (MODEL, NEXT, "spec.json", "HEAD.json", "stop.json")
        ),
        *(("trainer", "delete", key, False) for key in (UPDATE, MODEL, MANIFEST, "evals/3.json")),
        *(("aggregator", "get", key, True) for key in ("spec.json", MANIFEST, UPDATE, MODEL)),
        ("aggregator", "create", NEXT, True),
        *(("aggregator", "put", key, True) for key in ("models/4-b.safetensors", "HEAD.json")),
        *(("aggregator", "put", key, False) for key in ("spec.json", "stop.json", "updates/1-1/z")),
        ("aggregator", "delete", MANIFEST, False),
        ("aggregator", "delete", "spec.json", False),
        *(("scheduler", "get", key, True) for key in ("spec.json", MANIFEST, UPDATE, MODEL)),
        ("scheduler", "create", "evals/5.json", True),
        *(("scheduler", "put", key, False) for key in (NEXT, MODEL, "updates/1-1/z", "spec.json")),
        ("scheduler", "delete", UPDATE, False),
        ("cli", "create", "stop.json", True),
        ("cli", "put", NEXT, False),
        ("cli", "delete", "spec.json", False),
        ("aggregator", "delete", UPDATE, True),
        ("aggregator", "delete", MODEL, True),
    ],
)
def test_a_component_may_do_its_work_and_nothing_else(
    stores: Stores, component: str, verb: str, key: str, allowed: bool
) -> None:
    if f"f/{key}" in SEEDED:  # another test may have deleted it
        stores["admin"].put(f"f/{key}", b"seed")
    assert may(stores[component], verb, f"f/{key}") is allowed


@pytest.mark.parametrize("component", ["aggregator", "cli"])
def test_who_tries_the_conditional_create_may_clean_up(stores: Stores, component: str) -> None:
    for verb in ("create", "get", "delete"):
        assert may(stores[component], verb, f"_conformance/{component}")
