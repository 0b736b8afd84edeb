"""The `fedfa` commands against a real broker and a real bucket."""

import json
import secrets
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedfa import keys, manifests
from fedfa.broker import Consumer
from fedfa.local.processes import free_port
from fedfa.messages import StartFederation
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings
from fedfa.submission import read_submission
from fedfa.topology import EVENTS_QUEUE
from tests.services.commands import fedfa
from tests.unit.sample_run import born, write_sample_run


@pytest.fixture
def name() -> str:
    """An id of this test's own: the bucket is the module's."""
    return f"fed-{secrets.token_hex(4)}"


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
    there = read_submission(store, federation)
    assert there.spec.rule.name == "fedfa-param"
    consumer = Consumer(broker_settings, [(EVENTS_QUEUE, 1)], name="test")
    expected = StartFederation(federation=federation, uid=there.uid)
    deliveries = (delivery for delivery in consumer if delivery is not None)
    assert any(delivery.message() == expected for delivery in deliveries)  # until the time-out
    consumer.close()


def test_a_taken_id_is_refused_and_its_spec_stays(
    environment: dict[str, str], store: S3Store, spec: Path, name: str
) -> None:
    # given
    first = fedfa(environment, "submit", spec, "--id", name)
    uid = read_submission(store, name).uid
    # when
    second = fedfa(environment, "submit", spec, "--id", name)
    # then
    assert first.stdout == f"{name}\n"
    assert second.returncode == 2
    assert second.stderr.startswith(f"error: id: {name} is taken")
    assert read_submission(store, name).uid == uid


def test_without_a_broker_submit_still_submits_and_says_what_follows(
    environment: dict[str, str], store: S3Store, spec: Path, name: str
) -> None:
    # given
    environment["FEDFA_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    # when
    done = fedfa(environment, "submit", spec, "--id", name)
    # then
    assert done.returncode == 0
    assert done.stdout == f"{name}\n"
    assert done.stderr.startswith(f"warning: {name}: submitted, but the scheduler was not told")
    assert "find the request in the bucket by itself" in done.stderr
    assert read_submission(store, name).federation == name


def test_wrong_credentials_of_the_store_are_named(environment: dict[str, str]) -> None:
    environment["FEDFA_S3_SECRET_KEY"] = "wrong"
    done = fedfa(environment, "status")
    assert done.returncode == 2
    assert "FEDFA_S3_SECRET_KEY" in done.stderr
    assert done.stderr.count("\n") == 1


def test_stop_asks_once_and_keeps_the_first_reason(
    environment: dict[str, str], store: S3Store, name: str
) -> None:
    # given
    born(store, name)
    # when
    done = [fedfa(environment, "stop", name, "--reason", why) for why in ("enough", "more")]
    # then
    assert [one.returncode for one in done] == [0, 0]
    assert json.loads(store.get(keys.stop(name)))["reason"] == "enough"


def test_status_lists_every_federation_even_beside_a_damaged_one(
    environment: dict[str, str], store: S3Store, name: str
) -> None:
    # given
    done_one, young, broken = (f"{name}-{what}" for what in ("done", "young", "broken"))
    write_sample_run(store, done_one)
    born(store, young)
    store.put(keys.spec(broken), b"{")
    # when
    done = fedfa(environment, "status", "--json")
    table = fedfa(environment, "status")
    # then
    listed = {one["federation"]: one for one in json.loads(done.stdout)}
    assert listed[done_one]["status"] == "finished"
    assert listed[done_one]["merged"] == 30
    assert listed[young]["status"] == "running"
    assert listed[young]["open_jobs"] == 3
    assert listed[broken]["status"] == "unreadable"
    assert all(one in table.stdout for one in listed)


def test_status_of_one_shows_its_numbers(
    environment: dict[str, str], store: S3Store, name: str
) -> None:
    # given
    write_sample_run(store, name)
    # when
    done = fedfa(environment, "status", name, "--json")
    # then
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished"
    assert summary["latest"]["version"] == 26
    assert "accuracy" in fedfa(environment, "status", name).stdout


def test_watch_ends_with_the_federation(
    environment: dict[str, str], store: S3Store, name: str
) -> None:
    # given
    write_sample_run(store, name)
    # when
    lines = fedfa(environment, "watch", name)
    values = fedfa(environment, "watch", name, "--json")
    # then
    assert lines.returncode == values.returncode == 0
    assert lines.stdout.splitlines()[1:] == ["finished: merged 30 updates"]
    assert "merged" not in lines.stdout.splitlines()[0]
    assert json.loads(values.stdout)["status"] == "finished"


def test_verify_ends_well_only_if_every_bit_is_right(
    environment: dict[str, str], store: S3Store, name: str
) -> None:
    # given
    write_sample_run(store, name)
    honest = fedfa(environment, "verify", name, "--json")
    newest = manifests.newest(store, name)
    assert newest is not None
    victim = newest.manifest.state.window[0].key
    body = store.get(victim)
    store.put(victim, body[:-1] + bytes([body[-1] ^ 1]))
    # when
    damaged = fedfa(environment, "verify", name, "--json")
    # then
    assert honest.returncode == 0
    assert json.loads(honest.stdout)["mismatch"] is None
    assert damaged.returncode == 1
    assert victim in json.loads(damaged.stdout)["mismatch"]


def test_report_and_export_write_where_they_are_told(
    environment: dict[str, str], store: S3Store, tmp_path: Path, name: str
) -> None:
    # given
    write_sample_run(store, name)
    # when
    report = fedfa(environment, "report", name, "--out", tmp_path / "report")
    export = fedfa(environment, "export", name, "--version", 10, "--out", tmp_path / "m")
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
