"""The example of docs/adding-a-task.md: it loads by module:Class, trains and evaluates."""

from pathlib import Path

import pytest
import torch

from fedfa import modules, spec_files, training
from fedfa.errors import UnknownTask
from fedfa.events import Job, Merged
from fedfa.federation import Client, found
from fedfa.replica import Replica, merge
from fedfa.spec import FederationSpec
from fedfa.tasks import base
from fedfa.tasks.base import Task
from fedfa.tensors import FlatModel
from tests.unit.builders import update

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CPU = torch.device("cpu")


@pytest.fixture
def chosen() -> FederationSpec:
    return spec_files.load(EXAMPLES / "my_task.yaml")


@pytest.fixture
def task(chosen: FederationSpec, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return base.load(chosen, ["my_task"])


def train(task: Task, chosen: FederationSpec, start: FlatModel, client: str) -> FlatModel:
    result = training.local_update(
        task,
        task.model(),
        start,
        client=client,
        spec=chosen,
        seed=7,
        device=CPU,
        should_stop=lambda: False,
    )
    assert result.num_examples == task.clients()[client]
    return result.update


def initial(task: Task) -> FlatModel:
    module = task.model()
    return modules.read(module, modules.template_of(module))


@pytest.mark.parametrize("name", ["my_task.py", "my_task.yaml"])
def test_the_page_shows_the_example_as_it_is(name: str) -> None:
    page = (ROOT / "docs" / "adding-a-task.md").read_text("utf-8")
    assert (EXAMPLES / name).read_text("utf-8") in page


def test_a_trainer_that_does_not_allow_the_module_refuses_it(chosen: FederationSpec) -> None:
    with pytest.raises(UnknownTask, match="module my_task is not allowed on this trainer"):
        base.load(chosen, [])


def test_the_initial_model_and_the_clients_follow_from_the_spec(
    task: Task, chosen: FederationSpec
) -> None:
    again = base.load(chosen, ["my_task"])
    assert (initial(task).floats == initial(again).floats).all()
    assert dict(task.clients()) == dict(again.clients())
    assert sum(task.clients().values()) == 353
    assert len(task.clients()) >= chosen.concurrency


def test_one_local_update_is_reproducible_and_lowers_the_loss(
    task: Task, chosen: FederationSpec
) -> None:
    # Given
    start = initial(task)
    # When
    delta = train(task, chosen, start, "clinic-0")
    # Then
    assert (delta.floats == train(task, chosen, start, "clinic-0").floats).all()
    after = FlatModel(start.template, start.floats + delta.floats, start.integers)
    before_metrics = training.evaluate(task, task.model(), start, CPU)
    after_metrics = training.evaluate(task, task.model(), after, CPU)
    assert after_metrics["loss"] < before_metrics["loss"]
    assert after_metrics["r2"] > before_metrics["r2"]


def test_the_example_reaches_its_own_target_by_merging_one_update_after_the_other(
    task: Task, chosen: FederationSpec
) -> None:
    # Given
    clients = tuple(Client(name, size) for name, size in task.clients().items())
    replica = Replica(found(chosen, clients), initial(task), ())
    target = chosen.stop.target
    assert target is not None
    # When
    for turn in range(chosen.stop.updates or 0):
        number = turn % chosen.concurrency
        slot = replica.federation.state.slots[number]
        job = Job(number, slot.generation)
        delta = train(task, chosen, replica.model, slot.client)
        replica, decisions = merge(replica, update(replica.federation, job), delta)
        assert isinstance(decisions[0].event, Merged)
        if training.evaluate(task, task.model(), replica.model, CPU)["r2"] >= target.value:
            break
    # Then
    metrics = training.evaluate(task, task.model(), replica.model, CPU)
    assert metrics["r2"] >= target.value, metrics
