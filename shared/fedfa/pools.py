"""Which pool of trainers each client belongs to, as the spec says. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from fedfa.errors import InvalidSpec

DEFAULT_POOL = "default"  # of clients that the spec puts nowhere, and of work for any trainer


def assign(pools: Mapping[str, Sequence[str]], clients: Iterable[str]) -> dict[str, str]:
    """Client -> pool. pools: pool -> patterns of client names, as in "hospital-a-*".

    Raises InvalidSpec when a client fits two pools, or a pattern no client.
    """
    names = list(clients)
    assigned = dict.fromkeys(names, DEFAULT_POOL)
    taken: set[str] = set()
    for pool, patterns in pools.items():
        for pattern in patterns:
            fitting = [name for name in names if fnmatchcase(name, pattern)]
            if not fitting:
                raise InvalidSpec(
                    f"pools.{pool}: {pattern!r} fits none of the {len(names)} clients; "
                    "correct the pattern"
                )
            for name in fitting:
                if name in taken and assigned[name] != pool:
                    raise InvalidSpec(
                        f"pools: {name} fits {assigned[name]} and {pool}; a client has one pool: "
                        "correct the patterns"
                    )
                assigned[name] = pool
            taken.update(fitting)
    return assigned
