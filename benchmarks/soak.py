"""Ten thousand merges of a small model with bounded retention: does anything grow?

    python benchmarks/soak.py --merges 10000 --kill-every 10      (make soak)

A real scheduler and a real aggregator on a private RabbitMQ and a private SeaweedFS; this process
plays the trainers, and some of their mischief. First without kills: the resident memory of
aggregator and scheduler at the end must be within 5 % of that at 1,000 merges, the broker's within
25 %, for its runtime frees memory late. With --kill-every a second federation follows, while one
of the two services is killed (SIGKILL) after a random time around that many seconds, again and
again: no process may ever need more than 10 % above that memory. In both, the objects that are old
enough to be collected stay within what the retention settings allow. Then the log is verified.
"""

import argparse
import random
import time
from dataclasses import dataclass, field

import numpy as np
import psutil
from measure import check
from played import Played, numbers
from stage import AGGREGATOR, SCHEDULER, Stage
from trainers import Trainers

from fedfa import keys, manifests, retention, submission
from fedfa.events import Job
from fedfa.local.processes import ServerProcess
from fedfa.log import Manifest
from fedfa.merge import window_size
from fedfa.messages import TrainJob
from fedfa.replay import verify
from fedfa.sections import KeepBounded
from fedfa.spec import FederationSpec, Submission, parse
from fedfa.tensors import FlatModel, Template, Tensor

MODEL = Template((Tensor("weight", "parameter", "F32", (64, 64)),))  # 4096 floats
BROKEN = FlatModel(MODEL, np.full(MODEL.num_floats, np.nan, np.float32), np.empty(0, np.int64))
SLOTS = 16
LEASE_SECONDS = 5  # longer than any job; a killed scheduler's successor waits for so long
ROW_EVERY = 500
BASELINE_AT = 1000
LOOK_SECONDS = 0.2
LAG_SECONDS = 15.0  # a sweep, and a restart, may come so much later than the age floor allows
STALLED_SECONDS = 60.0
STRAY_SHARE, REPEAT_SHARE, BAD_SHARE = 0.02, 0.02, 0.02  # of all updates
STRAY_ATTEMPT = "0000000000001-0a0b0c0d-000001"
SERVICES = {"aggregator": AGGREGATOR, "scheduler": SCHEDULER}
SETTINGS = {
    "FEDFA_LEASE_TTL_SECONDS": str(LEASE_SECONDS),
    "FEDFA_RECONCILE_INTERVAL_SECONDS": "2",
}
GROWTH = {"aggregator": 0.05, "scheduler": 0.05, "broker": 0.25}


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
    resident_mib: dict[str, float]
    models: int
    updates: int
    manifests: int
    old_models: int
    old_updates: int

    def __str__(self) -> str:
        resident = " ".join(f"{self.resident_mib[name]:10.1f}" for name in GROWTH)
        return (
            f"{self.merges:8d} {self.seconds:8.0f} {resident} {self.models:8d} {self.updates:8d} "
            f"{self.manifests:10d} {self.old_models:8d} {self.old_updates:8d}"
        )


HEADING = (
    f"{'merges':>8} {'seconds':>8} {' '.join(f'{name:>10}' for name in GROWTH)} {'models':>8} "
    f"{'updates':>8} {'manifests':>10} {'of them old':>17}"
)


@dataclass
class Services:
    """The processes under test, and the most memory that any life of each has needed."""

    stage: Stage
    peak_mib: dict[str, float] = field(default_factory=dict)
    num_killed: int = 0

    def __post_init__(self) -> None:
        self._processes = {name: self._start(name) for name in SERVICES}

    def resident_mib(self) -> dict[str, float]:
        """Now, with the broker's; what it was at most is remembered."""
        pids = {name: process.pid for name, process in self._processes.items()}
        found = {
            name: float(psutil.Process(pid).memory_info().rss) / 2**20
            for name, pid in (pids | {"broker": self.stage.rabbit.pid}).items()
        }
        self.peak_mib = {name: max(mib, self.peak_mib.get(name, 0)) for name, mib in found.items()}
        return found

    def kill(self, name: str) -> None:
        self.num_killed += 1
        self._processes[name].kill()
        self._processes[name] = self._start(name)

    def _start(self, name: str) -> ServerProcess:
        return self.stage.start(SERVICES[name], **SETTINGS)


