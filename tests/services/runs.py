"""Federations of real services: begun, looked at, awaited, and checked when they have ended."""

from collections.abc import Mapping

from fedfa import manifests, submission
from fedfa.broker import Publisher
from fedfa.events import Merged
from fedfa.manifests import Manifest
from fedfa.replay import verify
from fedfa.settings import BrokerSettings
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import EVENTS
from tests.waiting import wait_for

LOOK_SECONDS = 0.1  # between two looks at a bucket that is busy


def begin(
    store: ObjectStore, broker: BrokerSettings, name: str, fields: Mapping[str, object]
) -> None:
    """Submit a federation and tell the scheduler, as `fedfa submit` does."""
    submitted = submission.submit(store, parse(fields), name)
    publisher = Publisher(broker, name="test")
    try:
        publisher.publish(submission.start_message(submitted), EVENTS, timeout_seconds=30)
    finally:
        publisher.close()


def newest(store: ObjectStore, name: str) -> Manifest | None:
    committed = manifests.newest(store, name)
    return committed.manifest if committed else None


def num_merged(store: ObjectStore, name: str) -> int:
    manifest = newest(store, name)
    return manifest.state.num_merged if manifest else 0


def ended(store: ObjectStore, name: str, *, seconds: float = 90.0) -> Manifest:
    """Its last manifest, once it is there."""

    def last() -> Manifest | None:
        manifest = newest(store, name)
        return manifest if manifest and manifest.state.status != "running" else None

    found: Manifest = wait_for(
        last, seconds=seconds, every_seconds=LOOK_SECONDS, of=f"the end of {name}"
    )
    return found


def check(store: ObjectStore, name: str) -> list[Manifest]:
    """What must hold of every federation that has ended; returns its log."""
    log = [entry.manifest for entry in verify(store, name)]
    concurrency = manifests.read_submission(store, name).spec.concurrency
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
