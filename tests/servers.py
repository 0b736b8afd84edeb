"""The servers of a session, one RabbitMQ and one S3 server, and how a process gets to them.

FEDFA_TEST_S3 names the store: `weed` (the default), `minio` (a minio binary on the PATH), or the
URL of any S3 server, with FEDFA_TEST_S3_ACCESS_KEY and FEDFA_TEST_S3_SECRET_KEY.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from pydantic import SecretStr

from fedfa.local.processes import ServerProcess, accepts, free_ports
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.settings import BrokerSettings, StoreSettings

STORE = "FEDFA_TEST_S3"
ACCESS_KEY, SECRET_KEY = f"{STORE}_ACCESS_KEY", f"{STORE}_SECRET_KEY"

# add_vhost and set_permissions, in one rabbitmqctl: each takes a second or two.
MAKE_VIRTUAL_HOST = """
    ok = rabbit_vhost:add(<<"%s">>, <<"test">>),
    ok = rabbit_auth_backend_internal:set_permissions(
        <<"guest">>, <<"%s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).
"""


@contextmanager
def s3_server(folder: Path) -> Iterator[StoreSettings]:
    """Where it is. The bucket that is named is not there: own_bucket() names those to be made."""
    choice = os.environ.get(STORE, "weed")
    own = {"bucket": f"test-{secrets.token_hex(4)}"}
    if choice.startswith("http"):
        keys = {"access_key": os.environ[ACCESS_KEY], "secret_key": os.environ[SECRET_KEY]}
        settings = StoreSettings.model_validate({"endpoint": choice, **keys, **own})
        yield settings
        _delete_buckets(settings)
    elif choice == "minio":
        with _minio(folder) as settings:
            yield settings.model_copy(update=own)
    else:
        server = SeaweedFS(folder)
        server.start()
        yield server.settings().model_copy(update=own)
        server.stop()


def own_bucket(s3: StoreSettings) -> StoreSettings:
    """A bucket that nobody else uses; it goes with the session."""
    return s3.model_copy(update={"bucket": f"{s3.bucket}-{secrets.token_hex(4)}"})


def port_of(s3: StoreSettings) -> int:
    """For a proxy before it."""
    port = urlsplit(s3.endpoint or "").port
    assert port, "the tests cut the connection to an S3 server on this machine"
    return port


def virtual_host(rabbit: RabbitMQ) -> BrokerSettings:
    """A new one; it ends with its node."""
    name = f"test-{secrets.token_hex(6)}"
    rabbit.ctl("eval", MAKE_VIRTUAL_HOST % (name, name))
    return BrokerSettings(url=SecretStr(f"{rabbit.url}{name}"))


def variables(*given: StoreSettings | BrokerSettings) -> dict[str, str]:
    """The environment in which a process has these settings."""
    found: dict[str, str] = {}
    for settings in given:
        for name in settings.model_fields_set:
            value = getattr(settings, name)
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            found[f"{settings.model_config['env_prefix']}{name}".upper()] = text
    return found


@contextmanager
def _minio(folder: Path) -> Iterator[StoreSettings]:
    binary = shutil.which("minio")
    assert binary, f"{STORE}=minio needs a minio binary on the PATH"
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


def _delete_buckets(s3: StoreSettings) -> None:
    """Those of this session, which a server that goes on would keep."""
    assert s3.access_key is not None
    assert s3.secret_key is not None
    server = boto3.resource(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=s3.region,
        aws_access_key_id=s3.access_key.get_secret_value(),
        aws_secret_access_key=s3.secret_key.get_secret_value(),
    )
    for bucket in server.buckets.all():
        if bucket.name.startswith(s3.bucket):
            bucket.objects.delete()
            bucket.delete()
