"""`make chaos`: one federation, a random fault every few seconds, and what must hold at the end.

    python -m tests.chaos --minutes 30 --seed 1
    python -m tests.chaos --minutes 10 --two-aggregators

Every fault hits real processes: the services, RabbitMQ, the S3 server, or the network between
them; several may overlap. With two aggregators, one of the two freezes every few seconds, often
for so long that the other takes over, and there are no other faults. The seed gives the order of
faults, as far as the machine keeps the pace.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfa import keys, manifests
from fedfa.canonical import sha256
from fedfa.errors import FedfaError
from fedfa.events import Merged, Rejected
from fedfa.log import Manifest
from fedfa.observability import EXIT_FENCED
from fedfa.topology import EVENTS, UPDATES, jobs
from fedfa_scheduler.bucket import delivered_update
from tests.services.faults import SPEC, TRAINERS, WIPE, World, world

NAME = "chaos"
CHANGES: dict[str, Any] = {"delay": {"distribution": "pareto", "shape": 1.5, "unit_seconds": 1.0}}
PAUSE_SECONDS = (0.5, 4.0)  # between two faults
RECOVERY_SECONDS = 120.0  # after the last fault, until updates are merged again
ZOMBIE_SECONDS = 5.0
CALM_SECONDS = 5.0  # after a fault of broker, bucket or network, until everybody is connected
SETTLE_SECONDS = 3.0  # RabbitMQ 3.10 loses a queue if killed within 0.6 s of its declaration
PAUSED_SECONDS = (1, 25)  # the broker gives up on a client after 10 to 15
SECOND = "aggregator-2"
DISK_MIB = 3072  # in memory, once it is full; an hour's updates are a third of it
SHARED = ("rabbitmq", "s3", "amqp", "http")
BROKER = ("rabbitmq", "amqp")

Act = Callable[[World, random.Random], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a subject, for how long, and how it is mended."""

    name: str
    subject: str
    strike: Act
    mend: Act
    seconds: tuple[float, float]


def faults() -> Iterator[Fault]:
    """Every kind there is."""
    yield from (_kill(name) for name in ("aggregator", "scheduler", *TRAINERS))
    yield from (_freeze(name) for name in ("aggregator", "scheduler", *TRAINERS))
    yield from (_end(name) for name in ("aggregator", "scheduler", *TRAINERS))
    yield from (_second(service) for service in ("aggregator", "scheduler"))
    for server in ("rabbitmq", "s3"):
        yield Fault(f"kill -9 {server}", server, _killing(server), _starting(server), (0.2, 3.0))
    yield Fault("wipe the broker's data", "rabbitmq", _wipe_data, _starting("rabbitmq"), (0, 1))
    yield Fault("delete every queue", "rabbitmq", _delete_queues, _nothing, (0, 0))
    yield Fault("memory alarm", "rabbitmq", _alarm("0.00001"), _alarm("0.4"), (3, 8))
    yield Fault("no network to the broker", "amqp", _proxy("amqp", "refuse"), _heal("amqp"), (0, 8))
    yield Fault("broker stalls", "amqp", _proxy("amqp", "stall"), _heal("amqp"), (1, 8))
    yield from (_cut_off(name) for name in TRAINERS)
    yield Fault("no network to the bucket", "http", _proxy("http", "refuse"), _heal("http"), (0, 8))
    yield Fault("bucket stalls", "http", _proxy("http", "stall"), _heal("http"), (1, 8))
    yield Fault("bucket answers 503", "http", _proxy("http", "overload"), _heal("http"), (1, 8))
    yield Fault("disk full", "s3", _fill_disk, _free_disk, (1, 5))
    yield Fault("answers lost", "http", _lose_answers(""), _nothing, (1, 1))
    yield Fault("answers to commits lost", "http", _lose_answers("/manifests/"), _nothing, (1, 1))
    yield Fault("updates announced again", "updates", _announce_again, _nothing, (0, 0))
    yield Fault("bad updates", "updates", _spoil, _nothing, (0, 0))
    yield Fault("poison messages", "updates", _poison, _nothing, (0, 0))


def _kill(name: str) -> Fault:
    def strike(here: World, rng: random.Random) -> None:
        here.process(name).kill()

    return Fault(f"kill -9 {name}", name, strike, _restarting(name), (0.2, 3.0))


