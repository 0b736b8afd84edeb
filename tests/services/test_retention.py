"""Bounded retention on a real bucket: few objects stay, none that anybody needs."""

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedfa import keys, manifests, retention
from fedfa.failpoints import VARIABLE
from fedfa.log import Manifest
from fedfa.replay import Verified, verify
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from tests.services.driver import Driver, driving, start_aggregator
from tests.waiting import wait_for

SLOTS = 3
WINDOW = 3
KEEP_LAST = 5
# An update of each open job may lie there beside the newest models and what they are made of.
MOST_MODELS = KEEP_LAST
MOST_UPDATES = KEEP_LAST + WINDOW + SLOTS


@pytest.fixture
def driver(broker_settings: BrokerSettings, store: S3Store) -> Iterator[Driver]:
    with driving(broker_settings, store) as driver:
        driver.begin(f"bounded-{secrets.token_hex(4)}")
        yield driver


def bear(
    driver: Driver,
    *,
    window: int = WINDOW,
    max_batch: int = 1,
    min_age_seconds: float = 0.0,
    **fields: Any,
) -> None:
    driver.bear(
        rule={"name": "fedfa-delta", "window": window},
        limits={"max_batch": max_batch},  # with 1 every version has a model
        evaluation={"every_versions": 1000},
        retention={
            "keep": "bounded",
            "keep_last": KEEP_LAST,
            "min_age_seconds": min_age_seconds,
            **fields,
        },
    )
    # version 0 is due for evaluation: without a result it would stay
    failed = b'{"version": 0, "at": 1.0, "error": "not in this test"}'
    driver.store.put(keys.evaluation(driver.name, 0), failed)


def merge(driver: Driver, updates: int) -> None:
    """Three jobs at a time; now and then a file that nobody announces."""
    goal = driver.state().num_merged + updates
    while (head := newest(driver)).state.num_merged < goal:
        done = head.state.num_merged
        numbers = range(done, min(done + SLOTS, goal))
        finished = [driver.finish_job(number + 1, slot=number % SLOTS) for number in numbers]
        if done % 4 == 0:
            driver.finish_job(10_000 + done, slot=done % SLOTS)
        for message in finished:
            driver.send(message)
        wait_for(lambda n=head.n + 1: driver.store.exists(keys.manifest(driver.name, n)))
        wait_for(lambda n=numbers[-1] + 1: driver.state().num_merged >= n, seconds=60)


def newest(driver: Driver) -> Manifest:
    head = manifests.newest(driver.store, driver.name)
    assert head is not None
    return head.manifest


def counts(driver: Driver) -> tuple[int, int]:
    prefixes = (keys.models(driver.name), keys.updates(driver.name))
    models, updates = (sum(1 for _ in driver.store.list(prefix)) for prefix in prefixes)
    return models, updates


def is_bounded(driver: Driver) -> bool:
    models, updates = counts(driver)
    return models <= MOST_MODELS and updates <= MOST_UPDATES


def promised(driver: Driver) -> int:
    """The oldest version from which on retention promises a replay."""
    head = manifests.newest(driver.store, driver.name)
    assert head is not None
    commits = retention.recent(manifests.backwards(driver.store, head), KEEP_LAST)
    return commits[-1].model.version


def last_verified(driver: Driver) -> Verified:
    *_, last = verify(driver.store, driver.name)
    assert last.manifest.state == driver.state()
    return last


def test_a_long_run_leaves_few_objects_and_verifies_from_one_of_them(
    broker_settings: BrokerSettings, store_settings: StoreSettings, driver: Driver, tmp_path: Path
) -> None:
    # given: 150 updates, and an aggregator that dies in the middle
    process = start_aggregator(broker_settings, store_settings, tmp_path)
    try:
        bear(driver, keep_every=50)
        merge(driver, 75)
        process.kill()
        process = start_aggregator(broker_settings, store_settings, tmp_path)
        merge(driver, 75)
        # when
        milestones = {0, 50, 100}
        wait_for(lambda: counts(driver)[0] <= KEEP_LAST + len(milestones))
        wait_for(lambda: counts(driver)[1] <= MOST_UPDATES)
    finally:
        process.stop()
    # then
    state = driver.state()
    assert state.version == 150 - WINDOW + 1
    left = {keys.version_of(driver.name, info.key) for info in listed_models(driver)}
    assert left == milestones | set(range(state.version - KEEP_LAST + 1, state.version + 1))
    last = last_verified(driver)
    assert last.replayed_from is not None
    assert 0 < last.replayed_from <= promised(driver)
    assert last.manifest.n == 150


