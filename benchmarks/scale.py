"""What an update and a start cost as the model, the window, the clients and the log grow.

    python benchmarks/scale.py --log-folder ~/.cache/fedfa/bench-log    after make bench-setup

A real aggregator on a private RabbitMQ and SeaweedFS, and one federation that is played: its window
is filled, updates are announced one at a time, then a new process takes over. Everything but the
one thing that grows stays at its smallest. Ratios are to the smallest case; more clients and more
versions are not to make an update dearer. The log of 100,000 versions is made by the federation's
own core and encoder, and takes minutes to write: --log-folder keeps it.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from played import ATTEMPT, Played, numbers
from results import Group, options, write
from stage import AGGREGATOR, Stage, announce, cpu_seconds, peak_mib, received, wait

from fedfa import keys, ledger, manifests, submission
from fedfa.canonical import canonical_json, sha256
from fedfa.errors import NotFound
from fedfa.events import Decision, Job, Merged, Update
from fedfa.federation import Federation, found, step
from fedfa.log import Birth, Manifest, ModelRef
from fedfa.merge import window_size
from fedfa.messages import UpdateReady
from fedfa.spec import parse
from fedfa.store import ObjectStore
from fedfa.tensor_files import file_parts
from fedfa.tensors import Template, Tensor
from fedfa.topology import BROADCAST_QUEUE, UPDATES

SLOTS = 4
SMALL_FLOATS, SMALL_WINDOW, SMALL_CLIENTS = 112_000, 5, 100  # 0.45 MB: 45 MB is 100 times more
PLENTY = 1_000_000
WRITERS = 16
UPDATE, CPU, BIRTH, START, PEAK, MANIFEST, FIRST = (
    "ms/update",
    "CPU ms/update",
    "birth s",
    "start to commit s",
    "peak MiB",
    "manifest kB",
    "manifest 0 kB",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--floats", nargs="+", type=int, default=[112_000, 1_120_000, 11_200_000])
    parser.add_argument("--windows", nargs="+", type=int, default=[5, 10, 20, 50])
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--versions", nargs="+", type=int, default=[100, 10_000, 100_000])
    parser.add_argument("--updates", type=int, default=30, help="measured in each case")
    parser.add_argument("--log-folder", type=Path, help="of the bucket with the long logs")
    parser.add_argument("--setup", action="store_true", help="only write the long logs")
    given = parser.parse_args()
    if not given.setup:
        with Stage() as stage:
            dimensions: dict[str, Mapping[str, Callable[[], Played]]] = {
                "the model": {
                    f"{4 * n / 1e6:g} MB": partial(new, stage, num_floats=n) for n in given.floats
                },
                "the window": {f"K = {n}": partial(new, stage, window=n) for n in given.windows},
                "the clients": {
                    f"{n:,} clients": partial(new, stage, num_clients=n) for n in given.clients
                },
            }
            for title, cases in dimensions.items():
                measured = {
                    name: cost(stage, make(), given.updates) for name, make in cases.items()
                }
                write(given.results, "scale", group(title, measured))
    with Stage(bucket_folder=given.log_folder) as stage:
        logs = {f"{n:,} versions": with_log(stage, n) for n in given.versions}
        if not given.setup:
            measured = {name: cost(stage, played, given.updates) for name, played in logs.items()}
            write(given.results, "scale", group("the log", measured))


def group(title: str, measured: dict[str, dict[str, list[float]]]) -> Group:
    smallest = next(iter(measured))
    return Group(title, measured, {UPDATE: [smallest], START: [smallest], PEAK: [smallest]})


def new(
    stage: Stage,
    *,
    name: str | None = None,
    num_floats: int = SMALL_FLOATS,
    window: int = SMALL_WINDOW,
    num_clients: int = SMALL_CLIENTS,
) -> Played:
    fields = {
        "rule": {"name": "fedfa-param", "window": window},
        "concurrency": SLOTS,
        "clients": num_clients,
        "evaluation": {"every_versions": PLENTY},
    }
    name = name or f"scale-{secrets.token_hex(4)}"
    try:
        submitted = manifests.read_submission(stage.store, name)
    except NotFound:
        submitted = submission.submit(stage.store, parse(fields), name)
    template = Template((Tensor("weight", "parameter", "F32", (num_floats,)),))
    return Played(stage.store, submitted, numbers(template))


def cost(stage: Stage, played: Played, num_updates: int) -> dict[str, list[float]]:
    process = stage.start(AGGREGATOR)
    publisher = stage.publisher()
    heard = stage.consumer((BROADCAST_QUEUE, 100))
    results: dict[str, list[float]] = {}
    if manifests.newest(stage.store, played.id) is None:
        init = played.initial()
        started = time.perf_counter()
        publisher.publish(init, UPDATES)
        wait(lambda: received(heard))
        results[BIRTH] = [time.perf_counter() - started]
    for _ in range(window_size(played.submitted.spec) + 1):
        announce(publisher, heard, [next_update(played)])
    milliseconds, cpu = [], 0.0
    for _ in range(num_updates):
        update = next_update(played)
        cpu_before, started = cpu_seconds(process), time.perf_counter()
        announce(publisher, heard, [update])
        milliseconds.append((time.perf_counter() - started) * 1e3)
        cpu += cpu_seconds(process) - cpu_before
    results |= {UPDATE: milliseconds, CPU: [cpu * 1e3 / num_updates], PEAK: [peak_mib(process)]}
    process.stop()
    update = next_update(played)
    started = time.perf_counter()
    process = stage.start(AGGREGATOR)
    announce(publisher, heard, [update])
    results[START] = [time.perf_counter() - started]
    process.stop()
    results[MANIFEST] = [len(manifests.encode(newest(played))) / 1e3]
    results[FIRST] = [len(stage.store.get(keys.manifest(played.id, 0))) / 1e3]
    return results


def newest(played: Played) -> Manifest:
    committed = manifests.newest(played.store, played.id)
    assert committed is not None
    return committed.manifest


def next_update(played: Played) -> UpdateReady:
    """For the first slot's open job."""
    state = newest(played).state
    slot = state.slots[0]
    return played.update(Job(0, slot.generation), client=slot.client, version=state.version)