def pauses() -> Iterator[Fault]:
    """Of two aggregators, one of which is active."""
    yield from (_freeze(name, seconds=PAUSED_SECONDS) for name in ("aggregator", SECOND))


def _freeze(name: str, *, seconds: tuple[float, float] = (1, 15)) -> Fault:
    def strike(here: World, rng: random.Random) -> None:
        here.signal(name, signal.SIGSTOP)

    def mend(here: World, rng: random.Random) -> None:
        here.signal(name, signal.SIGCONT)

    return Fault(f"freeze {name}", name, strike, mend, seconds)


def _end(name: str) -> Fault:
    def strike(here: World, rng: random.Random) -> None:
        here.signal(name, signal.SIGTERM)

    return Fault(f"SIGTERM {name}", name, strike, _restarting(name), (0.5, 4.0))


def _cut_off(name: str) -> Fault:
    """Its heartbeats end, while the bucket and everybody else are there."""

    def strike(here: World, rng: random.Random) -> None:
        here.amqp.cut_off(f"{name}-".encode())

    return Fault(f"no network to the broker for {name}", "amqp", strike, _heal("amqp"), (1, 12))


def _second(service: str) -> Fault:
    """A second one comes up, waits for the first one to fail, and is killed at last."""
    name = f"{service}-2"

    def strike(here: World, rng: random.Random) -> None:
        if name in here.stack.processes:
            here.stack.restart(name)
        else:
            here.stack.add_standby(service)

    def mend(here: World, rng: random.Random) -> None:
        here.process(name).kill()

    return Fault(f"a second {service}", name, strike, mend, (5, 30))


