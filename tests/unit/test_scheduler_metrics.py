"""What the scheduler shows of a federation, and that it goes with the federation."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from fedfa import keys
from fedfa.events import Stopped
from fedfa.federation import step
from fedfa.log import Evaluation
from fedfa.store import DirectoryStore
from fedfa_scheduler import metrics
from tests.unit.builders import submitted
from tests.unit.scheduling import Loop
from tests.unit.test_fleet import World


def series(*names: str) -> dict[str, float]:
    """name and labels -> number, of all that /metrics shows now."""
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name in names
    }


def of_federations() -> dict[str, float]:
    return series("fedfa_open_slots", "fedfa_version", "fedfa_latest_evaluation")


@pytest.fixture
def world() -> World:
    world = World()
    world.run_normally()
    world.show_manifest(world.value, version=7)
    world.evaluate(Evaluation(5, 0.0, {"accuracy": 0.5, "loss": 1.25}))
    metrics.show(world.fleet)
    return world


def test_a_running_federation_has_its_version_its_slots_and_its_newest_evaluation(
    world: World,
) -> None:
    assert of_federations() == {
        "fedfa_open_slots['fed']": world.submission.spec.concurrency,
        "fedfa_version['fed']": 7,
        "fedfa_latest_evaluation['accuracy', 'fed']": 0.5,
        "fedfa_latest_evaluation['fed', 'loss']": 1.25,
    }


def test_an_ended_federation_is_only_counted(world: World) -> None:
    ended, _ = step(world.value, Stopped("finished", "enough", 7))
    world.show_manifest(ended)
    metrics.show(world.fleet)
    assert of_federations() == {}
    assert series("fedfa_federations")["fedfa_federations['finished']"] == 1


def test_nothing_is_left_of_a_deleted_federation(world: World) -> None:
    world.fleet.gone("fed")
    metrics.show(world.fleet)
    assert of_federations() == {}


def test_a_task_cannot_fill_prometheus(world: World) -> None:
    world.evaluate(Evaluation(6, 0.0, {f"metric-{at:03}": 1.0 for at in range(999)}))
    metrics.show(world.fleet)
    assert len(series("fedfa_latest_evaluation")) == metrics.MOST_METRICS


def test_a_scheduler_that_no_longer_acts_shows_nothing_of_what_it_knew(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create(keys.spec("fed"), submitted("fed").model_dump_json(by_alias=True).encode())
    loop = Loop(store)
    loop.turns(1)
    assert series("fedfa_open_jobs") == {"fedfa_open_jobs['default']": 1}
    assert series("fedfa_federations")["fedfa_federations['unborn']"] == 1
    loop.scheduler.turn(None, epoch=1, is_active=False)
    assert series("fedfa_open_jobs", "fedfa_federations", "fedfa_pool_down") == {}
