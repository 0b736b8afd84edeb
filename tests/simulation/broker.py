"""The broker in memory: queues, consumers and publishers with the interface of `fedfa.broker`.

It loses nothing that it confirmed, unless the schedule wipes it; but what a dead, stalled or
disconnected consumer did not acknowledge comes again, and hints get lost, late and doubled.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fedfa import messages
from fedfa.broker import Delivery
from fedfa.errors import BrokerUnavailable
from fedfa.messages import AnyMessage
from fedfa.topology import BROADCAST, BROADCAST_QUEUE, DEAD, Queue, Route, queue_of
from tests.simulation.checker import Checker
from tests.simulation.faults import Faults, HasConnections
from tests.simulation.world import Life, Waiters, World

IDLE_SECONDS = 2.0  # a consumer's turn without a delivery


@dataclass(eq=False, slots=True)
class Letter:
    body: bytes
    message: AnyMessage | None
    redelivered: bool = False
    since: int = 0  # number of effects when it was delivered last


@dataclass(eq=False, slots=True)
class SimQueue:
    queue: Queue
    letters: deque[Letter] = field(default_factory=deque)
    consumers: list["SimConsumer"] = field(default_factory=list)

    @property
    def is_single(self) -> bool:
        return self.queue.exclusive or "x-single-active-consumer" in self.queue.arguments


class SimBroker(HasConnections):
    def __init__(self, world: World, faults: Faults, checker: Checker) -> None:
        self.world, self.faults, self.checker = world, faults, checker
        self.queues: dict[str, SimQueue] = {}
        self.consumers: list[SimConsumer] = []  # of living processes

    def queue(self, queue: Queue) -> SimQueue:
        if queue.name not in self.queues:
            self.queues[queue.name] = SimQueue(queue)
        return self.queues[queue.name]

    def accept(self, letter: Letter, route: Route) -> None:
        if route == BROADCAST:
            self._broadcast(letter)
            return
        queue = queue_of(route)
        assert queue is not None, route
        if route == DEAD:
            self.checker.dead_lettered(letter.message)
        waiting = self.queue(queue).letters
        if self.faults.happens(self.faults.mix.reorders):
            waiting.insert(self.world.random.randint(0, len(waiting)), letter)
        else:
            waiting.append(letter)
        self.pump(queue.name)

    def _broadcast(self, letter: Letter) -> None:
        mix, random = self.faults.mix, self.world.random
        for consumer in list(self.consumers):
            if self.faults.happens(mix.drops_hints):
                continue
            copies = 2 if self.faults.happens(mix.duplicates) else 1
            for _ in range(copies):
                if self.faults.happens(mix.reorders):
                    later = self.world.now + random.random() * 3
                    self.world.call_at(later, consumer.hears(letter))
                else:
                    consumer.hears(letter)()

    def pump(self, name: str) -> None:
        """Push what waits to consumers that have room."""
        queue = self.queues[name]
        while queue.letters:
            able = queue.consumers[:1] if queue.is_single else queue.consumers
            able = [consumer for consumer in able if consumer.has_room(name)]
            if not able:
                return
            self.world.random.choice(able).receive(name, queue.letters.popleft())

    def wipe(self) -> None:
        """Everything it holds is gone, and every connection."""
        self.world.note("broker", "is wiped")
        self.checker.wiped()
        for queue in self.queues.values():
            queue.letters.clear()
        for consumer in list(self.consumers):
            consumer.unacked.clear()
            consumer.disconnect()

    def notice_stall(self, life: Life) -> None:
        """Heartbeats fail after a while: then the connection is closed from this side."""
        after = self.world.now + self.world.random.choice((1.0, 6.0, 30.0))

        def close() -> None:
            if life.stalled_until > self.world.now:
                self.disconnect(life)

        self.world.call_at(after, close)

    def disconnect(self, life: Life) -> None:
        for consumer in list(self.consumers):
            if consumer.life is life:
                consumer.disconnect()


class SimConsumer:
    """fedfa.broker.Consumer: an iterator of deliveries, and of None when there are none."""

    def __init__(
        self,
        broker: SimBroker,
        life: Life,
        queues: Sequence[tuple[Queue, int]],
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.life, self._broker, self._world = life, broker, life.world
        self.epoch = 0
        self.is_consuming = self.is_standby = self.is_stopped = False
        self.unacked: dict[Letter, str] = {}
        self._queues = {queue.name: (queue, prefetch) for queue, prefetch in queues}
        self._idle_seconds = idle_seconds
        self._inbox: deque[Delivery] = deque()
        self._waiters: Waiters = []
        self._paused: set[str] = set()
        self._is_suspended = False
        broker.consumers.append(self)
        life.at_death.append(self._end)
        self._world.call_at(self._world.now + self._world.random.random(), self._connect)

    def __iter__(self) -> Iterator[Delivery | None]:
        while not self.is_stopped:
            if not self._inbox:
                self._world.wait(self._waiters, self._idle_seconds)
            self.life.turn_began_at = self._world.now
            yield self._inbox.popleft() if self._inbox else None

    def ready(self) -> list[Delivery]:
        backlog = list(self._inbox)
        self._inbox.clear()
        return backlog

    def pause(self, queue_name: str) -> None:
        self._paused.add(queue_name)
        held = [delivery for delivery in self._inbox if delivery.queue == queue_name]
        self._inbox = deque(each for each in self._inbox if each.queue != queue_name)
        for delivery in held:
            delivery._hand_back()

    def resume(self, queue_name: str) -> None:
        self._paused.discard(queue_name)
        if queue_name in self._broker.queues:
            self._broker.pump(queue_name)

    def suspend(self) -> None:
        self._is_suspended = True
        self.disconnect()

    def unsuspend(self) -> None:
        self._is_suspended = False
        self._world.call_at(self._world.now + 0.05, self._connect)

    # -- for the broker ---------------------------------------------------------------------

    def has_room(self, name: str) -> bool:
        _, prefetch = self._queues[name]
        held = list(self.unacked.values()).count(name)
        return name not in self._paused and held < prefetch

    def receive(self, name: str, letter: Letter) -> None:
        self.unacked[letter] = name
        letter.since = self._world.num_effects
        epoch = self.epoch
        delivery = Delivery(
            body=letter.body,
            queue=name,
            headers={},
            redelivered=letter.redelivered,
            _ack=lambda: self._ack(letter, epoch),
            _hand_back=lambda: self._hand_back(letter, epoch),
        )
        self._inbox.append(delivery)
        self._world.wake(self._waiters)

    def hears(self, letter: Letter) -> Callable[[], None]:
        """The delivery of a broadcast, if it is still connected then."""
        epoch = self.epoch

        def deliver() -> None:
            if self.is_consuming and self.epoch == epoch and BROADCAST_QUEUE.name in self._queues:
                self.receive(BROADCAST_QUEUE.name, letter)
                self._broker.checker.hears(self.life, letter.message)

        return deliver

    def disconnect(self) -> None:
        """What is not acked goes back; the client connects again, unless it is stalled or dead."""
        if not self.is_consuming:
            return
        self._world.note(self.life.name, "loses its connection")
        self._give_back()
        if not self._is_suspended:
            self._connect_later()

    def _connect_later(self) -> None:
        delay = self._world.random.choice((0.1, 2.0))
        at = max(self._world.now, self.life.stalled_until) + delay
        self._world.call_at(at, self._connect)

    def _connect(self) -> None:
        if self.life.is_dead or self.is_consuming or self._is_suspended:
            return
        is_stalled = self.life.stalled_until > self._world.now
        if is_stalled or self._world.now < self._broker.faults.broker_down_until:
            self._connect_later()
            return
        queues = [queue for queue, _ in self._queues.values() if queue is not BROADCAST_QUEUE]
        if any(queue.exclusive and self._broker.queue(queue).consumers for queue in queues):
            self.is_standby = True
            self._connect_later()
            return
        self.is_consuming, self.is_standby = True, False
        self.epoch += 1
        self._world.note(self.life.name, f"consumes (epoch {self.epoch})")
        for queue in queues:
            self._broker.queue(queue).consumers.append(self)
            self._broker.pump(queue.name)

    def _end(self) -> None:
        if self.is_consuming:
            self._give_back()
        self._broker.consumers.remove(self)

    def _give_back(self) -> None:
        self.is_consuming = False
        self._inbox.clear()
        unacked, self.unacked = self.unacked, {}
        for name in self._queues:
            if name in self._broker.queues and self in self._broker.queues[name].consumers:
                self._broker.queues[name].consumers.remove(self)
        for letter, name in reversed(unacked.items()):
            if name in self._broker.queues:
                letter.redelivered = True
                self._broker.queues[name].letters.appendleft(letter)
        for name in self._queues:
            if name in self._broker.queues:
                self._broker.pump(name)

    def _ack(self, letter: Letter, epoch: int) -> None:
        name = self.unacked.get(letter)
        if name == BROADCAST_QUEUE.name:  # of this process alone: nobody sees the difference
            del self.unacked[letter]
            return
        self.life.check()
        self.life.burn()
        self._world.sleep(0.0)
        name = self.unacked.get(letter)
        if epoch != self.epoch or not self.is_consuming or name is None:
            self._world.note(self.life.name, "an ack comes too late")
            return
        kind = letter.message.kind if letter.message else "?"
        self._world.note(self.life.name, f"acks {kind} of {name}")
        del self.unacked[letter]
        self._broker.checker.acked(self.life, name, letter.message, letter.since)
        if name in self._broker.queues:
            self._broker.pump(name)

    def _hand_back(self, letter: Letter, epoch: int) -> None:
        if epoch == self.epoch and self.is_consuming and letter in self.unacked:
            name = self.unacked.pop(letter)
            if name in self._broker.queues:
                letter.redelivered = True
                self._broker.queues[name].letters.appendleft(letter)
                self._broker.pump(name)


class SimPublisher:
    """fedfa.broker.Publisher: confirmed, or BrokerUnavailable after a time-out."""

    def __init__(self, broker: SimBroker, life: Life) -> None:
        self._broker, self._life = broker, life

    def publish(
        self,
        message: AnyMessage | bytes,
        route: Route,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        body = message if isinstance(message, bytes) else messages.encode(message)
        known = messages.decode(message) if isinstance(message, bytes) else message
        while True:
            try:
                self._try(body, known, route, headers)
                break
            except BrokerUnavailable:
                if timeout_seconds is not None:
                    raise
                self._life.world.sleep(0.3)
        self._broker.checker.confirmed(self._life, known, route)

    def counts(self, queue_name: str, *, timeout_seconds: float = 10.0) -> tuple[int, int]:
        self._begin(f"counts {queue_name}")
        queue = self._broker.queues.get(queue_name)
        return (len(queue.letters), len(queue.consumers)) if queue else (0, 0)

    def _try(
        self, body: bytes, message: AnyMessage, route: Route, headers: Mapping[str, str] | None
    ) -> None:
        faults, world = self._broker.faults, self._life.world
        self._begin(message.kind)
        fails = faults.happens(faults.mix.broker_fails)
        if fails and world.random.random() < 0.5:
            raise BrokerUnavailable(f"{message.kind}: simulated")
        self._broker.checker.publishes(self._life, message, route)
        copies = 2 if faults.happens(faults.mix.duplicates) else 1
        if world.trace is not None:
            what = f"publishes {_brief(message)} to {route.exchange}{_why(headers)}"
            world.note(self._life.name, what + (" (twice)" if copies == 2 else ""))
        for _ in range(copies):
            self._broker.accept(Letter(body, message), route)
        if fails:
            raise BrokerUnavailable(f"{message.kind}: simulated, after the effect")

    def _begin(self, what: str) -> None:
        faults, world = self._broker.faults, self._life.world
        self._life.check()
        self._life.burn()
        world.sleep(faults.latency())
        if world.now < faults.broker_down_until:
            world.note(self._life.name, f"{what}: no broker")
            raise BrokerUnavailable(f"{what}: the simulated broker is down")


def _brief(message: AnyMessage) -> str:
    """One line for the trace."""
    names = ("federation", "slot", "generation", "version", "attempt", "n", "closed", "reason")
    known = [f"{name}={getattr(message, name)}" for name in names if hasattr(message, name)]
    return " ".join([message.kind, *known])


def _why(headers: Mapping[str, str] | None) -> str:
    return f" because {headers['fedfa-reason']}" if headers else ""
