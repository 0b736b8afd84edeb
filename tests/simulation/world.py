"""Virtual time and processes that are greenlets: one seed, one order of events.

Every effect of a process (a store operation, a publish, an ack) is a switch point: others may run
before it, the process may be killed there, and the effect or its answer may fail.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
STEPS = 16
LOCK_SECONDS = 1.0  # waited for a lock, whatever the timeout: fewer steps
UNIX_EPOCH = 1_764_495_000.0  # what virtual second 0 is


class Crash(BaseException):
    """kill -9: nothing of the process runs on. (`finally` blocks run, but their effects fail.)"""


class Task:
    """One thread of a process. token changes whenever it runs: older wake-ups are void."""

    __slots__ = ("body", "life", "token")

    def __init__(self, life: "Life", body: greenlet) -> None:
        self.life, self.body, self.token = life, body, 0


Waiters = list[tuple[Task, int]]


class World:
    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.num_effects = 0
        self.is_calm = False  # no more faults
        self.problems: list[str] = []  # of processes that died of an error they should handle
        self.trace: list[str] | None = [] if keeps_trace else None
        self._heap: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._count = 0
        self._hub = getcurrent()
        self._current: Task | None = None

    def note(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.3f}  {who:<13} {what}")

    def run(self, is_over: Callable[[], bool], *, deadline: float) -> bool:
        """Until it is over, which is asked now and then. False after the deadline."""
        while not is_over():
            for _ in range(STEPS):
                if self._heap[0][0] > deadline:
                    return False
                self._step()
        return True

    def _step(self) -> None:
        at, _, task, token, action = heappop(self._heap)
        if task is None:
            assert action is not None
            if at > self.now:
                self.now = at
            action()
            return
        life = task.life
        if task.token != token or life.is_dead:
            return
        if life.stalled_until > at:
            self._push(life.stalled_until, task, token)
            return
        if at > self.now:
            self.now = at
        task.token += 1
        self._current = task
        task.body.switch()
        self._current = None

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Not in any process: may kill, but not sleep."""
        self._push(at, None, 0, action)

    def _push(
        self, at: float, task: Task | None, token: int, action: Callable[[], None] | None = None
    ) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, task, token, action))

    # -- for tasks --------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        task = self._current
        assert task is not None, "outside of every process"
        self._push(self.now + seconds, task, task.token)
        self._switch_away(task)

    def wait(self, waiters: Waiters, timeout: float | None) -> None:
        """Until somebody wakes these waiters, or for a while."""
        task = self._current
        assert task is not None, "outside of every process"
        waiters.append((task, task.token))
        if timeout is not None:
            self._push(self.now + timeout, task, task.token)
        self._switch_away(task)

    def wake(self, waiters: Waiters) -> None:
        for task, token in waiters:
            self._push(self.now + self.random.random() * 0.01, task, token)
        waiters.clear()

    def _switch_away(self, task: Task) -> None:
        if task.life.is_dead:
            raise Crash
        self._hub.switch()

    def spawn(self, life: "Life", body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except Crash:
                life.die()
            except Exception as error:  # the process would end with a traceback
                life.failed(error)

        task = Task(life, greenlet(run, self._hub))
        life.tasks.append(task)
        self._push(self.now + self.random.random() * 0.01, task, task.token)

    def kill(self, task: Task) -> None:
        """Unwind it. From the hub only."""
        if task.body:  # it began, and did not end
            previous, self._current = self._current, task
            task.body.throw(Crash)
            self._current = previous


class Host:
    """Where a process is started again and again. Its clocks may be wrong, and jump."""

    def __init__(
        self, world: World, name: str, boot: Callable[["Life"], Callable[[], None]], role: str
    ) -> None:
        self.world, self.name, self.role, self._boot = world, name, role, boot
        self.num_starts = 0
        self.clock_offset = world.random.uniform(0, 1e6)
        self.unix_offset = 0.0
        self.gone_until = 0.0
        self.life = Life(self)
        self.life.is_dead = True
        self.allowed_deaths: tuple[type[Exception], ...] = ()
        self.at_stall: Callable[[Life], None] = lambda life: None

    def leave(self, seconds: float) -> None:
        """Its process is killed, and starts again only after so many seconds."""
        self.world.note(self.name, f"is gone for {seconds:.0f} s")
        self.gone_until = self.world.now + seconds
        self.life.die()
        if seconds < float("inf"):
            self.world.call_at(self.gone_until, self.start)

    def start(self) -> None:
        if not self.life.is_dead or self.world.now < self.gone_until:
            return
        self.num_starts += 1
        life = self.life = Life(self)
        self.world.note(self.name, f"starts (number {self.num_starts})")
        self.world.spawn(life, lambda: self._boot(life)())

    def restart_later(self) -> None:
        world = self.world
        world.call_at(world.now + world.random.choice((0.05, 0.5, 3.0, 12.0)), self.start)


class Life:
    """One start of a process, until it is killed. What it knows ends with it."""

    def __init__(self, host: Host) -> None:
        self.host, self.world, self.name = host, host.world, host.name
        self.is_dead = False
        self.stalled_until = 0.0
        self.last_stall = float("-inf")  # when the last one ended, or ends
        self.turn_began_at = 0.0  # of its main loop
        self.fuel: int | None = None  # effects until it is killed
        self.stalls_after: tuple[int, float] | None = None  # effects, and seconds
        self.tasks: list[Task] = []
        self.at_death: list[Callable[[], None]] = []
        self.state: dict[str, Any] = {}  # of whoever simulates a part of this process

    def clock(self) -> float:
        return self.world.now + self.host.clock_offset

    def unix(self) -> float:
        return UNIX_EPOCH + self.world.now + self.host.unix_offset

    def check(self) -> None:
        if self.is_dead:
            raise Crash

    def die(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.world.note(self.name, "is killed")
        for action in self.at_death:
            action()
        self.world.call_at(self.world.now, self._unwind)
        self.host.restart_later()

    def _unwind(self) -> None:
        for task in self.tasks:
            self.world.kill(task)

    def failed(self, error: Exception) -> None:
        if not isinstance(error, self.host.allowed_deaths):
            self.world.problems.append(f"{self.name} died of {error!r}")
        self.world.note(self.name, f"ends: {error!r}")
        self.die()

    def stall(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.world.note(self.name, f"stalls for {seconds:.1f} s")
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)
        self.last_stall = self.stalled_until
        self.host.at_stall(self)

    def burn(self) -> None:
        """One effect of this process is about to happen: is it the one it never reaches?"""
        self.world.num_effects += 1
        if self.stalls_after is not None and not self.world.is_calm:
            effects, seconds = self.stalls_after
            self.stalls_after = (effects - 1, seconds) if effects > 1 else None
            if self.stalls_after is None:
                self.stall(seconds)
        if self.fuel is not None:
            self.fuel -= 1
            if self.fuel <= 0 and not self.world.is_calm:
                self.die()
                raise Crash


class SimSignal:
    """threading.Event, for greenlets."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False
        self._waiters: Waiters = []

    def set(self) -> None:
        self._is_set = True
        self._world.wake(self._waiters)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._world.wait(self._waiters, timeout)
        return self._is_set


class SimLock:
    """threading.Lock, for greenlets. Who did not get it at once waits until it may be free."""

    def __init__(self, world: World) -> None:
        self._world, self._is_taken = world, False
        self._waiters: Waiters = []

    def acquire(self, *, timeout: float) -> bool:
        """False after a wait, however it ended: whoever wants it asks again."""
        if self._is_taken:
            self._world.wait(self._waiters, LOCK_SECONDS)
            return False
        self._is_taken = True
        return True

    def release(self) -> None:
        self._is_taken = False
        self._world.wake(self._waiters)
