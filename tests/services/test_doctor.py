"""`fedfa doctor` on a real broker and a real bucket: it finds what is wrong, and only that."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from fedfa.broker import trial
from fedfa.doctor import judge_clock, judge_version, proxy
from fedfa.local.processes import free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings
from fedfa.topology import DEAD, Queue
from tests.services.commands import fedfa


@pytest.fixture
def vhost(rabbit: RabbitMQ) -> Iterator[str]:
    """A virtual host of the test's own."""
    name = f"test-{secrets.token_hex(6)}"
    rabbit.ctl("add_vhost", name)
    rabbit.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    yield name
    rabbit.ctl("delete_vhost", name)


def findings(environment: dict[str, str], *, exit_code: int) -> dict[str, tuple[str, str]]:
    """what -> (status, text)"""
    done = fedfa(environment, "doctor", "--json")
    assert done.returncode == exit_code, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return {each["what"]: (each["status"], each["text"]) for each in found}


def test_all_is_well_on_a_good_broker_and_bucket(
    environment: dict[str, str], store: S3Store
) -> None:
    found = findings(environment, exit_code=0)
    assert {status for status, _ in found.values()} == {"ok"}
    assert found.keys() >= {
        "broker version", "broker permissions", "delivery limit", "fedfa.updates", "fedfa.events",
        "fedfa.dead", "fedfa.jobs.default", "bucket", "clock", "conditional create", "proxy",
    }  # fmt: skip
    assert not [each.key for each in store.list("_conformance/") if "doctor" in each.key]
    lines = fedfa(environment, "doctor").stdout.splitlines()
    assert len(lines) == len(found)
    assert all(line.startswith("ok ") for line in lines)


def test_nobody_there_is_told_for_broker_and_bucket(environment: dict[str, str]) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    environment["FEDFA_S3_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    # when
    found = findings(environment, exit_code=1)
    # then
    assert found["broker"][0] == found["bucket"][0] == "bad"
    assert "set FEDFA_AMQP_URL to where it runs" in found["broker"][1]


def test_a_missing_bucket_is_named(environment: dict[str, str], store: S3Store) -> None:
    environment["FEDFA_S3_BUCKET"] = f"none-{secrets.token_hex(6)}"
    status, text = findings(environment, exit_code=1)["bucket"]
    assert status == "bad"
    assert "no such bucket" in text


def test_a_queue_of_another_kind_is_named_with_the_remedy(
    environment: dict[str, str], store: S3Store, rabbit: RabbitMQ, vhost: str
) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"{rabbit.url}{vhost}"
    settings = BrokerSettings(url=SecretStr(environment["FEDFA_AMQP_URL"]))
    trial.declare(settings, Queue("fedfa.dead", DEAD, {"x-queue-type": "classic"}))
    # when
    found = findings(environment, exit_code=1)
    # then
    assert [what for what, (status, _) in found.items() if status != "ok"] == ["fedfa.dead"]
    assert "rabbitmqctl delete_queue fedfa.dead" in found["fedfa.dead"][1]


def test_missing_permissions_are_named(
    environment: dict[str, str], store: S3Store, rabbit: RabbitMQ, vhost: str
) -> None:
    # given a user who may read and write, and declare nothing
    user = f"user-{secrets.token_hex(4)}"
    rabbit.ctl("add_user", user, "secret")
    rabbit.ctl("set_permissions", "-p", vhost, user, "^$", ".*", ".*")
    environment["FEDFA_AMQP_URL"] = rabbit.url.replace("guest:guest", f"{user}:secret") + vhost
    # when
    found = findings(environment, exit_code=1)
    # then
    assert found["broker permissions"][0] == "bad"
    assert "configure, write and read" in found["broker permissions"][1]


def test_a_policy_that_drops_messages_is_noticed(
    environment: dict[str, str], store: S3Store, rabbit: RabbitMQ, vhost: str
) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"{rabbit.url}{vhost}"
    rabbit.ctl("set_policy", "-p", vhost, "low", ".*", '{"delivery-limit": 5}')
    # when
    found = findings(environment, exit_code=0)
    # then
    assert found["delivery limit"][0] == "warn"
    assert "after 6 deliveries" in found["delivery limit"][1]


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.9.29", "bad"),
        ("3.10.0", "ok"),
        ("3.13.7", "ok"),
        ("4.2.1", "ok"),
        ("4.3.0", "bad"),
        ("4.3.5+rc.1", "bad"),
        ("4.3.6", "warn"),
        ("5.0", "warn"),
        ("unknown", "warn"),
    ],
)
def test_versions_are_judged(version: str, status: str) -> None:
    assert judge_version(version).status == status


@pytest.mark.parametrize(("offset", "status"), [(-0.9, "ok"), (4.0, "ok"), (61.0, "warn")])
def test_a_clock_that_differs_is_told(offset: float, status: str) -> None:
    assert judge_clock(offset).status == status
    assert judge_clock(61.0).text.startswith("this machine is 61 s behind the store")


@pytest.mark.parametrize(
    ("endpoint", "no_proxy", "status"),
    [
        ("http://127.0.0.1:9000", "", "warn"),
        ("http://10.1.2.3:9000", "", "warn"),
        ("http://minio:9000", "other", "warn"),
        ("http://minio:9000", "minio", "ok"),
        ("http://s3.example.com", "", "ok"),
        ("https://10.1.2.3", "", "ok"),
        (None, "", "ok"),
    ],
)
def test_a_proxy_before_a_store_next_door_is_noticed(
    endpoint: str | None, no_proxy: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy(endpoint).status == status
