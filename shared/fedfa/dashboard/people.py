"""Who works on a federation and who takes part in it, for the page.

Made from a Follower. live: what the scheduler knows (an entry of /federations), or None.
"""

from math import sqrt
from typing import Any

from fedfa.dashboard.bounded import ClientTotals, TrainerTotals
from fedfa.dashboard.follower import Follower

MOST_CLIENTS = 100  # those that were served least
MOST_SLOTS = 200
CURVE = 100  # points of the clients' curve

Json = dict[str, Any]


def leases(live: Json | None) -> list[Json]:
    """Work that is open."""
    return list(live["jobs"]) if live else []


def slots(follower: Follower, live: Json | None) -> list[Json]:
    """Whom each slot is open for, since when, and what is known about that job."""
    if follower.newest is None:
        return []
    created_at = follower.submission.created_at
    of_job = {
        (each["slot"], each["generation"]): each for each in leases(live) if each["task"] == "train"
    }
    shown = []
    for number, slot in enumerate(follower.newest.state.slots[:MOST_SLOTS]):
        lease = of_job.get((number, slot.generation), {})
        since = follower.openings.since(number, slot.generation)
        shown.append(
            {
                "slot": number,
                "generation": slot.generation,
                "client": slot.client,
                "pool": follower.pool_of.get(slot.client),
                "opened_version": slot.opened_at,
                "opened_at": None if since is None else round(since - created_at, 3),
                "stage": lease.get("stage"),
                "trainer": lease.get("trainer"),
                "failures": lease.get("failures", 0),
                "error": lease.get("error"),
            }
        )
    return shown


def _busy(trainer: TrainerTotals, until: float, coverage: float) -> float:
    """The share of its time that it trained; what was not read is taken to be like the rest."""
    span = max(until - trainer.first_started, 1e-9)
    return round(min(1.0, trainer.busy_seconds / max(coverage, 1e-9) / span), 4)


def trainers(follower: Follower, live: Json | None) -> list[Json]:
    """By name: those that finished a job, and those that are at work."""
    if follower.newest is None:
        return []
    created_at = follower.submission.created_at
    now: dict[str, list[str]] = {}
    for each in leases(live):
        if each["trainer"] and each["stage"] == "claimed":
            what = each["client"] if each["task"] == "train" else each["task"]
            now.setdefault(each["trainer"], []).append(what)
    found = follower.totals.trainers
    names = sorted(found.keys() | now.keys())
    shown = []
    for name in names:
        totals = found.get(name)
        shown.append(
            {
                "name": name,
                "pool": follower.pool_of.get(totals.client) if totals else None,
                "merged": totals.merged if totals else 0,
                "refused": totals.refused if totals else 0,
                "busy": _busy(totals, follower.newest.at, follower.coverage) if totals else None,
                "last_at": round(totals.last_at - created_at, 3) if totals else None,
                "now": now.get(name, []),
            }
        )
    return shown


def pools(follower: Follower) -> list[Json]:
    """By name. A pool's trainers are those whose newest job was of one of its clients."""
    if follower.newest is None:
        return []
    totals, state, pool_of = follower.totals, follower.newest.state, follower.pool_of
    shown: dict[str, Json] = {
        pool: {
            "name": pool,
            "clients": 0,
            "merged": 0,
            "refused": 0,
            "open": 0,
            "trainers": 0,
            "busy": None,
            "down": pool in state.pools and state.pools[pool].down,
        }
        for pool in sorted(set(pool_of.values()))
    }
    for name, pool in pool_of.items():
        client = totals.clients.get(name, ClientTotals())
        shown[pool]["clients"] += 1
        shown[pool]["merged"] += client.merged
        shown[pool]["refused"] += client.refused
    for slot in state.slots:
        if slot.client in pool_of:
            shown[pool_of[slot.client]]["open"] += 1
    busy: dict[str, list[float]] = {}
    for trainer in totals.trainers.values():
        if trainer.client in pool_of:
            share = _busy(trainer, follower.newest.at, follower.coverage)
            busy.setdefault(pool_of[trainer.client], []).append(share)
    for pool, shares in busy.items():
        shown[pool]["trainers"] = len(shares)
        shown[pool]["busy"] = round(sum(shares) / len(shares), 4)
    return list(shown.values())


def clients(follower: Follower) -> Json:
    """How often each took part: a curve over all of them, and those that were served least."""
    if follower.newest is None or follower.birth is None:
        return {"count": 0, "mean": None, "starved": 0, "curve": [], "rows": []}
    totals, state = follower.totals.clients, follower.newest.state
    every = [(totals.get(client.name, ClientTotals()), client) for client in follower.birth.clients]
    every.sort(key=lambda each: (each[0].merged, each[1].name))
    merged = [each.merged for each, _ in every]
    mean = sum(merged) / len(merged)
    least = mean - 3 * sqrt(mean)  # fewer than that is rare where all have the same chance
    last = len(merged) - 1
    picks = range(min(CURVE, len(merged)))
    return {
        "count": len(every),
        "mean": round(mean, 3),
        "starved": sum(count < least for count in merged),
        "curve": [merged[at * last // max(1, len(picks) - 1)] for at in picks],
        "rows": [
            {
                "name": client.name,
                "pool": client.pool,
                "examples": client.num_examples,
                "merged": counted.merged,
                "refused": counted.refused,
                "last_version": counted.last_version,
                "starved": counted.merged < least,
                "set_aside": client.name in state.set_aside,
            }
            for counted, client in every[:MOST_CLIENTS]
        ],
    }
