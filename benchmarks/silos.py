"""One of three sites is gone for ten minutes: the others go on, and no client's job goes astray.

    python benchmarks/silos.py --minutes 10

Each of three pools owns five clients and has a trainer of its own; a fourth trainer serves
`default`, which owns nobody, for the initial model and evaluations. A real scheduler and
aggregator, on a private RabbitMQ and SeaweedFS; every announcement of a started job is heard. One
pool's trainer is killed, and started again when the time is over. It ends with 1 unless

- no trainer ever started a job of a client that its pool does not own,
- once the pool is marked as down and its jobs are replaced, the newest manifest has Mc open jobs
  whenever it is looked at, all of them the other pools',
- after its return the pool's clients get jobs again, and these are merged.
"""

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from scale_in import check

from fedfa import manifests, submission
from fedfa.broker import Consumer
from fedfa.events import Job, Merged
from fedfa.local.stack import LocalStack
from fedfa.log import Manifest
from fedfa.messages import JobStarted
from fedfa.replay import verify
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import BROADCAST_QUEUE

ID = "silos"
SITES = {"north": "trainer-2", "south": "trainer-3", "west": "trainer-4"}
LOST = "south"
CLIENTS_PER_SITE = 5
CONCURRENCY = 6
LEASE_SECONDS = 10.0
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
CLIENTS = [f"client-{number:04d}" for number in range(CLIENTS_PER_SITE * len(SITES))]
SITE_OF = {client: list(SITES)[at // CLIENTS_PER_SITE] for at, client in enumerate(CLIENTS)}
SPEC = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 5},
    "concurrency": CONCURRENCY,
    "clients": len(CLIENTS),
    "partition": {"kind": "iid"},
    "pools": {site: [c for c in CLIENTS if SITE_OF[c] == site] for site in SITES},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "pareto", "shape": 20.0, "unit_seconds": 4.0},
    "evaluation": {"every_versions": 100},
    "stop": {"updates": 1_000_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with (
        LocalStack(
            trainers=1,
            pools=("default", *SITES),
            jobs_per_trainer=CONCURRENCY,
            lease_ttl_seconds=LEASE_SECONDS,
        ) as stack,
        Listener(stack) as listener,
    ):
        store = stack.store()
        submission.submit(store, parse(SPEC), ID)
        await_true(lambda: len(merges(committed(store))) == len(SITES))

        stack.processes[SITES[LOST]].kill()
        killed = time.monotonic()
        await_true(lambda: LOST not in open_sites(store))
        print(f"{LOST} has no open job {time.monotonic() - killed:.0f} s after its end", flush=True)
        before = manifest_of(store)
        looks: Counter[tuple[int, bool]] = Counter()
        while time.monotonic() < killed + 60 * options.minutes:
            sites = open_sites(store)
            looks[len(sites), LOST in sites] += 1
            time.sleep(LOOK_SECONDS)
        after = manifest_of(store)

        stack.restart(SITES[LOST])
        restarted = time.monotonic()
        await_true(lambda: LOST in open_sites(store))
        sampled = time.monotonic() - restarted
        await_true(lambda: merges(committed(store, start=after.n + 1))[LOST])
        merged = time.monotonic() - restarted
        submission.request_stop(store, ID, "seen enough")
        await_true(lambda: manifest_of(store).state.status == "stopped")
        log = [verified.manifest for verified in verify(store, ID)]

    clients = dict(opened(log))
    strays = [
        started
        for started in listener.started
        if SITES[SITE_OF[clients[job_in(started)]]] != started.trainer
    ]
    by_site = merges(log)
    num_merged = after.state.num_merged - before.state.num_merged
    print(f"{LOST} is back: sampled after {sampled:.1f} s, merged after {merged:.1f} s")
    checks = [
        check("jobs astray", not strays, f"{len(strays)} of {len(listener.started)} started"),
        check("merges by site", len(by_site) == len(SITES), f"{dict(by_site)}"),
        check("open jobs", set(looks) == {(CONCURRENCY, False)}, f"(number, {LOST}'s): {looks}"),
        check("the others go on", num_merged > 0, f"{num_merged} merges without {LOST}"),
    ]
    raise SystemExit(0 if all(checks) else 1)


class Listener:
    """Keeps every JobStarted of a training job, as all trainers hear them."""

    def __init__(self, stack: LocalStack) -> None:
        self.started: list[JobStarted] = []
        self._consumer = Consumer(stack.broker_settings(), [(BROADCAST_QUEUE, 100)], name=ID)
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()

    def _listen(self) -> None:
        for delivery in self._consumer:
            if delivery is None:
                continue
            message = delivery.message()
            if isinstance(message, JobStarted) and message.task == "train":
                self.started.append(message)
            delivery.ack()


def manifest_of(store: ObjectStore) -> Manifest:
    newest = manifests.newest(store, ID)
    assert newest is not None
    return newest.manifest


def committed(store: ObjectStore, start: int = manifests.FIRST) -> Iterator[Manifest]:
    return (each.manifest for each in manifests.log(store, ID, start=start))


def open_sites(store: ObjectStore) -> list[str]:
    """The site of each open job."""
    return [SITE_OF[slot.client] for slot in manifest_of(store).state.slots if slot.is_open]


def opened(log: Iterable[Manifest]) -> Iterator[tuple[Job, str]]:
    """Every job that was ever opened, and its client."""
    for manifest in log:
        if manifest.n == manifests.FIRST:
            for number, slot in enumerate(manifest.state.slots):
                yield Job(number, slot.generation), slot.client
        for decision in manifest.decisions:
            for each in decision.opened:
                yield each.job, each.client


def job_in(started: JobStarted) -> Job:
    assert started.slot is not None
    assert started.generation is not None
    return Job(started.slot, started.generation)


def merges(log: Iterable[Manifest]) -> Counter[str]:
    """The number of merged updates by site."""
    events = [decision.event for manifest in log for decision in manifest.decisions]
    return Counter(SITE_OF[each.update.client] for each in events if isinstance(each, Merged))


def await_true(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"silos: nothing happened within {PATIENCE_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
