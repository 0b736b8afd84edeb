"""`fedfa doctor` on a real broker and a real bucket: it finds what is wrong, and only that."""

import json
import secrets
from collections.abc import Iterable

import pytest
from pydantic import SecretStr

from fedfa.broker import trial
from fedfa.doctor import Finding, examine_broker, examine_bucket
from fedfa.local.processes import free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.topology import DEAD, Queue
from tests.servers import virtual_host
from tests.services.commands import fedfa


@pytest.fixture
def elsewhere(rabbit: RabbitMQ) -> BrokerSettings:
    """A virtual host of the test's own."""
    return virtual_host(rabbit)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_all_is_well_on_a_good_broker_and_bucket(
    environment: dict[str, str], store: S3Store
) -> None:
    # when
    done = fedfa(environment, "doctor", "--json")
    # then
    found = {each["what"]: each["status"] for each in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(found.values()) == {"ok"}, done.stdout
    assert found.keys() >= {
        "broker version", "broker permissions", "delivery limit", "fedfa.updates", "fedfa.events",
        "fedfa.dead", "fedfa.jobs.default", "bucket", "clock", "conditional create", "proxy",
    }  # fmt: skip
    assert not [each.key for each in store.list("_conformance/") if "doctor" in each.key]


def test_nobody_there_is_told_for_broker_and_bucket_and_is_an_error(
    environment: dict[str, str],
) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    environment["FEDFA_S3_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    environment["FEDFA_S3_OUTAGE_SECONDS"] = "0.5"
    # when
    done = fedfa(environment, "doctor")
    # then
    assert done.returncode == 1
    bad = [line for line in done.stdout.splitlines() if line.startswith("bad")]
    assert [line.split()[1] for line in bad] == ["broker:", "bucket:"]
    assert "set FEDFA_AMQP_URL to where it runs" in bad[0]


def test_a_missing_bucket_is_named(store_settings: StoreSettings) -> None:
    missing = store_settings.model_copy(update={"bucket": f"none-{secrets.token_hex(6)}"})
    (finding,) = examine_bucket(missing)
    assert finding.status == "bad"
    assert "no such bucket" in finding.text


def test_a_queue_of_another_kind_is_named_with_the_remedy(elsewhere: BrokerSettings) -> None:
    # given
    trial.declare(elsewhere, Queue("fedfa.dead", DEAD, {"x-queue-type": "classic"}))
    # when
    found = list(examine_broker(elsewhere, ["default"]))
    # then
    (bad,) = [finding for finding in found if finding.status != "ok"]
    assert (bad.what, bad.status) == ("fedfa.dead", "bad")
    assert "rabbitmqctl delete_queue fedfa.dead" in bad.text


def test_missing_permissions_are_named(rabbit: RabbitMQ, elsewhere: BrokerSettings) -> None:
    # given a user who may read and write, and declare nothing
    user = f"user-{secrets.token_hex(4)}"
    url = elsewhere.url.get_secret_value()
    rabbit.ctl("add_user", user, "secret")
    rabbit.ctl("set_permissions", "-p", url.rpartition("/")[2], user, "^$", ".*", ".*")
    theirs = BrokerSettings(url=SecretStr(url.replace("guest:guest", f"{user}:secret")))
    # when
    found = by_name(examine_broker(theirs, ["default"]))
    # then
    assert found["broker permissions"].status == "bad"
    assert "configure, write and read" in found["broker permissions"].text


def test_a_user_with_the_documented_permissions_is_enough(
    rabbit: RabbitMQ, elsewhere: BrokerSettings
) -> None:
    # given
    user, ours = f"user-{secrets.token_hex(4)}", r"^(fedfa\.|amq\.gen-).*"
    url = elsewhere.url.get_secret_value()
    rabbit.ctl("add_user", user, "secret")
    rabbit.ctl("set_permissions", "-p", url.rpartition("/")[2], user, ours, ours, ours)
    theirs = BrokerSettings(url=SecretStr(url.replace("guest:guest", f"{user}:secret")))
    # then
    assert {finding.status for finding in examine_broker(theirs, ["default"])} == {"ok"}


def test_a_policy_that_drops_messages_is_noticed(
    rabbit: RabbitMQ, elsewhere: BrokerSettings
) -> None:
    # given
    vhost = elsewhere.url.get_secret_value().rpartition("/")[2]
    rabbit.ctl("set_policy", "-p", vhost, "low", ".*", '{"delivery-limit": 5}')
    # when
    found = by_name(examine_broker(elsewhere, ["default"]))
    # then
    assert found["delivery limit"].status == "warn"
    assert "after 6 deliveries" in found["delivery limit"].text