@dataclass
class Soak:
    """One federation until it has ended."""

    services: Services
    trainers: Trainers
    played: Played
    draw: random.Random
    kill_every: float | None

    def run(self) -> list[Row]:
        """Prints a row every ROW_EVERY merges."""
        print(HEADING, flush=True)
        rows: list[Row] = []
        began = progress_at = time.monotonic()
        kill_at, look_at = self._next_kill(), began
        known, merged, is_over = manifests.FIRST, -1, False
        self.trainers.publish(submission.start_message(self.played.submitted))
        while not is_over:
            for job, _ in self.trainers.take(LOOK_SECONDS):
                self._finish(job)
            now = time.monotonic()
            if now > kill_at:
                self.services.kill(self.draw.choice(list(SERVICES)))
                kill_at = self._next_kill()
            if now < look_at:
                continue
            look_at = now + LOOK_SECONDS
            head = manifests.newest(self.played.store, self.played.id, known=known)
            resident = self.services.resident_mib()
            if head is not None and head.manifest.state.num_merged > merged:
                known, merged, progress_at = head.manifest.n, head.manifest.state.num_merged, now
                is_over = head.manifest.state.status != "running"
                if merged >= ROW_EVERY * (len(rows) + 1) or is_over:
                    rows.append(self.row(head.manifest, now - began, resident))
                    print(rows[-1], flush=True)
            if now - progress_at > STALLED_SECONDS:
                raise SystemExit(f"no merge for {STALLED_SECONDS:g} s after {merged}")
        return rows

    def row(self, head: Manifest, seconds: float, resident_mib: dict[str, float]) -> Row:
        store, federation = self.played.store, self.played.id
        models, updates = (
            list(store.list(prefix))
            for prefix in (keys.models(federation), keys.updates(federation))
        )
        old = time.time() - policy_of(self.played.submitted).min_age_seconds - LAG_SECONDS
        return Row(
            merges=head.state.num_merged,
            seconds=seconds,
            resident_mib=resident_mib,
            models=len(models),
            updates=len(updates),
            manifests=head.n + 1,
            old_models=sum(info.modified < old for info in models),
            old_updates=sum(info.modified < old for info in updates),
        )

    def _finish(self, job: TrainJob) -> None:
        if self.draw.random() < STRAY_SHARE:  # an attempt that nobody announces
            place = Job(job.slot, job.generation)
            client, version = job.client, job.opened_at
            self.played.update(place, client=client, version=version, attempt=STRAY_ATTEMPT)
        if self.draw.random() < BAD_SHARE:
            update = self.trainers.prepare(job, vector=BROKEN)
        else:
            update = self.trainers.prepare(job)
        self.trainers.deliver(update)
        if self.draw.random() < REPEAT_SHARE:
            self.trainers.deliver(update)

    def _next_kill(self) -> float:
        if self.kill_every is None:
            return float("inf")
        return time.monotonic() + self.draw.uniform(0.5, 1.5) * self.kill_every


def policy_of(submitted: Submission) -> KeepBounded:
    policy = submitted.spec.retention
    assert isinstance(policy, KeepBounded)
    return policy


def bounds(submitted: Submission, version: int) -> tuple[int, int]:
    """How many old models and updates the retention settings allow."""
    policy, spec = policy_of(submitted), submitted.spec
    milestones = 1 + version // policy.keep_every if policy.keep_every else 0
    models = policy.keep_last + milestones + retention.WAITING_KEPT + 3
    updates = policy.keep_last * spec.limits.max_batch + window_size(spec) + 2 * spec.concurrency
    return models, updates


def judged(soak: Soak) -> tuple[list[Row], bool]:
    """Run it, let the last sweep pass, look at what is left, and verify."""
    store, submitted = soak.played.store, soak.played.submitted
    rows = soak.run()
    newest = manifests.newest(store, soak.played.id)
    assert newest is not None
    time.sleep(policy_of(submitted).min_age_seconds + LAG_SECONDS)
    last = soak.row(newest.manifest, rows[-1].seconds, soak.services.resident_mib())
    print(f"{last}  (all of it old)")
    most_models, most_updates = bounds(submitted, newest.manifest.state.version)
    models = max(row.old_models for row in [*rows, last])
    updates = max(row.old_updates for row in [*rows, last])
    good = check("models", models <= most_models, f"at most {models} old, {most_models} allowed")
    good &= check(
        "updates", updates <= most_updates, f"at most {updates} old, {most_updates} allowed"
    )
    began = time.monotonic()
    *_, verified = verify(store, soak.played.id)
    good &= check(
        "verify",
        verified.replayed_from is not None,
        f"chain of {verified.manifest.n + 1} manifests, replayed from version "
        f"{verified.replayed_from} to {verified.manifest.state.version}, "
        f"{time.monotonic() - began:.0f} s",
    )
    return rows, good


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--merges", type=int, default=10_000)
    arguments.add_argument("--kill-every", type=float, default=None, metavar="SECONDS")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    federations: dict[str, Played] = {}
    draw = random.Random(given.seed)
    with Stage() as stage:
        services = Services(stage)
        trainers = Trainers(stage, federations, at_once=2 * SLOTS)

        def soak(name: str, kill_every: float | None) -> tuple[list[Row], bool]:
            submitted = submission.submit(stage.store, spec(given.merges), name)
            federations[name] = Played(stage.store, submitted, numbers(MODEL))
            return judged(Soak(services, trainers, federations[name], draw, kill_every))

        rows, good = soak("calm", None)
        base = next((row for row in rows if row.merges >= BASELINE_AT), rows[-1])
        for name, most in GROWTH.items():
            before, after = base.resident_mib[name], rows[-1].resident_mib[name]
            good &= check(
                f"memory of the {name}",
                after / before - 1 <= most,
                f"{before:.1f} MiB at {base.merges} merges, {after:.1f} at {rows[-1].merges}: "
                f"{after / before - 1:+.1%}",
            )
        if given.kill_every is not None:
            services.peak_mib.clear()
            _, killed_good = soak("killed", given.kill_every)
            good &= killed_good
            for name in SERVICES:
                peak = services.peak_mib[name]
                good &= check(
                    f"memory of the {name} with kills",
                    peak <= 1.1 * base.resident_mib[name],
                    f"{services.num_killed} kills, at most {peak:.1f} MiB",
                )
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
