"""A whole stack with a network in between that a test can break, and what must hold afterwards.

Every service reaches broker and bucket through proxies; the tests read both directly.
"""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import psutil

from fedfa import submission
from fedfa.broker import Publisher
from fedfa.events import Job, Merged, Rejected
from fedfa.local.processes import ServerProcess, accepts
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.local.stack import LocalStack
from fedfa.log import Manifest
from fedfa.messages import AnyMessage
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings
from fedfa.topology import EVENTS, Route
from tests.proxy import Proxy
from tests.services import runs
from tests.services.runs import LOOK_SECONDS
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
LEASE_SECONDS = 3.0
CONSUMER_TIMEOUT_SECONDS = 8.0
DISK_MIB = 640
JOBS_SECONDS = 20  # for a trainer to say what it holds; it may be busy
FILLER = "filler"
TRAINERS = ("trainer-1", "trainer-2")
LONG_DELAY = {"distribution": "pareto", "shape": 100, "unit_seconds": 13.0}  # 13 to 14 seconds
SPEC: dict[str, Any] = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 3},
    "concurrency": 6,
    "clients": 10,
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "local": {"steps": 2, "batch_size": 16, "optimizer": {"name": "sgd", "learning_rate": 0.05}},
    "delay": {"distribution": "exponential", "unit_seconds": 0.8},
    "evaluation": {"every_versions": 10},
    "stop": {"updates": 100_000},
}
# Everything the services say to broker and bucket must fail soon, and nothing may be waited for.
ENVIRONMENT = {
    "FEDFA_AMQP_HEARTBEAT_SECONDS": "5",
    "FEDFA_AMQP_BLOCKED_TIMEOUT_SECONDS": "10",
    "FEDFA_S3_READ_TIMEOUT_SECONDS": "2",
    "FEDFA_S3_OUTAGE_SECONDS": "4",
}
WIPE = '[rabbit_amqqueue:delete(Q, false, false, <<"test">>) || Q <- rabbit_amqqueue:list()].'


@dataclass
class World:
    """What a test breaks (stack, rabbit, s3, amqp, http), and what it looks at (store)."""

    stack: LocalStack
    rabbit: RabbitMQ
    s3: SeaweedFS
    amqp: Proxy
    http: Proxy
    store: S3Store
    journal: Path
    slow: Path  # of tests.services.tasks:Slowed
    trouble_with_disk: str

    def must_have_small_disk(self) -> None:
        assert not self.trouble_with_disk, (
            f"no small disk can be mounted here ({self.trouble_with_disk}): run this as root"
        )

    def fill_disk(self) -> None:
        """Leave the S3 server no space."""
        with suppress(OSError), (self.s3.folder / FILLER).open("wb") as file:
            while True:
                file.write(bytes(65_536))

    def free_disk(self) -> None:
        (self.s3.folder / FILLER).unlink(missing_ok=True)

    def broker_settings(self) -> BrokerSettings:
        """Past the proxy."""
        return BrokerSettings.model_validate({"url": self.rabbit.url})

    def publish(self, *letters: AnyMessage | bytes, route: Route = EVENTS) -> None:
        publisher = Publisher(self.broker_settings(), name="test")
        try:
            for letter in letters:
                publisher.publish(letter, route, timeout_seconds=30)
        finally:
            publisher.close()

    def begin(self, name: str, **changes: object) -> str:
        """Submit a federation, as `fedfa submit` does."""
        runs.begin(self.store, self.broker_settings(), name, SPEC | changes)
        return name

    def running(self, name: str, *, merged: int = 8, **changes: object) -> str:
        """A federation that has merged something."""
        self.begin(name, **changes)
        self.goes_on(name, by=merged)
        return name

    def newest(self, name: str) -> Manifest | None:
        return runs.newest(self.store, name)

    def number(self, name: str) -> int:
        """Of the newest manifest."""
        manifest = self.newest(name)
        return manifest.n if manifest else -1

    def merged(self, name: str) -> int:
        return runs.num_merged(self.store, name)

    def goes_on(self, name: str, *, by: int = 12, seconds: float = 60.0) -> float:
        """Wait until so many more updates are merged; returns how long the first one took."""
        began, before = time.monotonic(), self.merged(name)
        wait_for(lambda: self.merged(name) > before, seconds=seconds, every_seconds=LOOK_SECONDS)
        first = time.monotonic() - began
        enough = before + by
        wait_for(lambda: self.merged(name) >= enough, seconds=seconds, every_seconds=LOOK_SECONDS)
        return first

    def ends(self, name: str, *, seconds: float = 60.0) -> Manifest:
        return runs.ended(self.store, name, seconds=seconds)

    def stops_and_verifies(self, name: str) -> list[Manifest]:
        submitted = submission.request_stop(self.store, name, "seen enough")
        self.publish(submission.start_message(submitted))
        self.ends(name)
        log = runs.check(self.store, name)
        self._check_journal(log)
        return log

    def _check_journal(self, log: list[Manifest]) -> None:
        """No confirmed update is missing, and what was merged had been put by a trainer."""
        merged = {
            decision.event.update.job: decision.event.update.key
            for manifest in log
            for decision in manifest.decisions
            if isinstance(decision.event, Merged)
        }
        open_at_the_end = {
            Job(number, slot.generation) for number, slot in enumerate(log[-2].state.slots)
        }
        confirmed = {
            Job(line["slot"], line["generation"])
            for line in self.journalled("confirmed")
            if line["uid"] == log[0].uid
        }
        put = {line["key"] for line in self.journalled("putting")}
        spoilt = {  # closed by a bad update that a test made
            decision.event.update.job
            for manifest in log
            for decision in manifest.decisions
            if isinstance(decision.event, Rejected) and decision.event.update.key not in put
        }
        assert confirmed - merged.keys() - spoilt <= open_at_the_end
        assert set(merged.values()) <= put

    # -- looking at processes -------------------------------------------------------------------

    def process(self, name: str) -> ServerProcess:
        return self.stack.processes[name]

    def restart(self, name: str, **variables: str) -> None:
        """Start a process again and wait until it answers, or has ended already."""
        self.stack.restart(name, **variables)
        process, port = self.process(name), self.stack.http_ports[name]
        wait_for(lambda: accepts(port) or not process.is_running, seconds=90)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.process(name).pid, number)

    def is_frozen(self, name: str) -> bool:
        return psutil.Process(self.process(name).pid).status() == psutil.STATUS_STOPPED

    def log(self, name: str, *, start: int = 0) -> str:
        """What a process has logged, from this byte on."""
        return self.process(name).log.read_bytes()[start:].decode(errors="replace")

    def log_size(self, name: str) -> int:
        return self.process(name).log.stat().st_size

    @contextmanager
    def until_told(self, line: str, *names: str) -> Iterator[None]:
        """Wait, after the block, until each of these processes has logged it."""
        starts = {name: self.log_size(name) for name in names}
        yield
        wait_for(
            lambda: all(line in self.log(name, start=starts[name]) for name in names),
            of=f"{line!r} of {names}",
        )

    def stands_still(self, name: str) -> None:
        """Nothing is merged for the time of a lease, once what was on its way had as long."""
        time.sleep(LEASE_SECONDS)
        merged = self.merged(name)
        time.sleep(LEASE_SECONDS)
        assert self.merged(name) == merged

    def jobs(self, trainer: str) -> list[dict[str, Any]]:
        """What a trainer holds."""
        url = f"http://127.0.0.1:{self.stack.http_ports[trainer]}/jobs"
        with urllib.request.urlopen(url, timeout=JOBS_SECONDS) as answer:
            held: list[dict[str, Any]] = json.load(answer)
        return held

    def journalled(self, event: str) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def sent(self, name: str, *, start: int = 0) -> list[tuple[int, int]]:
        """The training jobs that the scheduler has handed out, from this byte of its log on."""
        pattern = rf"sent kind=TrainJob federation={name} slot=(\d+) generation=(\d+)"
        found = re.findall(pattern, self.log("scheduler", start=start))
        return [(int(slot), int(generation)) for slot, generation in found]

    def files(self, name: str) -> dict[tuple[int, int], list[str]]:
        """Every update file, by its job (slot, generation)."""
        found: dict[tuple[int, int], list[str]] = {}
        for info in self.store.list(f"{name}/updates/"):
            slot, _, generation = info.key.split("/")[2].partition("-")
            found.setdefault((int(slot), int(generation)), []).append(info.key)
        return found


