"""Half of the trainers are told to end, again and again, as an autoscaler or a spot reclaim would.

    python benchmarks/scale_in.py --minutes 5

Six real trainers, six open jobs (Mc) that mostly sleep a simulated delay, a real scheduler and
aggregator on a private RabbitMQ and SeaweedFS. Half a minute nothing happens to them; then, every
20 s, three trainers drawn at random get SIGTERM, and three new ones start. It ends with 1 unless

- within 10 s of the new trainers being ready, Mc jobs are held again,
- no job is lost, counted as failed, or merged twice,
- while Mc jobs are held, updates are merged at two thirds of the undisturbed rate or more,
- the scheduler's /open-jobs equals the open slots of the newest manifest whenever it is asked, also
  while trainers end and start.
"""

import argparse
import json
import os
import random
import statistics
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from measure import check

from fedfa import manifests, submission
from fedfa.broker import Publisher
from fedfa.events import Merged, job_of
from fedfa.federation import State
from fedfa.local.stack import LocalStack
from fedfa.replay import verify
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import EVENTS

ID = "scale-in"
TRAINERS = CONCURRENCY = 6
UNDISTURBED_SECONDS = 30.0
EVERY_SECONDS = 20.0
RECOVER_SECONDS = 10.0
DELAY_SECONDS = 4.0
GRACE_SECONDS = 1.0  # most jobs have more left: they are handed back, not finished
LOOK_SECONDS = 0.5
BIRTH_SECONDS = 120.0
SPEC = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 5},
    "concurrency": CONCURRENCY,
    "clients": 4 * CONCURRENCY,
    "partition": {"kind": "iid"},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "pareto", "shape": 20.0, "unit_seconds": DELAY_SECONDS},
    "evaluation": {"every_versions": 1_000_000},  # an evaluation is an open job, and no open slot
    "stop": {"updates": 1_000_000},
}


@dataclass(slots=True)
class Seen:
    recoveries: list[float] = field(default_factory=list)  # seconds, one for each round
    looks: Counter[tuple[int, int]] = field(default_factory=Counter)  # (open jobs, open slots)
    rates: list[tuple[float, int]] = field(
        default_factory=list
    )  # (seconds, merges), undisturbed first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    os.environ["FEDFA_TRAINER_GRACE_SECONDS"] = str(GRACE_SECONDS)
    with LocalStack(trainers=TRAINERS, jobs_per_trainer=1, lease_ttl_seconds=15.0) as stack:
        store = stack.store()
        submitted = submission.submit(store, parse(SPEC), ID)
        publisher = Publisher(stack.broker_settings(), name=ID)
        publisher.publish(submission.start_message(submitted), EVENTS)
        await_held(stack, BIRTH_SECONDS)
        seen = Seen()
        with looking(stack, store, seen):
            seen.rates.append(merges_until(store, time.monotonic() + UNDISTURBED_SECONDS))
            end = time.monotonic() + 60 * options.minutes
            while time.monotonic() < end:
                round_ends = time.monotonic() + EVERY_SECONDS
                replace_half(stack, draw)
                began = time.monotonic()
                await_held(stack, 6 * RECOVER_SECONDS)
                seen.recoveries.append(time.monotonic() - began)
                print(f"{CONCURRENCY} jobs held {seen.recoveries[-1]:.1f} s after", flush=True)
                seen.rates.append(merges_until(store, round_ends))
        publisher.publish(
            submission.start_message(submission.request_stop(store, ID, "over")), EVENTS
        )
        raise SystemExit(0 if judge(store, seen, counters(stack)) else 1)


