"""Half of the trainers are told to end, again and again, as an autoscaler or a spot reclaim would.

    python benchmarks/scale_in.py --minutes 5

Six real trainers, six open jobs (Mc) that mostly sleep a simulated delay, a real scheduler and
aggregator on a private RabbitMQ and SeaweedFS. Every 20 s three trainers drawn at random get
SIGTERM, and three new ones start. It ends with 1 unless

- within 10 s of the new trainers being ready, Mc jobs are held again,
- no job is lost, counted as failed, or merged twice,
- as much is merged in the second half as in the first, give or take a third,
- the scheduler's /open-jobs equals the open slots of the newest manifest whenever it is asked.
"""

import argparse
import json
import random
import statistics
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fedfa import manifests, submission
from fedfa.broker import Publisher
from fedfa.events import Merged, job_of
from fedfa.local.stack import LocalStack
from fedfa.replay import verify
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.topology import EVENTS

ID = "scale-in"
TRAINERS = CONCURRENCY = 6
EVERY_SECONDS = 20.0
RECOVER_SECONDS = 10.0
DELAY_SECONDS = 4.0
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
    "stop": {"updates": 1_000_000},
}


@dataclass(slots=True)
class Seen:
    recoveries: list[float] = field(default_factory=list)  # seconds, one for each round
    open_jobs: Counter[int] = field(default_factory=Counter)
    merged: list[tuple[float, int]] = field(default_factory=list)  # (clock, merges so far)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with LocalStack(trainers=TRAINERS, jobs_per_trainer=1, lease_ttl_seconds=15.0) as stack:
        store = stack.store()
        submitted = submission.submit(store, parse(SPEC), ID)
        publisher = Publisher(stack.broker_settings(), name=ID)
        publisher.publish(submission.start_message(submitted), EVENTS)
        await_held(stack, BIRTH_SECONDS)
        seen = Seen()
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            round_ends = time.monotonic() + EVERY_SECONDS
            replace_half(stack, draw)
            began = time.monotonic()
            await_held(stack, 6 * RECOVER_SECONDS)
            seen.recoveries.append(time.monotonic() - began)
            print(f"{len(held(stack))} jobs held {seen.recoveries[-1]:.1f} s after", flush=True)
            while time.monotonic() < round_ends:
                look(stack, store, seen)
                time.sleep(LOOK_SECONDS)
        publisher.publish(
            submission.start_message(submission.request_stop(store, ID, "over")), EVENTS
        )
        raise SystemExit(0 if judge(store, seen) else 1)


def replace_half(stack: LocalStack, draw: random.Random) -> None:
    """Ends when the new trainers consume."""
    names = draw.sample([n for n in stack.processes if n.startswith("trainer")], TRAINERS // 2)
    with ThreadPoolExecutor() as together:
        list(together.map(lambda name: stack.processes[name].stop(), names))
    for name in names:
        stack.restart(name)
    for name in names:
        stack.processes[name].wait_until(
            lambda name=name: bool((get(stack, name, "/readyz") or {}).get("ready")),  # type: ignore[misc]
            timeout_seconds=BIRTH_SECONDS,
        )


def look(stack: LocalStack, store: ObjectStore, seen: Seen) -> None:
    answer = get(stack, "scheduler", "/open-jobs")
    newest = manifests.newest(store, ID, known=len(seen.merged))
    if answer is not None:
        seen.open_jobs[answer["open_jobs"]] += 1
    if newest is not None:
        seen.merged.append((time.monotonic(), newest.manifest.state.num_merged))


def held(stack: LocalStack) -> list[dict[str, Any]]:
    names = [name for name in stack.processes if name.startswith("trainer")]
    return [job for name in names for job in get(stack, name, "/jobs") or []]


def await_held(stack: LocalStack, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while len({(job["work"][1], job["work"][2]) for job in held(stack)}) < CONCURRENCY:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(held(stack))} jobs held after {seconds:g} s: {held(stack)}")
        time.sleep(0.1)


def get(stack: LocalStack, name: str, path: str) -> Any:
    try:
        url = f"http://127.0.0.1:{stack.http_ports[name]}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def judge(store: ObjectStore, seen: Seen) -> bool:
    log = [verified.manifest for verified in verify(store, ID)]
    state = log[-1].state
    events = [decision.event for manifest in log for decision in manifest.decisions]
    merged = [job_of(event) for event in events if isinstance(event, Merged)]
    counts = Counter(merged)
    half = seen.merged[len(seen.merged) // 2]
    first = (half[1] - seen.merged[0][1]) / (half[0] - seen.merged[0][0])
    second = (seen.merged[-1][1] - half[1]) / (seen.merged[-1][0] - half[0])
    return all(
        [
            check(
                "jobs are back",
                max(seen.recoveries) <= RECOVER_SECONDS,
                f"{len(seen.recoveries)} rounds, median {statistics.median(seen.recoveries):.1f} "
                f"and longest {max(seen.recoveries):.1f} s",
            ),
            check("merged twice", max(counts.values()) == 1, f"{len(merged)} merges"),
            check("abandoned", state.num_abandoned == 0, f"{state.num_abandoned}"),
            check("throughput", second > first / 1.5, f"{first:.2f}/s, then {second:.2f}/s"),
            check("/open-jobs", set(seen.open_jobs) == {CONCURRENCY}, f"{dict(seen.open_jobs)}"),
        ]
    )


def check(name: str, is_true: bool, text: str) -> bool:
    print(f"{'ok  ' if is_true else 'FAIL'} {name}: {text}", flush=True)
    return is_true


if __name__ == "__main__":
    main()