@contextmanager
def world(folder: Path, *, disk_mib: int = DISK_MIB) -> Iterator[World]:
    """Everything up; the bucket on a small disk of its own, where the system allows a mount."""
    data = folder / "s3"
    data.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "fedfa-test", str(data)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    timeout = f"[{{rabbit, [{{consumer_timeout, {CONSUMER_TIMEOUT_SECONDS * 1000:.0f}}}"
    rabbit, s3 = RabbitMQ(folder / "rabbitmq"), SeaweedFS(data)
    (rabbit.folder / "advanced.config").write_text(
        f"{timeout}, {{channel_tick_interval, 2000}}]}}].\n"
    )
    try:
        rabbit.start()
        s3.start()
        with Proxy(rabbit.port) as amqp, Proxy(s3.port) as http:
            journal, slow = folder / "journal", folder / "slow"
            slow.mkdir()
            environment = ENVIRONMENT | {
                "FEDFA_AMQP_URL": f"amqp://guest:guest@127.0.0.1:{amqp.port}/",
                "FEDFA_S3_ENDPOINT": f"http://127.0.0.1:{http.port}",
                "FEDFA_S3_BUCKET": s3.bucket,
                "FEDFA_S3_ACCESS_KEY": s3.access_key,
                "FEDFA_S3_SECRET_KEY": s3.secret_key,
                "FEDFA_TRAINER_JOURNAL": str(journal),
                "FEDFA_TEST_SLOW": str(slow),
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            }
            with patch.dict(os.environ, environment):
                stack = LocalStack(
                    folder,
                    trainers=2,
                    jobs_per_trainer=3,
                    lease_ttl_seconds=LEASE_SECONDS,
                    task_allow="tests.services.tasks",
                )
            with stack:
                store = S3Store(s3.settings())
                trouble = "" if mounted.returncode == 0 else mounted.stderr.strip()
                yield World(stack, rabbit, s3, amqp, http, store, journal, slow, trouble)
    finally:
        s3.stop()
        rabbit.stop()
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(data)], check=True)


class Worlds:
    """The world that the tests of a module share, until one of them fails: it takes it along."""

    def __init__(self, make: Callable[[], AbstractContextManager[World]]) -> None:
        self._make = make
        self._world: World | None = None
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def current(self) -> World:
        if self._world is None:
            self._world = self._cleanup.enter_context(self._make())
        return self._world

    def discard(self) -> None:
        """Whatever state it is in: the next test gets a new one."""
        if self._world is not None:
            for process in self._world.stack.processes.values():
                process.kill()
        self._world = None
        self._cleanup.close()


def tracebacks(here: World) -> list[str]:
    """The logs that hold one. Faults are expected: no process may be surprised by one."""
    return [log.name for log in here.stack.logs.glob("*.log") if "Traceback" in log.read_text()]
