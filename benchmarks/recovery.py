"""How long a killed aggregator keeps everybody waiting: 45 MB models, K = 10.

    python benchmarks/recovery.py

A real aggregator on a private RabbitMQ and SeaweedFS gets SIGKILL with a full window, an update is
announced while it is dead, and it is started again at once. The clock runs from the kill to the
update's commit. In the same rounds: the same update without a kill; the time until a new process
consumes, with nothing to do; and the limit, the window's objects read from the same bucket.
"""

import json
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from measure import template
from played import Played, numbers
from results import Group, options, write
from stage import AGGREGATOR, Stage, announce, peak_mib, received, wait

from fedfa import manifests, submission
from fedfa.broker import Consumer, Publisher
from fedfa.events import Job
from fedfa.local.processes import ServerProcess, free_port
from fedfa.messages import UpdateReady
from fedfa.spec import parse
from fedfa.topology import BROADCAST_QUEUE, UPDATES
from fedfa_aggregator.__main__ import WINDOW_READERS

SLOTS = 4
SECONDS, PEAK = "s", "peak MiB"
LIMIT, START, HEALTHY, KILLED = (
    "limit: reading K + 1 objects",
    "a process starts and consumes",
    "one update, no kill",
    "kill to commit",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["resnet18"])
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for model in given.models:
        with Stage() as stage:
            cases = Recovery(stage, model, given.window).measure(given.rounds)
        group = Group(f"{model}, K = {given.window}", cases, {SECONDS: [LIMIT]})
        write(given.results, "recovery", group)


class Recovery:
    """One federation, and the aggregator that serves it."""

    def __init__(self, stage: Stage, model: str, window: int) -> None:
        fields = {
            "rule": {"name": "fedfa-param", "window": window},
            "concurrency": SLOTS,
            "clients": SLOTS,
            "evaluation": {"every_versions": 1_000_000},
        }
        self.stage, self.window, self.name = stage, window, "recovery"
        submitted = submission.submit(stage.store, parse(fields), self.name)
        self.played = Played(stage.store, submitted, numbers(template(model)))
        self.port = free_port()
        self.process = self._start()
        self.publisher: Publisher = stage.publisher()
        self.heard: Consumer = stage.consumer((BROADCAST_QUEUE, 100))
        self.publisher.publish(self.played.initial(), UPDATES)
        wait(lambda: received(self.heard))
        for _ in range(window):
            announce(self.publisher, self.heard, [self._update()])

    def measure(self, rounds: int) -> dict[str, dict[str, list[float]]]:
        cases = {LIMIT: self._read, START: self._idle, HEALTHY: self._healthy, KILLED: self._killed}
        samples: dict[str, dict[str, list[float]]] = {name: {SECONDS: []} for name in cases}
        samples[KILLED][PEAK] = []
        for _ in range(rounds):
            for name, case in cases.items():
                samples[name][SECONDS].append(case())
            samples[KILLED][PEAK].append(peak_mib(self.process))
        return samples

    def _read(self) -> float:
        """What the newest manifest names, by as many readers as the aggregator has."""
        newest = manifests.newest(self.stage.store, self.name)
        assert newest is not None
        assert newest.manifest.model is not None
        entries = [newest.manifest.model.key, *(e.key for e in newest.manifest.state.window)]
        with ThreadPoolExecutor(WINDOW_READERS) as readers:
            return timed(lambda: list(readers.map(self.stage.store.download, entries)))

    def _idle(self) -> float:
        self.process.kill()

        def start() -> None:
            self.process = self._start()
            wait(self._is_ready)

        return timed(start)

    def _healthy(self) -> float:
        announce(self.publisher, self.heard, [self._update()])  # its window is read
        update = self._update()
        return timed(lambda: announce(self.publisher, self.heard, [update]))

    def _killed(self) -> float:
        update = self._update()

        def recover() -> None:
            self.process.kill()
            self.process = self._start()
            announce(self.publisher, self.heard, [update])

        return timed(recover)

    def _start(self) -> ServerProcess:
        return self.stage.start(AGGREGATOR, FEDFA_HTTP_PORT=str(self.port))

    def _is_ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(json.loads(answer.read())["ready"])
        except OSError:
            return False

    def _update(self) -> UpdateReady:
        """For the first slot's open job."""
        newest = manifests.newest(self.stage.store, self.name)
        assert newest is not None
        state = newest.manifest.state
        slot = state.slots[0]
        job = Job(0, slot.generation)
        return self.played.update(job, client=slot.client, version=state.version)


def timed(body: Callable[[], object]) -> float:
    started = time.perf_counter()
    body()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
