"""The whole system: five kinds of real processes, a real model, and every one of them killed."""

import re
import time
from collections.abc import Callable, Iterator

import pytest

from fedfa import manifests, submission
from fedfa.broker import Publisher
from fedfa.events import Merged
from fedfa.local.stack import LocalStack
from fedfa.manifests import Manifest
from fedfa.replay import verify
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import EVENTS
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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("stack")
    with LocalStack(
        folder, trainers=2, jobs_per_trainer=3, lease_ttl_seconds=LEASE_SECONDS
    ) as stack:
        yield stack
    for log in folder.glob("logs/*.log"):
        assert "Traceback" not in log.read_text(), log


def begin(stack: LocalStack, name: str, **changes: object) -> ObjectStore:
    """Submit a federation and tell the scheduler, as `fedfa submit` does."""
    store = stack.store()
    submitted = submission.submit(store, parse(SPEC | changes), name)
    publisher = Publisher(stack.broker_settings(), name="test")
    try:
        hint = submission.start_message(submitted)
        publisher.publish(hint, EVENTS, timeout_seconds=20)
    finally:
        publisher.close()
    return store


def newest(store: ObjectStore, name: str) -> Manifest | None:
    committed = manifests.newest(store, name)
    return committed.manifest if committed else None


def merged_at_least(store: ObjectStore, name: str, number: int) -> Callable[[], bool]:
    def reached() -> bool:
        manifest = newest(store, name)
        return manifest is not None and manifest.state.num_merged >= number

    return reached


def ended(store: ObjectStore, name: str, *, seconds: float = 90.0) -> Manifest:
    def over() -> Manifest | None:
        manifest = newest(store, name)
        return manifest if manifest and manifest.state.status != "running" else None

    result: Manifest = wait_for(over, seconds=seconds)
    return result


def most_at_once(log: list[Manifest]) -> int:
    """The most jobs that were in training or on their way at one moment."""
    events: list[tuple[float, int]] = []
    for manifest in log:
        for decision in manifest.decisions:
            if isinstance(decision.event, Merged):
                update = decision.event.update
                busy = update.train_seconds + update.delay_seconds
                events += [(update.started_at, 1), (update.started_at + busy, -1)]
    running = most = 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    return most


def check(store: ObjectStore, name: str) -> list[Manifest]:
    """What must hold of every finished run; returns its log."""
    log = [entry.manifest for entry in verify(store, name)]
    concurrency = manifests.submitted(store, name).spec.concurrency
    for manifest in log:
        wanted = concurrency if manifest.state.status == "running" else 0
        assert len(manifest.state.slots) == wanted
    jobs = [
        decision.event.update.job
        for manifest in log
        for decision in manifest.decisions
        if isinstance(decision.event, Merged)
    ]
    assert len(jobs) == len(set(jobs)) == log[-1].state.num_merged
    assert most_at_once(log) <= concurrency
    return log


def test_two_federations_run_at_once_on_the_same_services(stack: LocalStack) -> None:
    names = ["first", "second"]
    store = begin(stack, names[0])
    begin(stack, names[1], rule={"name": "fedfa-param", "window": 4}, seed=7)
    for name in names:
        manifest = ended(store, name)
        assert manifest.state.status == "finished"
        log = check(store, name)
        assert log[-1].state.num_merged == 40
    first, second = (manifests.log(store, name) for name in names)
    spans = [[entry.manifest.at for entry in log] for log in (first, second)]
    assert spans[0][0] < spans[1][-1]
    assert spans[1][0] < spans[0][-1]


RULES_THAT_WAIT = {
    "rounds": {"name": "fedavg"},
    "flushes": {"name": "fedbuff", "window": 3, "refill": "at_flush"},
    "ports": {"name": "port", "window": 3},
}


@pytest.mark.timeout(400)
def test_rules_whose_slots_wait_for_each_other_run_in_the_services(stack: LocalStack) -> None:
    for name, rule in RULES_THAT_WAIT.items():
        store = begin(stack, name, rule=rule, stop={"versions": 6}, concurrency=4)
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


def test_the_bucket_holds_what_the_protocol_names_and_nothing_else(stack: LocalStack) -> None:
    store = stack.store()
    log = check(store, "first")
    attempt = r"\d{13}-[0-9a-f]{8}-\d{6}"
    allowed = [
        r"spec\.json",
        r"HEAD\.json",
        r"manifests/\d{20}\.json",
        r"models/\d+-[0-9a-f]{16}\.safetensors",
        rf"updates/[0-5]-\d+/{attempt}-[0-9a-f]{{16}}\.safetensors",
        r"evals/\d+\.json",
    ]
    keys = [info.key.removeprefix("first/") for info in store.list("first/")]
    for key in keys:
        assert any(re.fullmatch(pattern, key) for pattern in allowed), key
    final = log[-1].state.final_version
    wait_for(lambda: store.exists(f"first/evals/{final}.json"))


def trainers_of(store: ObjectStore, name: str) -> set[str]:
    return {
        decision.event.update.trainer
        for entry in manifests.log(store, name)
        for decision in entry.manifest.decisions
        if isinstance(decision.event, Merged)
    }


def test_a_trainer_added_mid_run_takes_work(stack: LocalStack) -> None:
    store = begin(stack, "grows", stop={"updates": 10_000})
    wait_for(merged_at_least(store, "grows", 5))
    newcomer = stack.add_trainer()
    wait_for(lambda: newcomer in trainers_of(store, "grows"), seconds=60)
    submission.request_stop(store, "grows", "the newcomer works")
    ended(store, "grows")
    check(store, "grows")


@pytest.mark.parametrize("victim", ["rabbitmq", "seaweedfs"])
def test_a_server_can_be_killed_mid_run_and_the_run_finishes(
    stack: LocalStack, victim: str
) -> None:  # the services: test_kill_points.py
    name = f"survives-{victim}"
    store = begin(stack, name, stop={"updates": 60})
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
    stack: LocalStack,
) -> None:
    store = begin(stack, "stopped", stop={"updates": 10_000})
    wait_for(merged_at_least(store, "stopped", 3))
    submission.request_stop(store, "stopped", "seen enough")
    manifest = ended(store, "stopped", seconds=30)
    assert (manifest.state.status, manifest.state.reason) == ("stopped", "seen enough")
    check(store, "stopped")
