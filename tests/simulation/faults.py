"""What goes wrong in one schedule: a seeded mix, so that each fault also occurs without others."""

from dataclasses import dataclass
from random import Random

from tests.simulation.world import Host, Life, World

SLOW = ((0.90, 0.02), (0.98, 0.3), (1.0, 4.0))  # (quantile, at most so many seconds)


@dataclass(frozen=True, slots=True)
class Mix:
    """Probabilities for each effect, and mean seconds between two events; 0 switches one off."""

    store_fails: float  # no answer; half of them after the effect
    breaks_objects: float  # reads after which this object alone gives no answer for a while
    broker_fails: float  # no confirm; half of them after the effect
    duplicates: float  # of messages
    reorders: float
    drops_hints: float
    is_slow: bool
    crash: float
    stall: float
    disconnect: float
    wipe: float
    store_outage: float
    broker_outage: float
    clock_jump: float
    crash_roles: tuple[str, ...]
    stall_roles: tuple[str, ...]

    @classmethod
    def draw(cls, random: Random) -> "Mix":
        def sometimes(value: float, *, share: float = 0.4) -> float:
            return value if random.random() < share else 0.0

        roles = ("aggregator", "scheduler", "trainer")
        return cls(
            store_fails=sometimes(0.03),
            breaks_objects=sometimes(0.01, share=0.2),
            broker_fails=sometimes(0.05),
            duplicates=sometimes(0.1),
            reorders=sometimes(0.1),
            drops_hints=sometimes(random.choice((0.1, 0.5, 1.0))),
            is_slow=random.random() < 0.5,
            crash=sometimes(random.choice((2.0, 4.0, 10.0)), share=0.6),
            stall=sometimes(random.choice((3.0, 8.0)), share=0.4),
            disconnect=sometimes(6.0),
            wipe=sometimes(random.choice((4.0, 12.0)), share=0.3),
            store_outage=sometimes(8.0, share=0.2),
            broker_outage=sometimes(8.0, share=0.2),
            clock_jump=sometimes(5.0, share=0.2),
            crash_roles=tuple(random.sample(roles, random.choice((1, 3)))),
            stall_roles=tuple(random.sample(roles, random.choice((1, 3)))),
        )


class Faults:
    """Draws what happens to each effect, and plans the events of the world's time."""

    def __init__(self, world: World, mix: Mix) -> None:
        self.world, self.mix = world, mix
        self.store_down_until = self.broker_down_until = 0.0
        self._unreadable_until: dict[str, float] = {}  # by key

    def happens(self, probability: float) -> bool:
        return (
            probability > 0 and not self.world.is_calm and self.world.random.random() < probability
        )

    def is_unreadable(self, key: str) -> bool:
        """Whether the bucket gives no answer for this object, whatever it says of all others."""
        if self.happens(self.mix.breaks_objects):
            seconds = self.world.random.choice((1.0, 5.0, 25.0))
            self._unreadable_until.setdefault(key, self.world.now + seconds)
        return not self.world.is_calm and self.world.now < self._unreadable_until.get(key, 0.0)

    def latency(self) -> float:
        random = self.world.random
        if self.world.is_calm or not self.mix.is_slow:
            return random.random() * 0.02
        quantile = random.random()
        return random.random() * next(most for share, most in SLOW if quantile <= share)

    def plan(self, hosts: list[Host], broker: "HasConnections", until: float) -> None:
        mix, random = self.mix, self.world.random
        mortal = [host for host in hosts if host.role in mix.crash_roles]
        pausing = [host for host in hosts if host.role in mix.stall_roles]

        def crash() -> None:
            life = random.choice(mortal).life
            if random.random() < 0.3:
                life.die()
            else:  # in the middle of whatever it does next
                life.fuel = random.randint(1, 25)

        def stall() -> None:
            life = random.choice(pausing).life
            seconds = random.choice((0.5, 4.0, 8.0, 15.0, 25.0))
            if random.random() < 0.3 and not life.is_dead:
                life.stall(seconds)
            else:  # in the middle of whatever it does next
                life.stalls_after = (random.randint(1, 25), seconds)

        def disconnect() -> None:
            broker.disconnect(random.choice(hosts).life)

        def jump() -> None:
            host = random.choice(hosts)
            host.clock_offset += random.choice((1.0, 6.0, 12.0, 60.0))  # as after a suspend
            host.unix_offset += random.choice((-60.0, -5.0, 5.0, 60.0))
            self.world.note(host.name, "its clocks jump")

        def store_outage() -> None:
            self.store_down_until = self.world.now + random.choice((1.0, 4.0, 12.0))
            self.world.note("store", f"is out until {self.store_down_until:.1f}")

        def broker_outage() -> None:
            self.broker_down_until = self.world.now + random.choice((1.0, 4.0, 12.0))
            self.world.note("broker", f"is out until {self.broker_down_until:.1f}")
            for host in hosts:
                broker.disconnect(host.life)

        for interval, event in (
            (mix.crash, crash),
            (mix.stall, stall),
            (mix.disconnect, disconnect),
            (mix.wipe, broker.wipe),
            (mix.clock_jump, jump),
            (mix.store_outage, store_outage),
            (mix.broker_outage, broker_outage),
        ):
            at = 0.0
            while interval and (at := at + random.expovariate(1 / interval)) < until:
                self.world.call_at(at, event)
        self.world.call_at(until, self._calm)

    def _calm(self) -> None:
        self.world.note("world", "is calm from now on")
        self.world.is_calm = True
        self.store_down_until = self.broker_down_until = 0.0


class HasConnections:
    """What faults do to a broker."""

    def notice_stall(self, life: Life) -> None:
        raise NotImplementedError

    def disconnect(self, life: Life) -> None:
        raise NotImplementedError

    def wipe(self) -> None:
        raise NotImplementedError
