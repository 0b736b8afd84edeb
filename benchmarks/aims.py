"""What the figures are to reach, and the groups that a page may lack. No test fails on time."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from results import Group


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound of a case's median in every group of that name, in which * stands for anything.

    of: the bound is a multiple of the least median of these cases. called: what they are.
    """

    group: str
    case: str
    metric: str
    bound: Literal["at least", "at most"]
    limit: float
    of: tuple[str, ...] = ()
    called: str = ""

    def said_of(self, group: Group) -> str | None:
        """The aim with the figure beside it; None if it is another group's, or lacks a figure."""
        ours, *others = (
            group.figure(name, self.metric) if name in group.cases else None
            for name in (self.case, *self.of)
        )
        references = [other.median for other in others if other]
        if not fnmatchcase(group.name, self.group) or not ours or (self.of and not references):
            return None
        value = ours.median / min(references) if references else ours.median
        is_met = value >= self.limit if self.bound == "at least" else value <= self.limit
        unit = f" x {self.called or self.of[0]}" if self.of else ""
        return (
            f"{self.case}, {self.metric}, {self.bound} {self.limit:,.4g}{unit}: "
            f"{value:,.4g}, {'met' if is_met else '**missed**'}"
        )


def of_group(benchmark: str, group: Group) -> Iterator[str]:
    return filter(None, (aim.said_of(group) for aim in AIMS.get(benchmark, ())))


_MIB = 2**20
_ALONE, _BACKLOG, _PUT = "ours, one by one", "ours, backlog", "limit: raw PUT"
_RATE, _CPU, _PEAK, _MS = "updates/s", "CPU ms/update", "peak MiB", "ms"
_WINDOWS = (
    *("Flower: aggregate()", "NVIDIA FLARE: helper, torch", "NVIDIA FLARE: helper, numpy"),
    "FedML: FedAvg",
)
_BUFFERS = ("APPFL: FedBuff, K updates", "APPFL: FedBuff, K updates, optimize_memory off")

AIMS: dict[str, tuple[Aim, ...]] = {
    "merge": tuple(
        Aim("resnet18, K = 10", "ours", _MS, "at most", limit, of, called)
        for limit, of, called in (
            (1.5, ("limit (triad, same bytes)",), ""),
            (1 / 5, ("naive: stack and mean by tensor",), ""),
            (1, _WINDOWS, "the fastest other framework that merges a window"),
            (1 / 10, _BUFFERS, "the fastest buffer, which takes 10 updates at once"),
        )
    ),
    "aggregator": (
        Aim("45 MB*, SeaweedFS store", _ALONE, _RATE, "at least", 0.75, (_PUT,)),
        Aim("45 MB*, null store", _ALONE, _RATE, "at least", 0.85, (_PUT,)),
        Aim("45 MB*", _ALONE, _CPU, "at most", 110),
        Aim("45 MB*", _ALONE, _CPU, "at most", 1 / 2.5, ("straightforward",)),
        Aim("45 MB*", _BACKLOG, _RATE, "at least", 1.15, (_ALONE,)),
        Aim("17.5 MB*", _BACKLOG, _RATE, "at least", 1.5, (_ALONE,)),
        Aim("0.15 MB*", _ALONE, _RATE, "at least", 100),
        Aim("0.15 MB*", _BACKLOG, _RATE, "at least", 100),
        Aim("0.15 MB*", _BACKLOG, _RATE, "at least", 1.5, (_ALONE,)),
        Aim("438 MB*", _ALONE, _PEAK, "at most", ((5 + 3) * 438e6 + 200e6) / _MIB),
        Aim("438 MB*", _BACKLOG, _PEAK, "at most", ((5 + 3) * 438e6 + 200e6) / _MIB),
    ),
    "dispatch": (
        Aim("* of Mc = 4 *", "alone", "p50 ms", "at most", 20),
        Aim("* of Mc = 4 *", "alone", "p99 ms", "at most", 100),
    ),
    "concurrency": (Aim("Mc = *", "fedfa-delta", "mean running / Mc", "at least", 0.97),),
    "scale": (Aim("the log", "100,000 versions", "start to commit s", "at most", 3),),
    "recovery": (Aim("resnet18, K = 10", "kill to commit", "s", "at most", 5),),
}

# Where there is no such group, the page says so.
RARE: dict[str, tuple[str, ...]] = {
    "merge": ("bert, K = 5", "bert, K = 10"),
    "aggregator": ("438 MB (BERT), SeaweedFS store", "438 MB (BERT), null store"),
    "dispatch": (
        "50 federations of Mc = 20 and 200 clients",
        "1 federation of Mc = 1,000 and 10,000 clients",
    ),
    "speedup": ("digits, 20 clients, Dirichlet 0.3, Mc = 8, accuracy 0.9",),
    "smaller_updates": ("cifar10, Dirichlet 0.3, Mc = 8, target 0.4",),
    "batchnorm": ("IID", "Dirichlet 0.3"),
}
