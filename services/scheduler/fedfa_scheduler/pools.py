"""Which pools have trainers, and what follows from it. PURE: signs of life in, verdicts out.

A pool lives while somebody consumes its queue, or while a trainer that serves it is heard: one
that is busy consumes nothing. It is silent once work has waited in it for long without either.
A pool that nobody needs is neither, so it may be scaled to nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from fedfa.events import Abandoned, Job
from fedfa.federation import step
from fedfa.messages import MarkPool
from fedfa_scheduler.known import Known
from fedfa_scheduler.leases import Lease


@dataclass(slots=True)
class Signs:
    """What one pool showed, and when. waits_since: None while no work waits in it."""

    seen_at: float = float("-inf")
    counted_at: float = float("-inf")
    waits_since: float | None = None


class Pools:
    """lives_seconds: how long a sign of life is good for."""

    def __init__(self, *, lives_seconds: float, down_after_seconds: float) -> None:
        self._lives_seconds = lives_seconds
        self._down_after_seconds = down_after_seconds
        self._signs: dict[str, Signs] = {}

    def seen(self, pool: str, now: float) -> None:
        """A trainer of the pool was heard."""
        self._signs.setdefault(pool, Signs()).seen_at = now

    def counted(self, pool: str, now: float, *, has_work: bool, num_consumers: int) -> None:
        """Its queue was looked at; has_work: some of its work has no trainer."""
        signs = self._signs.setdefault(pool, Signs())
        if not has_work:
            signs.waits_since = None
        elif signs.waits_since is None or now - signs.counted_at > self._lives_seconds:
            signs.waits_since = now
        signs.counted_at = now
        if num_consumers > 0:
            signs.seen_at = now

    def lives(self, pool: str, now: float) -> bool:
        signs = self._signs.get(pool)
        return signs is not None and now - signs.seen_at <= self._lives_seconds

    def is_silent(self, pool: str, now: float, *, since: float) -> bool:
        """since: what could be seen before that does not count."""
        signs = self._signs.get(pool)
        if signs is None or signs.waits_since is None:
            return False
        return now - max(signs.seen_at, signs.waits_since, since) >= self._down_after_seconds


def pools_to_count(federations: Iterable[Known]) -> set[str]:
    """The pools whose queues hold work, or on whose life a federation depends."""
    pools = set()
    for known in federations:
        pools |= {lease.pool for lease in known.leases.values() if lease.stage == "queued"}
        if known.is_alive and len(known.pools) > 1:
            pools |= known.pools
    return pools


def pools_down(federations: Iterable[Known]) -> set[str]:
    """The pools whose clients are not sampled, in any federation."""
    values = [known.value for known in federations if known.is_alive]
    return {
        name
        for value in values
        if value is not None
        for name, pool in value.state.pools.items()
        if pool.down
    }


def marks(known: Known, pools: Pools, now: float, *, since: float | None) -> Iterator[MarkPool]:
    """The changes that a running federation's log does not show yet.

    A pool is marked as down only while another one lives: with all of them gone it is better to
    wait. since: from when on every sign of life was seen; None while some may be unseen.
    """
    value = known.value
    if value is None or not known.is_alive or len(known.pools) == 1:
        return
    living = {pool for pool in known.pools if pools.lives(pool, now)}
    for pool in sorted(known.pools):
        outcome: Literal["pool_down", "pool_up"]
        if value.is_down(pool) and pool in living:
            outcome = "pool_up"
        elif value.is_down(pool) or not living or since is None:
            continue
        elif pools.is_silent(pool, now, since=since):
            outcome = "pool_down"
        else:
            continue
        yield MarkPool(
            federation=known.id,
            uid=known.submission.uid,
            pool=pool,
            change=value.num_changes(pool) + 1,
            outcome=outcome,
        )


def stranded(known: Known, pools: Pools, now: float) -> Iterator[Lease]:
    """Unclaimed jobs of dead pools whose slots others can use now.

    As many as there are clients for: the core itself says who would be next.
    """
    value = known.value
    if value is None or not known.is_alive:
        return
    if not any(value.is_down(pool) for pool in known.pools):
        return
    if not any(pools.lives(pool, now) and not value.is_down(pool) for pool in known.pools):
        return
    given_up = [lease for lease in known.leases.values() if lease.stage == "given_up"]
    waiting = [
        lease
        for lease in known.leases.values()
        if lease.is_unclaimed and value.is_down(lease.pool) and not pools.lives(lease.pool, now)
    ]
    for lease in given_up + waiting:
        if lease.work.activity != "train":
            continue
        job = Job(lease.work.slot, lease.work.generation)
        value, decision = step(value, Abandoned(job, ""))
        if any(value.is_down(value.pool_of(opened.client)) for opened in decision.opened):
            return
        if lease.stage != "given_up":
            yield lease
