"""Ten thousand merges of a small model with bounded retention: does anything grow?

    python benchmarks/soak.py --merges 10000 --kill-every 10      (make soak)

A real aggregator on a private RabbitMQ and a private SeaweedFS; this process plays scheduler and
trainers. First without kills: the aggregator's resident memory at the end must be within 5 % of
that at 1,000 merges. With --kill-every a second federation follows, whose aggregator is killed
(SIGKILL) after a random time around that many seconds, again and again: no process of it may
ever need more than 10 % above that memory. In both, the objects that are old enough to be
collected stay within what the retention settings allow. Then the log is verified.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from fleet import Fleet

from fedfa import keys, manifests, retention, submission
from fedfa.broker import Consumer, Publisher
from fedfa.local.processes import ServerProcess
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.log import Manifest
from fedfa.merge import window_size
from fedfa.replay import verify
from fedfa.s3 import S3Store
from fedfa.sections import KeepBounded
from fedfa.settings import BrokerSettings
from fedfa.spec import FederationSpec, Submitted, parse
from fedfa.topology import BROADCAST_QUEUE

SLOTS = 16
ROW_EVERY = 500
BASELINE_AT = 1000
LAG_SECONDS = 15.0  # a sweep, and a restart, may come so much later than the age floor allows
STALLED_SECONDS = 60.0


def spec(merges: int) -> FederationSpec:
    return parse(
        {
            "task": {"name": "soak"},
            "rule": {"name": "fedfa-delta", "window": 5},
            "concurrency": SLOTS,
            "clients": 4 * SLOTS,
            "evaluation": {"every_versions": 50},
            "stop": {"updates": merges},
            "retention": {
                "keep": "bounded",
                "keep_last": 20,
                "keep_every": 1000,
                "min_age_seconds": 5,
            },
        }
    )


@dataclass(frozen=True, slots=True)
class Row:
    """What there is after so many merges. The old objects are those that a sweep has seen to."""

    merges: int
    seconds: float
    resident_mib: float
    models: int
    updates: int
    manifests: int
    old_models: int
    old_updates: int

    def __str__(self) -> str:
        return (
            f"{self.merges:8d} {self.seconds:8.0f} {self.resident_mib:10.1f} {self.models:8d} "
            f"{self.updates:8d} {self.manifests:10d} {self.old_models:8d} {self.old_updates:8d}"
        )


HEADING = (
    f"{'merges':>8} {'seconds':>8} {'resident':>10} {'models':>8} {'updates':>8} "
    f"{'manifests':>10} {'of them old':>17}"
)


class Aggregator:
    """The process under test, and the most memory that each of its lives needed."""

    def __init__(self, broker: BrokerSettings, s3: SeaweedFS, folder: Path) -> None:
        self._environment = {
            **os.environ,
            "FEDFA_AMQP_URL": broker.url.get_secret_value(),
            "FEDFA_S3_ENDPOINT": s3.endpoint,
            "FEDFA_S3_BUCKET": s3.bucket,
            "FEDFA_S3_ACCESS_KEY": s3.access_key,
            "FEDFA_S3_SECRET_KEY": s3.secret_key,
        }
        self._log = folder / "aggregator.log"
        self.peaks: list[float] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "fedfa_aggregator"]
        self._process = ServerProcess("aggregator", command, log=self._log, env=self._environment)
        self.peaks.append(0.0)

    def resident_mib(self) -> float:
        """Now; what it was at most is remembered."""
        if not self._process.is_running:
            raise SystemExit(f"the aggregator ended: {self._process.log_tail()}")
        resident = float(psutil.Process(self._process.pid).memory_info().rss) / 2**20
        self.peaks[-1] = max(self.peaks[-1], resident)
        return resident

    def kill(self) -> None:
        self._process.kill()
        self.start()

    def stop(self) -> None:
        self._process.stop()


def run(fleet: Fleet, aggregator: Aggregator, *, kill_every: float | None) -> list[Row]:
    """Until the federation has ended; prints a row every ROW_EVERY merges."""
    print(HEADING, flush=True)
    rows: list[Row] = []
    began = progress_at = time.monotonic()
    kill_at = _next_kill(fleet.draw, kill_every)
    merged, is_over = -1, False
    fleet.be_born()
    while not is_over:
        fleet.wait()
        head, resident = fleet.turn(), aggregator.resident_mib()
        now = time.monotonic()
        if head is not None and head.state.num_merged > merged:
            merged, progress_at = head.state.num_merged, now
            is_over = head.state.status != "running"
            if merged >= ROW_EVERY * (len(rows) + 1) or is_over:
                rows.append(_row(fleet, head, now - began, resident))
                print(rows[-1], flush=True)
        if now - progress_at > STALLED_SECONDS:
            raise SystemExit(f"no merge for {STALLED_SECONDS:g} s after {merged}")
        if now > kill_at:
            aggregator.kill()
            kill_at = _next_kill(fleet.draw, kill_every)
    return rows


def _next_kill(draw: random.Random, every: float | None) -> float:
    return float("inf") if every is None else time.monotonic() + draw.uniform(0.5, 1.5) * every


def _row(fleet: Fleet, head: Manifest, seconds: float, resident: float) -> Row:
    policy = fleet.submitted.spec.retention
    assert isinstance(policy, KeepBounded)
    models = list(fleet.store.list(keys.models(fleet.id)))
    updates = list(fleet.store.list(keys.updates(fleet.id)))
    old = time.time() - policy.min_age_seconds - LAG_SECONDS
    return Row(
        merges=head.state.num_merged,
        seconds=seconds,
        resident_mib=resident,
        models=len(models),
        updates=len(updates),
        manifests=head.n + 1,
        old_models=sum(info.modified < old for info in models),
        old_updates=sum(info.modified < old for info in updates),
    )


def bounds(submitted: Submitted, version: int) -> tuple[int, int]:
    """How many old models and updates the retention settings allow."""
    policy, spec = submitted.spec.retention, submitted.spec
    assert isinstance(policy, KeepBounded)
    milestones = 1 + version // policy.keep_every if policy.keep_every else 0
    models = policy.keep_last + milestones + retention.WAITING_KEPT + 3
    updates = policy.keep_last * spec.limits.max_batch + window_size(spec) + 2 * spec.concurrency
    return models, updates


def check(name: str, is_true: bool, text: str) -> bool:
    print(f"{'ok  ' if is_true else 'FAIL'} {name}: {text}", flush=True)
    return is_true


def soak(
    store: S3Store,
    broker: BrokerSettings,
    aggregator: Aggregator,
    *,
    merges: int,
    kill_every: float | None,
    seed: int,
) -> tuple[list[Row], bool]:
    federation = "calm" if kill_every is None else "killed"
    submitted = submission.submit(store, spec(merges), federation)
    publisher = Publisher(broker, name=federation)
    broadcast = Consumer(broker, [(BROADCAST_QUEUE, 100)], name=federation)
    fleet = Fleet(store, publisher, broadcast, submitted, random.Random(seed))
    try:
        rows = run(fleet, aggregator, kill_every=kill_every)
        newest = manifests.newest(store, federation)
        assert newest is not None
        policy = submitted.spec.retention
        assert isinstance(policy, KeepBounded)
        time.sleep(policy.min_age_seconds + LAG_SECONDS)  # the last sweep
        last = _row(fleet, newest.manifest, rows[-1].seconds, aggregator.resident_mib())
        print(f"{last}  (all of it old)")
    finally:
        broadcast.close()
        publisher.close()
    most_models, most_updates = bounds(submitted, newest.manifest.state.version)
    models = max(row.old_models for row in [*rows, last])
    updates = max(row.old_updates for row in [*rows, last])
    good = check("models", models <= most_models, f"at most {models} old, {most_models} allowed")
    good &= check(
        "updates", updates <= most_updates, f"at most {updates} old, {most_updates} allowed"
    )
    began = time.monotonic()
    *_, verified = verify(store, federation)
    good &= check(
        "verify",
        verified.replayed_from is not None,
        f"chain of {verified.manifest.n + 1} manifests, replayed from version "
        f"{verified.replayed_from} to {verified.manifest.state.version}, "
        f"{time.monotonic() - began:.0f} s",
    )
    return rows, good


@contextmanager
def servers(folder: Path) -> Iterator[tuple[BrokerSettings, SeaweedFS]]:
    rabbitmq, s3 = RabbitMQ(folder / "rabbitmq"), SeaweedFS(folder / "s3")
    try:
        rabbitmq.start()
        s3.start()
        yield BrokerSettings.model_validate({"url": rabbitmq.url}), s3
    finally:
        rabbitmq.stop()
        s3.stop()


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--merges", type=int, default=10_000)
    arguments.add_argument("--kill-every", type=float, default=None, metavar="SECONDS")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedfa-soak-") as name, servers(Path(name)) as started:
        broker, s3 = started
        store = S3Store(s3.settings())
        aggregator = Aggregator(broker, s3, Path(name))
        try:
            rows, good = soak(
                store, broker, aggregator, merges=given.merges, kill_every=None, seed=given.seed
            )
            base = next((row for row in rows if row.merges >= BASELINE_AT), rows[-1])
            growth = rows[-1].resident_mib / base.resident_mib - 1
            good &= check(
                "memory",
                abs(growth) <= 0.05,
                f"{base.resident_mib:.1f} MiB at {base.merges} merges, "
                f"{rows[-1].resident_mib:.1f} at {rows[-1].merges}: {growth:+.1%}",
            )
            if given.kill_every is not None:
                aggregator.peaks.clear()
                aggregator.kill()
                _, killed_good = soak(
                    store,
                    broker,
                    aggregator,
                    merges=given.merges,
                    kill_every=given.kill_every,
                    seed=given.seed,
                )
                peak = max(aggregator.peaks)
                good &= killed_good
                good &= check(
                    "memory with kills",
                    peak <= 1.1 * base.resident_mib,
                    f"{len(aggregator.peaks)} processes, at most {peak:.1f} MiB",
                )
        finally:
            aggregator.stop()
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