def replace_half(stack: LocalStack, draw: random.Random) -> None:
    """Ends when the new trainers consume."""
    names = draw.sample([n for n in stack.processes if n.startswith("trainer")], TRAINERS // 2)
    with ThreadPoolExecutor() as together:
        list(together.map(lambda name: stack.processes[name].stop(), names))
    for name in names:
        stack.restart(name)
    for name in names:
        stack.processes[name].wait_until(
            partial(is_ready, stack, name), timeout_seconds=BIRTH_SECONDS
        )


@contextmanager
def looking(stack: LocalStack, store: ObjectStore, seen: Seen) -> Iterator[None]:
    """From the first moment without an evaluation or initialisation on."""
    while (get(stack, "scheduler", "/open-jobs") or {}).get("open_jobs") != CONCURRENCY:
        time.sleep(LOOK_SECONDS)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_SECONDS):
            slots = sum(slot.is_open for slot in state_of(store).slots)
            answer = get(stack, "scheduler", "/open-jobs")
            seen.looks[-1 if answer is None else answer["open_jobs"], slots] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def state_of(store: ObjectStore) -> State:
    newest = manifests.newest(store, ID)
    assert newest is not None
    return newest.manifest.state


def merges_until(store: ObjectStore, end: float) -> tuple[float, int]:
    """(seconds, merges) from now on."""
    began, before = time.monotonic(), state_of(store).num_merged
    time.sleep(max(0.0, end - began))
    return time.monotonic() - began, state_of(store).num_merged - before


def held(stack: LocalStack) -> list[dict[str, Any]]:
    names = [name for name in stack.processes if name.startswith("trainer")]
    jobs = [job for name in names for job in get(stack, name, "/jobs") or []]
    return [job for job in jobs if job["work"]["activity"] == "train"]


def await_held(stack: LocalStack, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while len({job["work"]["slot"] for job in held(stack)}) < CONCURRENCY:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(held(stack))} jobs held after {seconds:g} s: {held(stack)}")
        time.sleep(0.1)


def get(stack: LocalStack, name: str, path: str) -> Any:
    try:
        return json.loads(text(stack, name, path))
    except OSError:
        return None


def is_ready(stack: LocalStack, name: str) -> bool:
    return bool((get(stack, name, "/readyz") or {}).get("ready"))


def text(stack: LocalStack, name: str, path: str) -> str:
    url = f"http://127.0.0.1:{stack.http_ports[name]}{path}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
    return body.decode()


def counters(stack: LocalStack) -> dict[str, int]:
    """What the scheduler counted: name -> number."""
    pairs = [line.split() for line in text(stack, "scheduler", "/metrics").splitlines()]
    return {pair[0]: int(float(pair[1])) for pair in pairs if pair[0].endswith("_total")}


def judge(store: ObjectStore, seen: Seen, counted: dict[str, int]) -> bool:
    log = [verified.manifest for verified in verify(store, ID)]
    state = log[-1].state
    events = [decision.event for manifest in log for decision in manifest.decisions]
    merged = [job_of(event) for event in events if isinstance(event, Merged)]
    counts = Counter(merged)
    lost = {"abandoned": state.num_abandoned} | {
        name: counted[f"fedfa_{name}_total"] for name in ("lease_expired", "jobs_failed")
    }
    (seconds, number), *rounds = seen.rates
    undisturbed = number / seconds
    recovered = sum(n for _, n in rounds) / sum(s for s, _ in rounds)
    return all(
        [
            check(
                "jobs are back",
                max(seen.recoveries) <= RECOVER_SECONDS,
                f"{len(seen.recoveries)} rounds, median {statistics.median(seen.recoveries):.1f} "
                f"and longest {max(seen.recoveries):.1f} s",
            ),
            check("merged twice", max(counts.values()) == 1, f"{len(merged)} merges"),
            check(
                "none lost",
                lost == {"abandoned": 0, "lease_expired": 0, "jobs_failed": 0},
                f"{lost}, {counted['fedfa_jobs_released_total']} handed back",
            ),
            check(
                "throughput",
                recovered > undisturbed / 1.5,
                f"{undisturbed:.2f}/s undisturbed, {recovered:.2f}/s once jobs are back",
            ),
            check(
                "/open-jobs",
                all(jobs == slots for jobs, slots in seen.looks),
                f"(open jobs, open slots): {dict(seen.looks)}",
            ),
        ]
    )


if __name__ == "__main__":
    main()
