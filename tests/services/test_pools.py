"""Clients whose data lies at one of three sites; one site loses its trainer and gets it back."""

from collections.abc import Iterator

import pytest

from fedfa import manifests, submission
from fedfa.events import Decision, Merged, PoolChanged
from fedfa.local.stack import LocalStack
from fedfa.log import Manifest
from fedfa.replay import verify
from fedfa.s3 import S3Store
from fedfa.spec import parse
from fedfa.store import ObjectStore
from tests.waiting import wait_for

pytestmark = pytest.mark.faults  # minutes on two cores

LEASE_SECONDS = 5.0
SITES = {"a": "trainer-2", "b": "trainer-3", "c": "trainer-4"}  # the first one serves `default`
CONCURRENCY = 6
SPEC = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 3},
    "concurrency": CONCURRENCY,
    "clients": 15,
    "pools": {
        "a": ["client-000[0-4]"],
        "b": ["client-000[5-9]"],
        "c": ["client-001*"],
    },
    "local": {"steps": 2, "batch_size": 16},
    "delay": {"distribution": "exponential", "unit_seconds": 1.0},
    "evaluation": {"every_versions": 50},
    "stop": {"updates": 100_000},
}


@pytest.fixture(scope="module")
def stack(servers: None, store: S3Store) -> Iterator[LocalStack]:
    pools = ("default", *SITES)
    with LocalStack(
        trainers=1, pools=pools, jobs_per_trainer=CONCURRENCY, lease_ttl_seconds=LEASE_SECONDS
    ) as stack:
        yield stack


def newest(store: ObjectStore) -> Manifest:
    committed = manifests.newest(store, "sites")
    assert committed is not None
    return committed.manifest


def decisions(store: ObjectStore, *, after: int = 0) -> Iterator[Decision]:
    """What the manifests after number `after` hold."""
    for n in range(after + 1, newest(store).n + 1):
        yield from manifests.read(store, "sites", n).manifest.decisions


def site_of(client: str) -> str:
    return "abc"[int(client.removeprefix("client-")) // 5]


def open_sites(store: ObjectStore) -> list[str]:
    return [site_of(slot.client) for slot in newest(store).state.slots]


@pytest.mark.timeout(500)
def test_a_dead_pool_leaves_the_others_at_full_concurrency_and_comes_back(
    stack: LocalStack, store: S3Store
) -> None:
    submission.submit(store, parse(SPEC), "sites")
    wait_for(lambda: manifests.newest(store, "sites"), seconds=60)
    wait_for(lambda: newest(store).state.num_merged >= 20, seconds=90)
    assert not newest(store).state.pools

    stack.processes[SITES["b"]].kill()
    wait_for(lambda: "b" in newest(store).state.pools, seconds=10 * LEASE_SECONDS)
    assert newest(store).state.pools["b"].down
    wait_for(lambda: "b" not in open_sites(store), seconds=5 * LEASE_SECONDS)
    without_b = newest(store)
    wait_for(lambda: newest(store).state.num_merged >= without_b.state.num_merged + 30, seconds=60)
    for decision in decisions(store, after=without_b.n):
        assert all(site_of(opened.client) != "b" for opened in decision.opened)
    assert len(open_sites(store)) == CONCURRENCY
    assert not newest(store).state.trouble

    stack.restart(SITES["b"])
    wait_for(lambda: not newest(store).state.pools["b"].down, seconds=150)
    returned = newest(store)

    seen = returned.n

    def merges_b_again() -> bool:
        nonlocal seen
        before, seen = seen, newest(store).n
        events = [decision.event for decision in decisions(store, after=before)]
        return any(isinstance(e, Merged) and site_of(e.update.client) == "b" for e in events)

    wait_for(merges_b_again, seconds=150)
    submission.request_stop(store, "sites", "seen enough")
    wait_for(lambda: newest(store).state.status == "stopped", seconds=30)

    changes = [d.event for d in decisions(store) if isinstance(d.event, PoolChanged)]
    assert [(each.pool, each.change, each.outcome) for each in changes] == [
        ("b", 1, "pool_down"),
        ("b", 2, "pool_up"),
    ]
    for decision in decisions(store):
        if isinstance(decision.event, Merged):
            update = decision.event.update
            assert update.trainer == SITES[site_of(update.client)]
    assert [each.manifest for each in verify(store, "sites")][-1].state.status == "stopped"
