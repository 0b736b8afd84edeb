"""The `fedfa` commands against a real broker and a real bucket."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedfa import keys
from fedfa.broker import Consumer
from fedfa.local.processes import free_port
from fedfa.manifests import submitted
from fedfa.messages import StartFederation
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.topology import EVENTS_QUEUE
from tests.unit.sample_run import born, write_sample_run


@pytest.fixture
def environment(store_settings: StoreSettings, broker_settings: BrokerSettings) -> dict[str, str]:
    assert store_settings.endpoint is not None
    assert store_settings.access_key is not None
    assert store_settings.secret_key is not None
    return {
        "FEDFA_AMQP_URL": broker_settings.url.get_secret_value(),
        "FEDFA_S3_ENDPOINT": store_settings.endpoint,
        "FEDFA_S3_BUCKET": store_settings.bucket,
        "FEDFA_S3_ACCESS_KEY": store_settings.access_key.get_secret_value(),
        "FEDFA_S3_SECRET_KEY": store_settings.secret_key.get_secret_value(),
    }


def fedfa(environment: dict[str, str], *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedfa.cli", *map(str, arguments)],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text("clients: 4\nconcurrency: 2\n")
    return path


def test_submit_creates_the_spec_and_tells_the_scheduler(
    environment: dict[str, str], store: S3Store, broker_settings: BrokerSettings, spec: Path
) -> None:
    # when
    done = fedfa(environment, "submit", spec, "--set", "rule.name=fedfa-param")
    # then
    assert done.returncode == 0, done.stderr
    federation = done.stdout.strip()
    assert federation.startswith("tiny-")
    there = submitted(store, federation)
    assert there.spec.rule.name == "fedfa-param"
    consumer = Consumer(broker_settings, [(EVENTS_QUEUE, 1)], name="test")
    message = next(delivery.message() for delivery in consumer if delivery is not None)
    consumer.close()
    assert message == StartFederation(federation=federation, uid=there.uid)


def test_a_taken_id_is_refused_and_its_spec_stays(
    environment: dict[str, str], store: S3Store, spec: Path
) -> None:
    # given
    first = fedfa(environment, "submit", spec, "--id", "mine")
    uid = submitted(store, "mine").uid
    # when
    second = fedfa(environment, "submit", spec, "--id", "mine")
    # then
    assert first.stdout == "mine\n"
    assert second.returncode == 2
    assert second.stderr.startswith("error: id: mine is taken")
    assert submitted(store, "mine").uid == uid


def test_without_a_broker_submit_still_submits_and_says_what_follows(
    environment: dict[str, str], store: S3Store, spec: Path
) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    # when
    done = fedfa(environment, "submit", spec, "--id", "mine")
    # then
    assert done.returncode == 0
    assert done.stdout == "mine\n"
    assert done.stderr.startswith("warning: mine: submitted, but the scheduler was not told")
    assert "find the request in the bucket by itself" in done.stderr
    assert submitted(store, "mine").federation == "mine"


def test_wrong_credentials_of_the_store_are_named(environment: dict[str, str]) -> None:
    environment["FEDFA_S3_SECRET_KEY"] = "wrong"
    done = fedfa(environment, "status")
    assert done.returncode == 2
    assert "FEDFA_S3_SECRET_KEY" in done.stderr
    assert done.stderr.count("\n") == 1


def test_stop_asks_once_and_keeps_the_first_reason(
    environment: dict[str, str], store: S3Store
) -> None:
    # given
    born(store, "fed")
    # when
    done = [fedfa(environment, "stop", "fed", "--reason", why) for why in ("enough", "more")]
    # then
    assert [one.returncode for one in done] == [0, 0]
    assert json.loads(store.get(keys.stop("fed")))["reason"] == "enough"


def test_status_lists_every_federation_even_beside_a_damaged_one(
    environment: dict[str, str], store: S3Store
) -> None:
    # given
    write_sample_run(store, "done")
    born(store, "young")
    store.put(keys.spec("broken"), b"{")
    # when
    done = fedfa(environment, "status", "--json")
    table = fedfa(environment, "status")
    # then
    listed = {one["federation"]: one for one in json.loads(done.stdout)}
    assert {name: one["status"] for name, one in listed.items()} == {
        "done": "finished",
        "young": "running",
        "broken": "unreadable",
    }
    assert listed["done"]["merged"] == 30
    assert listed["young"]["open_jobs"] == 3
    assert all(name in table.stdout for name in listed)


def test_status_of_one_shows_its_numbers(environment: dict[str, str], store: S3Store) -> None:
    # given
    write_sample_run(store)
    # when
    done = fedfa(environment, "status", "fed", "--json")
    # then
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished"
    assert summary["latest"]["version"] == 26
    assert "accuracy" in fedfa(environment, "status", "fed").stdout


def test_watch_ends_with_the_federation(environment: dict[str, str], store: S3Store) -> None:
    # given
    write_sample_run(store)
    # when
    lines = fedfa(environment, "watch", "fed")
    values = fedfa(environment, "watch", "fed", "--json")
    # then
    assert lines.returncode == values.returncode == 0
    assert lines.stdout.count("\n") == 1
    assert "merged 30 updates" in lines.stdout
    assert json.loads(values.stdout)["status"] == "finished"


def test_verify_ends_well_only_if_every_bit_is_right(
    environment: dict[str, str], store: S3Store
) -> None:
    # given
    write_sample_run(store)
    honest = fedfa(environment, "verify", "fed", "--json")
    model = next(iter(store.list("fed/updates/1-2/"))).key
    store.put(model, store.get(model)[:-1] + b"\x00")
    # when
    damaged = fedfa(environment, "verify", "fed", "--json")
    # then
    assert honest.returncode == 0
    assert json.loads(honest.stdout)["mismatch"] is None
    assert damaged.returncode == 1
    assert model in json.loads(damaged.stdout)["mismatch"]


def test_report_and_export_write_where_they_are_told(
    environment: dict[str, str], store: S3Store, tmp_path: Path
) -> None:
    # given
    write_sample_run(store)
    # when
    report = fedfa(environment, "report", "fed", "--out", tmp_path / "report")
    export = fedfa(environment, "export", "fed", "--version", 10, "--out", tmp_path / "m")
    # then
    assert report.returncode == export.returncode == 0
    assert str(tmp_path / "report" / "report.html") in report.stdout
    assert "finished" in (tmp_path / "report" / "report.html").read_text()
    assert set(load_file(tmp_path / "m")) == {"weight", "running_mean", "count"}


@pytest.mark.parametrize("command", ["status", "watch", "stop", "report", "export", "verify"])
def test_an_unknown_federation_is_one_clear_line(
    environment: dict[str, str], store: S3Store, command: str
) -> None:
    done = fedfa(environment, command, "nobody")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nobody: no such federation in bucket ")
    assert done.stderr.count("\n") == 1
