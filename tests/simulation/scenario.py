"""One seed, one schedule: what is submitted, how many processes there are, and what goes wrong."""

from dataclasses import dataclass
from random import Random
from typing import Any

from fedfa.pools import DEFAULT_POOL
from fedfa.sections import KeepAll, KeepBounded, RetentionChoice
from fedfa.spec import FederationSpec, parse

LEASE_TTL_SECONDS = 10.0
FAR = "far"  # a pool of clients
LONGEST_SECONDS = 400.0  # from the last fault to the end, for a run that goes on by itself


@dataclass(frozen=True, slots=True)
class Scenario:
    """resubmits: the first federation is deleted after its end and submitted again.

    has_two_pools: every second trainer serves the pool FAR alone, the others the default one.
    far_dies: at which second FAR loses its trainers, and for how many.
    stops_at: when somebody asks for the end. calm_at: when faults cease.
    """

    specs: tuple[FederationSpec, ...]
    retention: RetentionChoice  # of all of them
    num_aggregators: int
    num_schedulers: int
    num_trainers: int
    jobs_per_trainer: int
    trainers_start_at: float
    train_seconds: tuple[float, ...]
    has_two_pools: bool
    far_dies: tuple[float, float] | None
    failing_clients: frozenset[str]
    bad_updates: float
    evaluation_fails: float
    stops_at: float | None
    resubmits: bool
    calm_at: float

    @classmethod
    def draw(cls, random: Random) -> "Scenario":
        resubmits = random.random() < 0.1
        is_bounded = not resubmits and random.random() < 0.25
        retention = _bounded(random) if is_bounded else KeepAll()
        number = random.choice((1, 1, 1, 1, 1, 2))
        has_two_pools = random.random() < 0.08
        far_dies = random.uniform(0, 6), random.choice((30.0, 60.0, float("inf")))
        specs = tuple(_spec(random) for _ in range(number))
        endless = any(not spec.stop.model_dump(exclude_none=True) for spec in specs)
        return cls(
            specs=specs,
            retention=retention,
            num_aggregators=random.choice((1, 2, 2)),
            num_schedulers=random.choice((1, 1, 2)),
            num_trainers=random.choice((2, 2, 3)),
            jobs_per_trainer=random.choice((1, 1, 2)),
            trainers_start_at=random.choice((0.0,) * 9 + (15.0,)),
            train_seconds=random.choice(((0.5, 1.0), (0.5, 3.0), (1.0, 6.0))),
            has_two_pools=has_two_pools,
            far_dies=far_dies if has_two_pools and random.random() < 0.7 else None,
            failing_clients=frozenset({"client-0001"} if random.random() < 0.15 else ()),
            bad_updates=random.choice((0.0, 0.0, 0.15)),
            evaluation_fails=random.choice((0.0, 0.0, 0.0, 0.3)),
            stops_at=random.uniform(0, 8) if endless or random.random() < 0.15 else None,
            resubmits=resubmits,
            calm_at=random.choice((5.0, 9.0, 16.0)),
        )

    def spec(self, drawn: FederationSpec) -> FederationSpec:
        """A federation's spec as submitted."""
        changes: dict[str, Any] = {"retention": self.retention}
        if self.failing_clients and drawn.clients == drawn.concurrency:
            changes["clients"] = drawn.concurrency + 1  # a round of all would wait for it for ever
        if self.has_two_pools:  # either could keep every slot busy
            far = tuple(f"client-{at:04d}" for at in range(drawn.concurrency))
            changes |= {"clients": 2 * drawn.concurrency, "pools": {FAR: far}}
        return drawn.model_copy(update=changes)

    def pools_of(self, trainer: str) -> str:
        return FAR if self.has_two_pools and int(trainer[-1]) % 2 else DEFAULT_POOL


def _bounded(random: Random) -> KeepBounded:
    return KeepBounded(
        keep_last=random.choice((1, 1, 2)),
        keep_every=random.choice((0, 0, 2)),
        min_age_seconds=random.choice((0.0, 1.0, 4.0)),
    )


def _spec(random: Random) -> FederationSpec:
    stop: dict[str, Any] = random.choice(
        (
            {"updates": random.randint(2, 5)},
            {"updates": random.randint(3, 6)},
            {"versions": random.randint(2, 4)},
            {"updates": 8, "target": {"metric": "accuracy", "value": 0.2}},
            {"wall_seconds": random.uniform(2, 12)},
            {},
        )
    )
    concurrency = random.choice((2, 3))
    fields = {
        "task": {"name": "tests.simulation.task:Tiny"},
        "rule": _rule(random, concurrency),
        "concurrency": concurrency,
        "clients": concurrency + random.choice((0, 2, 3)),
        "seed": random.randrange(1000),
        "evaluation": {"every_versions": random.choice((2, 4, 8))},
        "stop": stop,
        "limits": {
            "max_attempts": random.choice((2, 3)),
            "set_aside_after": 2,
            "set_aside_decisions": 5,
            "max_batch": random.choice((2, 16)),
        },
    }
    return parse(fields)


def _rule(random: Random, concurrency: int) -> dict[str, Any]:
    """Half of all runs are FedFa's own; the other rules differ in which slots wait for which."""
    window = random.choice((1, 2, 2, 3))
    flushed = {"window": min(window, concurrency), "refill": "at_flush"}
    return random.choice(
        (
            {"name": "fedfa-delta", "window": window},
            {"name": "fedfa-delta", "window": window, "staleness": {"kind": "polynomial"}},
            {"name": "fedfa-param", "window": window},
            {"name": "fedbuff", "window": window},
            {"name": "fedbuff", **flushed},
            {"name": "port", **flushed},
            {"name": "fedavg"},
            {"name": "fedasync"},
        )
    )