# -- a long log -----------------------------------------------------------------------------------


def with_log(stage: Stage, versions: int) -> Played:
    """A federation with so many versions; written once."""
    played = new(stage, name=f"log-{versions}")
    if not stage.store.exists(keys.head(played.id)):
        started = time.perf_counter()
        last = write_log(stage.store, played, versions)
        stage.store.put(keys.head(played.id), canonical_json({"n": last.n}).encode())
        print(f"{last.n:,} manifests in {time.perf_counter() - started:.0f} s", flush=True)
    return played


def write_log(store: ObjectStore, played: Played, versions: int) -> Manifest:
    """Manifests as an aggregator's that took one update at a time; returns the last.

    Only what a reader of the newest state needs has files: the last model and its window.
    """
    window = window_size(played.submitted.spec)
    number = versions + window - 1  # the first updates only fill the window
    last: Manifest | None = None
    with ThreadPoolExecutor(WRITERS) as writers:
        log = chain(played, number)
        while part := list(islice(log, 64 * WRITERS)):
            bodies = [(keys.manifest(played.id, each.n), body) for each, body in part]
            list(writers.map(lambda each: store.put(*each), bodies))
            last = part[-1][0]
    assert last is not None
    assert last.model is not None
    parts = file_parts(played.vector, ledger.birth_metadata(birth_of(played)))
    store.upload(last.model.key, parts, digest=last.model.digest)
    for entry in last.state.window:
        parts = file_parts(played.vector)
        store.upload(entry.key, parts, digest=entry.digest)
    return last


def chain(played: Played, number: int) -> Iterator[tuple[Manifest, bytes]]:
    birth = birth_of(played)
    digest = sha256(*file_parts(played.vector, ledger.birth_metadata(birth)))
    update_digest = sha256(*file_parts(played.vector))
    federation = found(played.submitted.spec, birth.clients)
    manifest = Manifest(
        federation=played.id,
        uid=played.submitted.uid,
        n=0,
        previous="",
        writer="bench",
        at=time.time(),
        decisions=(),
        model=ModelRef(0, keys.model(played.id, 0, digest), digest),
        state=federation.state,
        birth=birth,
    )
    body = manifests.encode(manifest)
    yield manifest, body
    for n in range(1, number + 1):
        federation, decision = merged(played, federation, update_digest)
        version = federation.state.version
        manifest = replace(
            manifest,
            n=n,
            previous=sha256(body),
            decisions=(decision,),
            model=ModelRef(version, keys.model(played.id, version, digest), digest),
            state=federation.state,
            birth=None,
        )
        body = manifests.encode(manifest)
        yield manifest, body


def merged(played: Played, federation: Federation, digest: str) -> tuple[Federation, Decision]:
    number = federation.state.num_decisions % SLOTS
    slot = federation.state.slots[number]
    job = Job(number, slot.generation)
    update = Update(
        job=job,
        attempt=ATTEMPT,
        client=slot.client,
        key=keys.update(played.id, job.slot, job.generation, ATTEMPT, digest),
        digest=digest,
        base_version=federation.state.version,
        num_examples=10,
        num_steps=5,
        loss=1.0,
        trainer="played",
        started_at=time.time(),
        train_seconds=0.1,
        delay_seconds=0.0,
    )
    will_step = len(federation.state.window) + 1 >= window_size(played.submitted.spec)
    return step(federation, Merged(update, norm=1.0, step_norm=1.0 if will_step else None))


def birth_of(played: Played) -> Birth:
    return Birth(played.clients, played.vector.template, sha256(b""))


if __name__ == "__main__":
    main()
