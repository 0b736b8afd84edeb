"""One seed, one schedule: what is submitted, how many processes there are, and what goes wrong."""

from dataclasses import dataclass
from random import Random
from typing import Any

from fedfa.spec import FederationSpec, parse

LEASE_TTL_SECONDS = 10.0
LONGEST_SECONDS = 400.0  # from the last fault to the end, for a run that goes on by itself


@dataclass(frozen=True, slots=True)
class Scenario:
    """resubmits: the first federation is deleted after its end and submitted again.

    stops_at: when somebody asks for the end. calm_at: when faults cease.
    """

    specs: tuple[FederationSpec, ...]
    num_aggregators: int
    num_schedulers: int
    num_trainers: int
    jobs_per_trainer: int
    trainers_start_at: float
    train_seconds: tuple[float, ...]
    failing_clients: frozenset[str]
    bad_updates: float
    evaluation_fails: float
    stops_at: float | None
    resubmits: bool
    calm_at: float

    @classmethod
    def draw(cls, random: Random) -> "Scenario":
        specs = tuple(_spec(random) for _ in range(random.choice((1, 1, 1, 1, 2))))
        endless = any(not spec.stop.model_dump(exclude_none=True) for spec in specs)
        return cls(
            specs=specs,
            num_aggregators=random.choice((1, 2, 2)),
            num_schedulers=random.choice((1, 1, 2)),
            num_trainers=random.choice((2, 3)),
            jobs_per_trainer=random.choice((1, 1, 2)),
            trainers_start_at=random.choice((0.0, 0.0, 0.0, 0.0, 0.0, 25.0)),
            train_seconds=random.choice(((0.5, 1.0), (0.5, 3.0), (1.0, 8.0))),
            failing_clients=frozenset({"client-0001"} if random.random() < 0.15 else ()),
            bad_updates=random.choice((0.0, 0.0, 0.15)),
            evaluation_fails=random.choice((0.0, 0.0, 0.0, 0.3)),
            stops_at=random.uniform(0, 15) if endless or random.random() < 0.15 else None,
            resubmits=random.random() < 0.1,
            calm_at=random.choice((8.0, 15.0, 30.0)),
        )


def _spec(random: Random) -> FederationSpec:
    stop: dict[str, Any] = random.choice(
        (
            {"updates": random.randint(4, 10)},
            {"updates": random.randint(4, 10)},
            {"versions": random.randint(3, 7)},
            {"updates": 12, "target": {"metric": "accuracy", "value": 0.3}},
            {"wall_seconds": random.uniform(3, 25)},
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
        "evaluation": {"every_versions": random.choice((2, 3, 5))},
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