def listed_models(driver: Driver) -> list[Any]:
    return list(driver.store.list(keys.models(driver.name)))


def test_what_is_younger_than_the_age_floor_stays(
    broker_settings: BrokerSettings, store_settings: StoreSettings, driver: Driver, tmp_path: Path
) -> None:
    # given: a bounded federation beside one whose files are never old enough
    process = start_aggregator(broker_settings, store_settings, tmp_path)
    try:
        bear(driver, min_age_seconds=3600.0)
        merge(driver, 15)
        patient = driver.name
        before = counts(driver)
        driver.begin(f"eager-{secrets.token_hex(4)}")
        bear(driver)
        merge(driver, 15)
        # when
        wait_for(lambda: is_bounded(driver))
    finally:
        process.stop()
    # then
    driver.begin(patient)
    assert counts(driver) == before
    assert last_verified(driver).replayed_from == 0


def test_an_ended_federation_keeps_its_final_models(
    broker_settings: BrokerSettings, store_settings: StoreSettings, driver: Driver, tmp_path: Path
) -> None:
    # given: it ends by itself, with a late file of an open job
    process = start_aggregator(broker_settings, store_settings, tmp_path)
    try:
        bear_until(driver, updates=12)
        late = driver.finish_job(99, slot=1)
        merge(driver, 12)
        assert driver.state().status == "finished"
        # when
        wait_for(lambda: counts(driver) == (KEEP_LAST, KEEP_LAST + WINDOW - 1))
    finally:
        process.stop()
    # then
    assert not driver.store.exists(late.key)
    assert last_verified(driver).replayed_from == promised(driver)


def bear_until(driver: Driver, *, updates: int) -> None:
    driver.bear(
        rule={"name": "fedfa-delta", "window": WINDOW},
        limits={"max_batch": 1},
        evaluation={"every_versions": 1000},
        stop={"updates": updates},
        retention={"keep": "bounded", "keep_last": KEEP_LAST, "min_age_seconds": 0.0},
    )


def test_a_writer_that_stalled_before_its_commit_wakes_up_and_harms_nothing(
    broker_settings: BrokerSettings,
    store_settings: StoreSettings,
    driver: Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: the first aggregator stops itself between a model and its manifest
    monkeypatch.setenv("FEDFA_AMQP_HEARTBEAT_SECONDS", "5")
    monkeypatch.setenv(VARIABLE, "commit.model_put=stop")
    first = start_aggregator(broker_settings, store_settings, tmp_path, "first")
    monkeypatch.delenv(VARIABLE)
    try:
        bear(driver, window=1, max_batch=2)
        driver.send(driver.finish_job(1))
        wait_for(lambda: is_stopped(first.pid))
        (orphan,) = models_of(driver, 1)
        driver.send(driver.finish_job(2, slot=1))
        # when: a second one commits both at once and goes on, until all of that is old
        second = start_aggregator(broker_settings, store_settings, tmp_path, "second")
        try:
            wait_for(lambda: driver.state().num_merged == 2, seconds=40)
            assert driver.state().version == 2
            assert newest(driver).n == 1
            merge(driver, 30)
            wait_for(lambda: is_bounded(driver) and not driver.store.exists(orphan))
            os.kill(first.pid, signal.SIGCONT)
            merge(driver, 30)
            wait_for(lambda: is_bounded(driver))
        finally:
            second.stop()
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.stop()
    # then
    assert "fenced" in first.log.read_text()
    assert driver.state().version == driver.state().num_merged == 62
    assert not driver.store.exists(orphan)
    last = last_verified(driver)
    assert last.replayed_from is not None
    assert last.replayed_from <= promised(driver)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def models_of(driver: Driver, version: int) -> list[str]:
    return [
        info.key
        for info in listed_models(driver)
        if keys.version_of(driver.name, info.key) == version
    ]
