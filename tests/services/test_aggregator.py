"""The aggregator process on a real broker and a real bucket: every message has one fate."""

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fedfa import manifests
from fedfa.events import Merged, Rejected
from fedfa.local.processes import ServerProcess
from fedfa.messages import AbandonJob, MarkPool, RollCall, StopFederation
from fedfa.replay import verify
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, Template, Tensor
from fedfa.topology import UPDATES
from tests.services.driver import Driver, driving, start_aggregator
from tests.unit.builders import ATTEMPT, TEMPLATE, UID, vector
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def aggregator(
    broker_settings: BrokerSettings,
    store_settings: StoreSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    """One for all tests of this module, each with a federation of its own."""
    process = start_aggregator(broker_settings, store_settings, tmp_path_factory.mktemp("logs"))
    yield process
    process.stop()
    assert "Traceback" not in process.log.read_text()


@pytest.fixture(scope="module")
def session(broker_settings: BrokerSettings, store: S3Store) -> Iterator[Driver]:
    with driving(broker_settings, store) as driver:
        yield driver


@pytest.fixture
def driver(session: Driver, aggregator: ServerProcess) -> Driver:
    assert aggregator.is_running, aggregator.log_tail()
    session.begin(f"test-{secrets.token_hex(4)}")
    return session


def test_every_update_from_the_kth_on_makes_a_version(driver: Driver) -> None:
    driver.bear(rule={"name": "fedfa-delta", "window": 2})
    for seed in range(1, 6):
        driver.send(driver.finish_job(seed, slot=seed % 3))
        driver.hear(lambda ready, n=seed: ready.n == n)  # type: ignore[misc]
    assert driver.state().version == 4
    assert [entry.manifest.state.version for entry in verify(driver.store, driver.name)] == [
        0, 0, 1, 2, 3, 4,
    ]  # fmt: skip


def test_a_duplicate_changes_nothing_and_is_answered_again(driver: Driver) -> None:
    driver.bear()
    message = driver.finish_job(1)
    for _ in range(3):
        driver.send(message)
        ready = driver.hear(lambda ready: (0, 1) in ready.closed)
        assert ready.n == 1
    assert driver.state().num_merged == 1


def test_a_pool_is_marked_once_for_each_change_and_a_change_too_many_is_dead_lettered(
    driver: Driver,
) -> None:
    driver.bear()
    identity: dict[str, Any] = {"federation": driver.name, "uid": UID, "pool": "default"}
    down = MarkPool(**identity, change=1, outcome="pool_down")
    for _ in range(2):
        driver.send(down)
        driver.hear(lambda ready: ready.n == 1)
    assert driver.state().pools["default"].down
    driver.send(MarkPool(**identity, change=3, outcome="pool_up"))
    assert "change 3 of default, the last is 1" in driver.dead_letter()
    driver.send(MarkPool(**identity, change=2, outcome="pool_up"))
    driver.hear(lambda ready: ready.n == 2)
    assert not driver.state().pools["default"].down
    assert [entry.manifest.n for entry in verify(driver.store, driver.name)] == [0, 1, 2]


def with_nan(metadata: dict[str, Any]) -> bytes:
    bad = vector(1)
    bad.floats[0] = np.nan
    return encode(bad, metadata)


def of_another_shape(metadata: dict[str, Any]) -> bytes:
    template = Template((Tensor("weight", "parameter", "F32", (3, 2)), *TEMPLATE.tensors[1:]))
    return encode(FlatModel(template, vector(1).floats, vector(1).integers), metadata)


@pytest.mark.parametrize(
    ("body_of", "reason"),
    [
        (with_nan, "NaN or infinity"),
        (of_another_shape, "shape"),
        (lambda metadata: encode(vector(1), metadata)[:-4], "promises"),
        (lambda metadata: encode(vector(1), metadata) + b"x" * 1_000_000, "size"),
        (lambda metadata: encode(vector(1), metadata | {"num_examples": 99}), "metadata"),
        (lambda metadata: b"hello, world", "header"),
    ],
    ids=["nan", "shape", "truncated", "oversized", "forged", "garbage"],
)
def test_a_bad_update_is_rejected_with_a_reason_and_its_slot_goes_on(
    driver: Driver, body_of: Callable[[dict[str, Any]], bytes], reason: str
) -> None:
    driver.bear()
    driver.send(driver.finish_job(1))
    driver.hear(lambda ready: ready.n == 1)
    before = manifests.newest(driver.store, driver.name)
    assert before is not None

    driver.send(driver.finish_job(2, body_of=body_of))
    driver.hear(lambda ready: ready.n == 2)

    event = driver.last_event()
    assert isinstance(event, Rejected)
    assert reason in event.reason
    after = manifests.newest(driver.store, driver.name)
    assert after is not None
    assert after.manifest.model == before.manifest.model
    assert after.manifest.state.window == before.manifest.state.window
    driver.send(driver.finish_job(3))
    driver.hear(lambda ready: ready.n == 3)
    assert isinstance(driver.last_event(), Merged)


def test_a_missing_file_a_wrong_digest_and_a_wrong_client_are_rejected(driver: Driver) -> None:
    driver.bear()
    message = driver.finish_job(1)
    driver.send(message.model_copy(update={"digest": "00" * 32}))
    driver.hear(lambda ready: ready.n == 1)
    assert "digest" in driver.last_event().reason
    message = driver.finish_job(2)
    driver.store.delete(message.key)
    driver.send(message)
    driver.hear(lambda ready: ready.n == 2)
    assert "missing" in driver.last_event().reason
    driver.send(driver.finish_job(3, client="client-9999"))
    driver.hear(lambda ready: ready.n == 3)
    assert "client" in driver.last_event().reason
    driver.send(
        driver.finish_job(4).model_copy(update={"key": f"{driver.name}/models/0-x.safetensors"})
    )
    driver.hear(lambda ready: ready.n == 4)
    assert "key" in driver.last_event().reason
    traversal = f"{driver.name}/updates/0-5/{ATTEMPT}-/../../models/0-x.safetensors"
    driver.send(driver.finish_job(5).model_copy(update={"key": traversal}))
    driver.hear(lambda ready: ready.n == 5)
    assert "key" in driver.last_event().reason


def test_an_announcement_without_digest_is_merged_with_the_full_one(driver: Driver) -> None:
    driver.bear()
    message = driver.finish_job(1)
    driver.send(message.model_copy(update={"digest": None}))
    driver.hear(lambda ready: ready.n == 1)
    assert driver.last_event().update.digest == message.digest


def test_what_can_never_be_decided_goes_to_the_dead_letters(driver: Driver) -> None:
    driver.bear()
    driver.publisher.publish(b"not a message", UPDATES, timeout_seconds=20)
    assert "not a msgpack message" in driver.dead_letter()
    driver.send(RollCall())
    assert "RollCall" in driver.dead_letter()
    driver.send(driver.finish_job(1).model_copy(update={"federation": "other"}))
    assert "other" in driver.dead_letter()
    driver.send(driver.finish_job(1).model_copy(update={"generation": 5}))
    assert "generation 5" in driver.dead_letter()
    driver.send(driver.finish_job(1))
    driver.hear(lambda ready: ready.n == 1)


def test_abandon_and_stop_are_decided_in_their_turn(driver: Driver) -> None:
    driver.bear()
    driver.send(
        AbandonJob(
            federation=driver.name,
            uid=UID,
            slot=1,
            generation=1,
            attempt=ATTEMPT,
            reason="it crashed",
        )
    )
    driver.hear(lambda ready: (1, 1) in ready.closed)
    assert driver.state().slots[1].generation == 2
    late = driver.finish_job(1)
    driver.send(StopFederation(federation=driver.name, uid=UID, status="stopped", reason="enough"))
    ready = driver.hear(lambda ready: ready.n == 2)
    assert ready.status == "stopped"
    driver.send(late)
    driver.hear(lambda ready: (0, 1) in ready.closed)
    assert driver.state().num_merged == 0
    assert len(list(verify(driver.store, driver.name))) == 3


def test_a_stop_before_the_birth_ends_the_federation(driver: Driver) -> None:
    driver.submit()
    driver.send(StopFederation(federation=driver.name, uid=UID, status="failed", reason="no model"))
    wait_for(lambda: manifests.newest(driver.store, driver.name))
    assert (driver.state().status, driver.state().reason) == ("failed", "no model")


def test_too_few_clients_end_the_federation_before_its_birth_with_the_remedy(
    driver: Driver,
) -> None:
    driver.bear(clients=20, concurrency=12)
    assert driver.state().status == "failed"
    assert "give at most 8" in driver.state().reason


def test_an_update_of_a_deleted_and_resubmitted_federation_is_late(driver: Driver) -> None:
    driver.bear()
    old = driver.finish_job(1).model_copy(update={"uid": "f" * 32})
    driver.send(old)
    driver.send(driver.finish_job(2))
    driver.hear(lambda ready: ready.n == 1)
    assert driver.state().num_merged == 1


def test_a_backlog_shares_commits_and_ends_a_batch_where_evaluation_is_due(
    driver: Driver, aggregator: ServerProcess
) -> None:
    driver.bear(
        concurrency=8, rule={"name": "fedfa-delta", "window": 1}, evaluation={"every_versions": 5}
    )
    backlog = [driver.finish_job(slot, slot=slot, base_version=0) for slot in range(8)]
    os.kill(aggregator.pid, signal.SIGSTOP)
    try:
        for message in backlog:
            driver.send(message)
    finally:
        os.kill(aggregator.pid, signal.SIGCONT)
    wait_for(lambda: driver.state().num_merged == 8)
    versions = [entry.manifest.state.version for entry in verify(driver.store, driver.name)]
    assert 5 in versions
    assert versions[-1] == 8
    assert len(versions) < 1 + 8  # the birth, and a commit for each
