"""A real aggregator with a backlog: updates per second, CPU seconds per update, peak memory.

    python benchmarks/aggregator.py                                 0.15, 17.5 and 45 MB
    python benchmarks/aggregator.py --models bert --updates 8       438 MB

A private RabbitMQ and a private SeaweedFS, which shares the processor with what is measured. In
each round, interleaved: the store's own limit (raw GET and PUT of the same bytes), ours one commit
for each update, ours with a backlog that shares commits, and the straightforward way
(plain_aggregator.py). Each is a fresh process that has read its window before the clock starts.
"""

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from measure import Figure, table, template, write

from fedfa import keys, ledger
from fedfa.broker import Consumer, Publisher
from fedfa.federation import Client, found
from fedfa.local.processes import ServerProcess
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.manifests import Birth
from fedfa.messages import InitReady, ModelReady, UpdateReady
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.spec import Submitted, parse
from fedfa.tensors import FlatModel, file_parts, sha256
from fedfa.topology import BROADCAST_QUEUE, UPDATES

WINDOW = 5
ATTEMPT = "1764495000000-0a1b2c3d-000001"
UPDATES_OF = {"lora": 300, "tiny": 40, "resnet18": 24, "bert": 8}
SECONDS = 600.0
LIMIT, PUT, ONE, BACKLOG, PLAIN = (
    "limit: raw GET and PUT",
    "limit: raw PUT",
    "ours, one by one",
    "ours, backlog",
    "straightforward",
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one process did with its updates."""

    per_second: float
    cpu_ms: float
    peak_mib: float


class Bench:
    def __init__(self, rabbit: RabbitMQ, s3: SeaweedFS, folder: Path, model: str) -> None:
        self.rabbit, self.settings, self.folder = rabbit, s3.settings(), folder
        self.store = S3Store(self.settings)
        self.store.ensure_bucket()
        shapes = template(model)
        generator = np.random.default_rng(0)
        floats = generator.standard_normal(shapes.num_floats, dtype=np.float32)
        floats *= np.float32(0.01)
        self.vector = FlatModel(shapes, floats, np.zeros(0, np.int64))
        self.num_updates = UPDATES_OF[model]

    def raw(self, *, with_get: bool) -> Run:
        """The same bytes through the same client, and nothing else."""
        parts = file_parts(self.vector)
        digest = sha256(*parts)
        num = min(self.num_updates, 40)
        started, cpu = time.perf_counter(), time.process_time()
        for _ in range(num):
            if with_get:
                self.store.download("raw/model")
            self.store.upload("raw/model", parts, digest=digest)
        return Run(
            num / (time.perf_counter() - started), (time.process_time() - cpu) * 1e3 / num, 0.0
        )

    def aggregate(self, module: list[str], *, max_batch: int) -> Run:
        """Updates are announced at once; the clock runs from there to the last ModelReady."""
        name = f"bench-{secrets.token_hex(4)}"
        self.rabbit.ctl("add_vhost", name)
        self.rabbit.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        broker = BrokerSettings.model_validate({"url": f"{self.rabbit.url}{name}"})
        total = WINDOW + self.num_updates
        fields = {
            "rule": {"name": "fedfa-param", "window": WINDOW},
            "concurrency": total,
            "clients": total,
            "limits": {"max_batch": max_batch},
        }
        submission = Submitted(
            federation=name, uid="ab" * 16, created_at=time.time(), spec=parse(fields)
        )
        clients = tuple(Client(f"client-{at:04d}", 10) for at in range(total))
        slots = found(submission.spec, clients).state.slots
        body = submission.model_dump_json(by_alias=True).encode()
        self.store.create(keys.spec(name), body)
        birth = ledger.birth_metadata(Birth(clients, self.vector.template, ""))
        parts = file_parts(self.vector, birth)
        digest = sha256(*parts)
        model_key = keys.model(name, 0, digest)
        self.store.upload(model_key, parts, digest=digest)
        updates = [self._update(submission, at, slots[at].client) for at in range(total)]

        log = self.folder / f"{name}.log"
        process = ServerProcess(name, module, log=log, env=self._environment(broker))
        publisher = Publisher(broker, name="bench")
        heard = Consumer(broker, [(BROADCAST_QUEUE, 1000)], name="bench")
        try:
            wait(lambda: heard.is_consuming)
            init = InitReady(
                federation=name, uid=submission.uid, attempt=ATTEMPT, key=model_key, digest=digest
            )
            publisher.publish(init, UPDATES, timeout_seconds=60)
            wait(lambda: messages(heard))
            closed: set[int] = set()
            self._announce(publisher, heard, updates[:WINDOW], closed)
            watched = psutil.Process(process.pid)
            cpu, started = sum(watched.cpu_times()[:2]), time.perf_counter()
            self._announce(publisher, heard, updates[WINDOW:], closed)
            seconds = time.perf_counter() - started
            cpu = sum(watched.cpu_times()[:2]) - cpu
            return Run(
                self.num_updates / seconds, cpu * 1e3 / self.num_updates, peak_mib(process.pid)
            )
        finally:
            for closing in (heard, publisher):
                closing.close()
            process.stop()
            for found_object in self.store.list(f"{name}/"):
                self.store.delete(found_object.key)
            self.rabbit.ctl("delete_vhost", name)

    def _announce(
        self, publisher: Publisher, heard: Consumer, updates: list[UpdateReady], closed: set[int]
    ) -> None:
        for update in updates:
            publisher.publish(update, UPDATES, timeout_seconds=60)
        wanted = closed | {update.slot for update in updates}

        def is_done() -> bool:
            for message in messages(heard):
                closed.update(slot for slot, _ in message.closed)
            return closed >= wanted

        wait(is_done)

    def _update(self, submission: Submitted, slot: int, client: str) -> UpdateReady:
        draft = UpdateReady(
            federation=submission.federation,
            uid=submission.uid,
            slot=slot,
            generation=1,
            attempt=ATTEMPT,
            key="-",
            client=client,
            base_version=0,
            num_examples=10,
            num_steps=5,
            loss=1.0,
            trainer="bench",
            started_at=time.time(),
            train_seconds=0.1,
            delay_seconds=0.0,
        )
        parts = file_parts(self.vector, draft.metadata())
        digest = sha256(*parts)
        key = keys.update(submission.federation, slot, 1, ATTEMPT, digest)
        self.store.upload(key, parts, digest=digest)
        return draft.model_copy(update={"key": key, "digest": digest})

    def _environment(self, broker: BrokerSettings) -> dict[str, str]:
        settings: StoreSettings = self.settings
        assert settings.endpoint
        assert settings.access_key
        assert settings.secret_key
        return {
            **os.environ,
            "FEDFA_AMQP_URL": broker.url.get_secret_value(),
            "FEDFA_S3_ENDPOINT": settings.endpoint,
            "FEDFA_S3_BUCKET": settings.bucket,
            "FEDFA_S3_ACCESS_KEY": settings.access_key.get_secret_value(),
            "FEDFA_S3_SECRET_KEY": settings.secret_key.get_secret_value(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["lora", "tiny", "resnet18"])
    parser.add_argument("--updates", type=int, help="of each run, beside the window's")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = []
    for model in options.models:
        runs = measure(model, rounds=options.rounds, updates=options.updates)
        print(f"\n{model}\n\n{rows(runs)}", flush=True)
        for name, each in runs.items():
            fields = {"per_second": [run.per_second for run in each]}
            fields |= {"cpu_ms": [run.cpu_ms for run in each]}
            fields |= {"peak_mib": [run.peak_mib for run in each]}
            results.append({"model": model, "case": name} | fields)
    write("aggregator", results)


def measure(model: str, *, rounds: int, updates: int | None) -> dict[str, list[Run]]:
    ours = [sys.executable, "-m", "fedfa_aggregator"]
    plain = [sys.executable, str(Path(__file__).with_name("plain_aggregator.py"))]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rabbit, s3 = RabbitMQ(folder / "rabbitmq"), SeaweedFS(folder / "seaweedfs")
        for server in (rabbit, s3):
            server.start()
            stack.callback(server.stop)
        bench = Bench(rabbit, s3, folder, model)
        if updates is not None:
            bench.num_updates = updates
        bench.raw(with_get=False)
        cases: dict[str, Callable[[], Run]] = {
            LIMIT: lambda: bench.raw(with_get=True),
            PUT: lambda: bench.raw(with_get=False),
            ONE: lambda: bench.aggregate(ours, max_batch=1),
            BACKLOG: lambda: bench.aggregate(ours, max_batch=64),
            PLAIN: lambda: bench.aggregate(plain, max_batch=1),
        }
        runs: dict[str, list[Run]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, case in cases.items():
                runs[name].append(case())
        return runs


def rows(runs: dict[str, list[Run]]) -> str:
    def figure(name: str, field: str) -> Figure:
        return Figure(tuple(getattr(run, field) for run in runs[name]))

    put = figure(PUT, "per_second").median
    plain = figure(PLAIN, "cpu_ms").median
    return table(
        ["", "updates/s", "of raw PUT", "CPU ms/update", "times less than plain", "peak MiB"],
        [
            [
                name,
                str(figure(name, "per_second")),
                f"{figure(name, 'per_second').median / put:.0%}",
                str(figure(name, "cpu_ms")),
                f"{plain / figure(name, 'cpu_ms').median:.1f}",
                f"{max(run.peak_mib for run in runs[name]):.0f}",
            ]
            for name in runs
        ],
    )


def messages(consumer: Consumer) -> list[ModelReady]:
    found_messages = []
    for delivery in consumer.ready():
        message = delivery.message()
        delivery.ack()
        if isinstance(message, ModelReady):
            found_messages.append(message)
    return found_messages


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("waited in vain")
        time.sleep(0.001)


if __name__ == "__main__":
    main()
