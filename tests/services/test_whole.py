"""The whole system: five kinds of real processes, a real model, and every one of them killed."""

import re
import time
from collections.abc import Callable, Iterator

import pytest

from fedfa import manifests, submission
from fedfa.events import Merged
from fedfa.local.stack import LocalStack
from fedfa.settings import BrokerSettings
from fedfa.store import ObjectStore
from tests.services.runs import begin, check, ended, num_merged
from tests.waiting import wait_for

LEASE_SECONDS = 4.0
SPEC = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 3},
    "concurrency": 6,
    "clients": 10,
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "local": {"steps": 4, "batch_size": 16, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "exponential", "unit_seconds": 0.3},
    "evaluation": {"every_versions": 10},
    "stop": {"updates": 40},
}
ENDLESS = {"stop": {"updates": 10_000}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("stack")
    with LocalStack(
        folder, trainers=2, jobs_per_trainer=3, lease_ttl_seconds=LEASE_SECONDS
    ) as stack:
        yield stack
    for log in folder.glob("logs/*.log"):
        assert "Traceback" not in log.read_text(), log


@pytest.fixture(scope="module")
def store(stack: LocalStack) -> ObjectStore:
    return stack.store()


@pytest.fixture(scope="module")
def broker(stack: LocalStack) -> BrokerSettings:
    return stack.broker_settings()


@pytest.fixture(scope="module")
def together(store: ObjectStore, broker: BrokerSettings) -> tuple[str, str]:
    """Two federations that began at once, and have ended."""
    begin(store, broker, "first", SPEC)
    param = {"rule": {"name": "fedfa-param", "window": 4}, "seed": 7}
    begin(store, broker, "second", SPEC | param)
    for name in ("first", "second"):
        assert ended(store, name).state.status == "finished"
    return "first", "second"


def merged_at_least(store: ObjectStore, name: str, number: int) -> Callable[[], bool]:
    return lambda: num_merged(store, name) >= number


def test_two_federations_run_at_once_on_the_same_services(
    store: ObjectStore, together: tuple[str, str]
) -> None:
    for name in together:
        assert check(store, name)[-1].state.num_merged == 40
    first, second = (manifests.log(store, name) for name in together)
    spans = [[entry.manifest.at for entry in log] for log in (first, second)]
    assert spans[0][0] < spans[1][-1]
    assert spans[1][0] < spans[0][-1]


RULES_THAT_WAIT = {
    "rounds": {"name": "fedavg"},
    "flushes": {"name": "fedbuff", "window": 3, "refill": "at_flush"},
    "ports": {"name": "port", "window": 3},
}


@pytest.mark.timeout(400)
def test_rules_whose_slots_wait_for_each_other_run_in_the_services(
    store: ObjectStore, broker: BrokerSettings
) -> None:
    for name, rule in RULES_THAT_WAIT.items():
        short = {"rule": rule, "stop": {"versions": 6}, "concurrency": 4}
        begin(store, broker, name, SPEC | short)
    for name, rule in RULES_THAT_WAIT.items():
        together = rule.get("window", 4)  # a round is as wide as Mc
        assert ended(store, name, seconds=300).state.status == "finished"
        log = check(store, name)
        merged = [d for each in log for d in each.decisions if isinstance(d.event, Merged)]
        assert [d.version for d in merged] == [n // together for n in range(1, 6 * together + 1)]
        assert [len(d.opened) for d in merged] == ([0] * (together - 1) + [together]) * 6
        if name == "rounds":
            assert {d.staleness for d in merged} == {0}
        if name == "ports":
            stale = [d.event for d in merged if isinstance(d.event, Merged) and d.staleness]
            assert stale
            assert all(event.cosine is not None and -1 < event.cosine < 1 for event in stale)


def test_the_bucket_holds_what_the_protocol_names_and_nothing_else(
    store: ObjectStore, together: tuple[str, str]
) -> None:
    name, _ = together
    log = check(store, name)
    attempt = r"\d{13}-[0-9a-f]{8}-\d{6}"
    allowed = [
        r"spec\.json",
        r"HEAD\.json",
        r"manifests/\d{20}\.json",
        r"models/\d+-[0-9a-f]{16}\.safetensors",
        rf"updates/[0-5]-\d+/{attempt}-[0-9a-f]{{16}}\.safetensors",
        r"evals/\d+\.json",
    ]
    keys = [info.key.removeprefix(f"{name}/") for info in store.list(f"{name}/")]
    for key in keys:
        assert any(re.fullmatch(pattern, key) for pattern in allowed), key
    final = log[-1].state.final_version
    wait_for(lambda: store.exists(f"{name}/evals/{final}.json"))


def trainers_of(store: ObjectStore, name: str) -> set[str]:
    return {
        decision.event.update.trainer
        for entry in manifests.log(store, name)
        for decision in entry.manifest.decisions
        if isinstance(decision.event, Merged)
    }


def test_a_trainer_added_mid_run_takes_work(
    stack: LocalStack, store: ObjectStore, broker: BrokerSettings
) -> None:
    begin(store, broker, "grows", SPEC | ENDLESS)
    wait_for(merged_at_least(store, "grows", 5))
    newcomer = stack.add_trainer()
    wait_for(lambda: newcomer in trainers_of(store, "grows"), seconds=60)
    submission.request_stop(store, "grows", "the newcomer works")
    ended(store, "grows")
    check(store, "grows")


@pytest.mark.parametrize("victim", ["rabbitmq", "seaweedfs"])
def test_a_server_can_be_killed_mid_run_and_the_run_finishes(
    stack: LocalStack, store: ObjectStore, broker: BrokerSettings, victim: str
) -> None:  # the services: test_kill_points.py
    name = f"survives-{victim}"
    begin(store, broker, name, SPEC | {"stop": {"updates": 60}})
    wait_for(merged_at_least(store, name, 10))
    server = stack.rabbitmq if victim == "rabbitmq" else stack.seaweedfs
    assert server is not None
    server.kill()
    time.sleep(0.5)
    server.start()
    manifest = ended(store, name)
    assert manifest.state.status == "finished"
    check(store, name)


def test_a_stopped_federation_ends_and_its_trainers_are_free_again(
    store: ObjectStore, broker: BrokerSettings
) -> None:
    begin(store, broker, "stopped", SPEC | ENDLESS)
    wait_for(merged_at_least(store, "stopped", 3))
    submission.request_stop(store, "stopped", "seen enough")
    manifest = ended(store, "stopped", seconds=30)
    assert (manifest.state.status, manifest.state.reason) == ("stopped", "seen enough")
    check(store, "stopped")
