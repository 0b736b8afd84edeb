"""Aggregators that die, and two at once: one history, nothing lost, nothing merged twice."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfa import manifests
from fedfa.replay import verify
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from tests.services.driver import Driver, driving, start_aggregator
from tests.waiting import wait_for


@pytest.fixture
def driver(broker_settings: BrokerSettings, store: S3Store) -> Iterator[Driver]:
    with driving(broker_settings, store) as driver:
        driver.begin(f"crash-{secrets.token_hex(4)}")
        yield driver


def test_killed_at_any_moment_it_goes_on_where_the_log_ends(
    broker_settings: BrokerSettings, store_settings: StoreSettings, driver: Driver, tmp_path: Path
) -> None:
    process = start_aggregator(broker_settings, store_settings, tmp_path)
    try:
        driver.bear(rule={"name": "fedfa-delta", "window": 3})
        for seed in range(1, 7):
            driver.send(driver.finish_job(seed, slot=seed % 3))
            if seed % 2:
                time.sleep(0.05 * seed)  # a different moment each time
                process.kill()
                process = start_aggregator(broker_settings, store_settings, tmp_path)
            wait_for(lambda n=seed: driver.state().num_merged == n)
    finally:
        process.stop()
    assert driver.state().version == 4
    assert sum(len(entry.manifest.decisions) for entry in verify(driver.store, driver.name)) == 6


def test_two_aggregators_write_one_history(
    broker_settings: BrokerSettings, store_settings: StoreSettings, driver: Driver, tmp_path: Path
) -> None:
    both = [
        start_aggregator(broker_settings, store_settings, tmp_path, name=f"aggregator-{at}")
        for at in range(2)
    ]
    try:
        driver.bear()
        for seed in range(1, 10):
            driver.send(driver.finish_job(seed, slot=seed % 3))
            wait_for(lambda n=seed: driver.state().num_merged == n)
            if seed == 5:
                newest = manifests.newest(driver.store, driver.name)
                assert newest is not None
                [active] = [each for each in both if f"-{each.pid}-" in newest.manifest.writer]
                active.kill()
    finally:
        for process in both:
            process.stop()
    assert len(list(verify(driver.store, driver.name))) == 10