def _restarting(name: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        here.stack.restart(name)

    return act


def _killing(server: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        (here.rabbit if server == "rabbitmq" else here.s3).kill()

    return act


def _starting(server: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        (here.rabbit if server == "rabbitmq" else here.s3).start()

    return act


def _wipe_data(here: World, rng: random.Random) -> None:
    here.rabbit.kill()
    shutil.rmtree(here.rabbit.folder / "data")


def _delete_queues(here: World, rng: random.Random) -> None:
    here.rabbit.ctl("eval", WIPE)


def _alarm(share: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        here.rabbit.ctl("set_vm_memory_high_watermark", share)

    return act


def _proxy(which: str, what: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        getattr(getattr(here, which), what)()

    return act


def _heal(which: str) -> Act:
    return _proxy(which, "heal")


def _lose_answers(only: str) -> Act:
    def act(here: World, rng: random.Random) -> None:
        here.http.cut_responses(rng.randint(1, 8), only=only.encode())

    return act


def _fill_disk(here: World, rng: random.Random) -> None:
    here.fill_disk()


def _free_disk(here: World, rng: random.Random) -> None:
    here.free_disk()


def _announce_again(here: World, rng: random.Random) -> None:
    submitted = manifests.read_submission(here.store, NAME)
    known = sorted(here.files(NAME))
    some = rng.sample(known, min(len(known), 20))
    letters = [delivered_update(here.store, submitted, *job) for job in some]
    here.publish(*(letter for letter in letters if letter is not None), route=UPDATES)


def _spoil(here: World, rng: random.Random) -> None:
    """Announce another job's file for one that is open."""
    known, head = sorted(here.files(NAME)), here.newest(NAME)
    if not known or head is None:
        return
    submitted = manifests.read_submission(here.store, NAME)
    letter = delivered_update(here.store, submitted, *rng.choice(known))
    if letter is None:
        return
    number = rng.randrange(len(head.state.slots))
    slot, body = head.state.slots[number], here.store.get(letter.key)
    digest = sha256(body)
    changes = {
        "slot": number,
        "generation": slot.generation,
        "client": slot.client,
        "base_version": head.state.version,
        "key": keys.update(NAME, number, slot.generation, letter.attempt, digest),
        "digest": digest,
    }
    here.store.put(str(changes["key"]), body)
    here.publish(letter.model_copy(update=changes), route=UPDATES)


def _poison(here: World, rng: random.Random) -> None:
    for route in (UPDATES, EVENTS, jobs("default")):
        here.publish(rng.randbytes(20), route=route)


def _nothing(here: World, rng: random.Random) -> None:
    """There is nothing to mend."""


@dataclass
class Chaos:
    """Strikes and mends, and starts again whatever ended by itself."""

    here: World
    rng: random.Random
    kinds: tuple[Fault, ...]
    spares: tuple[str, ...] = ("aggregator-2", "scheduler-2")  # that come and go
    struck: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    fenced: int = 0
    _active: list[tuple[float, Fault]] = field(default_factory=list)
    _busy_until: dict[str, float] = field(default_factory=dict)
    mended_at: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        deck: list[Fault] = []  # every kind once, in random order, before any comes again
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._mend_due()
            self._supervise()
            if not deck:
                deck = list(self.kinds)
                self.rng.shuffle(deck)
            fault = next((each for each in deck if self._is_free(each.subject)), None)
            if fault is None:
                time.sleep(0.1)
                continue
            deck.remove(fault)
            self._strike(fault)
            time.sleep(self.rng.uniform(*PAUSE_SECONDS))
        while self._active:
            self._mend_due()
            time.sleep(0.1)
        self._supervise()

    def is_disturbed(self, subject: str) -> bool:
        """Whether a fault concerns this subject now."""
        return any(fault.subject == subject for _, fault in list(self._active))

    def _is_free(self, subject: str) -> bool:
        is_quiet = time.monotonic() > self._busy_until.get(subject, 0.0)
        excluding = {"rabbitmq": BROKER, "amqp": BROKER, "updates": ("rabbitmq", "s3")}
        others = excluding.get(subject, ())
        return is_quiet and not any(self.is_disturbed(each) for each in (subject, *others))

    def _strike(self, fault: Fault) -> None:
        self.struck[fault.name] += 1
        until = time.monotonic() + self.rng.uniform(*fault.seconds)
        self._active.append((until, fault))
        print(f"{time.strftime('%H:%M:%S')} {fault.name}", flush=True)
        fault.strike(self.here, self.rng)

    def _mend_due(self) -> None:
        now = time.monotonic()
        for item in [item for item in self._active if item[0] <= now]:
            _, fault = item
            fault.mend(self.here, self.rng)
            self._active.remove(item)
            self.mended_at[fault.subject] = time.monotonic()
            self._busy_until[fault.subject] = time.monotonic() + SETTLE_SECONDS

    def _supervise(self) -> None:
        for name, process in self.here.stack.processes.items():
            if process.is_running or name in self.spares or self.is_disturbed(name):
                continue
            if process.exit_code == EXIT_FENCED:
                self.fenced += 1
            else:
                self.surprises.append(f"{name} ended with {process.exit_code}")
            self.here.stack.restart(name)


@dataclass
class Watch:
    """Looks at what trainers hold, against the newest manifest."""

    here: World
    chaos: Chaos
    samples: int = 0
    most_open: int = 0
    oldest_zombie: float = 0.0  # in calm
    zombies: set[tuple[str, int, int]] = field(default_factory=set)
    calm_looks: int = 0
    _since: dict[tuple[str, int, int], float] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            with suppress(OSError, ValueError, FedfaError):  # one of them is down
                self._look()

    def _look(self) -> None:
        before = self.here.newest(NAME)
        held = {
            (trainer, int(job["work"]["slot"]), int(job["work"]["generation"]))
            for trainer in TRAINERS
            if not self.chaos.is_disturbed(trainer) and self.here.process(trainer).is_running
            for job in self.here.jobs(trainer)
            if job["work"]["activity"] == "train"
        }
        after = self.here.newest(NAME)
        if before is None or after is None:
            return
        self.samples += 1
        # A job counts as open if it was so at one moment of the look; those opened during it
        # replaced others.
        is_open = {
            (slot, generation) for _, slot, generation in held if _is_open(after, slot, generation)
        }
        self.most_open = max(self.most_open, len(is_open))
        now = time.monotonic()
        closed = {each for each in held if _is_closed(before, each[1], each[2])}
        self.zombies |= closed
        self._since = {each: self._since.get(each, now) for each in closed}
        mended = self.chaos.mended_at
        if any(self.chaos.is_disturbed(subject) for subject in SHARED):
            self._since.clear()
        elif now > CALM_SECONDS + max(mended.get(subject, 0.0) for subject in SHARED):
            self.calm_looks += 1
        for (trainer, _, _), since in self._since.items():
            calm = max(mended.get(subject, 0.0) for subject in (*SHARED, trainer)) + CALM_SECONDS
            self.oldest_zombie = max(self.oldest_zombie, now - max(since, calm))


def _is_open(manifest: Manifest, slot: int, generation: int) -> bool:
    return manifest.state.slots[slot].generation == generation


def _is_closed(manifest: Manifest, slot: int, generation: int) -> bool:
    return manifest.state.slots[slot].generation > generation


def judge(here: World, watch: Watch, chaos: Chaos) -> list[str]:
    """What does not hold. verify() has passed before."""
    log = [entry.manifest for entry in manifests.log(here.store, NAME)]
    merged = [
        decision.event.update
        for manifest in log
        for decision in manifest.decisions
        if isinstance(decision.event, Merged)
    ]
    decided = Counter((update.job.slot, update.job.generation) for update in merged)
    rejected = [
        decision.event.update
        for manifest in log
        for decision in manifest.decisions
        if isinstance(decision.event, Rejected)
    ]
    put = {line["key"] for line in here.journalled("putting")}
    confirmed = {(line["slot"], line["generation"]) for line in here.journalled("confirmed")}
    at_the_stop = {(at, slot.generation) for at, slot in enumerate(log[-2].state.slots)}
    refused = {(update.job.slot, update.job.generation) for update in rejected}
    lost = confirmed - decided.keys() - refused - at_the_stop
    concurrency = int(SPEC["concurrency"])
    return [
        *(f"job {job} was decided {times} times" for job, times in decided.items() if times > 1),
        *(f"job {job} was confirmed, and never decided" for job in sorted(lost)),
        *(
            f"{update.key} was merged, and put by nobody"
            for update in merged
            if update.key not in put
        ),
        *(f"{update.key} is a trainer's, and rejected" for update in rejected if update.key in put),
        *([f"{watch.most_open} open jobs were held"] if watch.most_open > concurrency else []),
        *(
            [f"a zombie lived {watch.oldest_zombie:.1f} s"]
            if watch.oldest_zombie > ZOMBIE_SECONDS
            else []
        ),
        *chaos.surprises,
        *(
            f"a traceback in {log.name}"
            for log in here.stack.logs.glob("*.log")
            if "Traceback" in log.read_text()
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument("--two-aggregators", action="store_true", help="only pauses, of two")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="fedfa-chaos-"))
    print(f"seed {arguments.seed}; logs in {folder}/logs", flush=True)
    with world(folder, disk_mib=DISK_MIB) as here:
        here.must_have_small_disk()
        here.running(NAME, **CHANGES)
        rng = random.Random(arguments.seed)
        if arguments.two_aggregators:
            here.stack.add_standby("aggregator")
            chaos = Chaos(here, rng, tuple(pauses()), spares=())
        else:
            chaos = Chaos(here, rng, tuple(faults()))
        with Watch(here, chaos) as watch:
            chaos.run(arguments.minutes * 60)
            under_fire = here.merged(NAME)
            recovery = here.goes_on(NAME, seconds=RECOVERY_SECONDS)
        log = here.stops_and_verifies(NAME)
        wrong = judge(here, watch, chaos)
        report(chaos, watch, under_fire, recovery, log, confirmed=len(here.journalled("confirmed")))
    for line in wrong:
        print(f"WRONG: {line}")
    if not wrong and arguments.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if wrong else 0)


def report(
    chaos: Chaos,
    watch: Watch,
    under_fire: int,
    recovery: float,
    log: list[Manifest],
    *,
    confirmed: int,
) -> None:
    print("\n| fault | injected and survived |\n|---|---|")
    for name in sorted(fault.name for fault in chaos.kinds):
        print(f"| {name} | {chaos.struck[name]} |")
    print(f"| all | {chaos.struck.total()} |\n")
    state = log[-1].state
    print(f"merged under fire: {under_fire}; first merge after the last fault: {recovery:.1f} s")
    print(f"merged {state.num_merged}, rejected {state.num_rejected}, ", end="")
    print(f"abandoned {state.num_abandoned}; {log[-1].n + 1} manifests verified from version 0")
    print(f"confirmed announcements: {confirmed}; ended by themselves: {chaos.fenced} fenced")
    print(f"most open jobs held at once: {watch.most_open} in {watch.samples} looks")
    print(
        f"zombies seen: {len(watch.zombies)}; the oldest in calm: {watch.oldest_zombie:.1f} s ",
        end="",
    )
    print(f"({watch.calm_looks} looks in calm)")


if __name__ == "__main__":
    main()
