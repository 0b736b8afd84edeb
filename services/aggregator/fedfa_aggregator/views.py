"""The federations that an aggregator holds in memory: copies of the bucket, within a limit."""

import os
from collections import OrderedDict
from pathlib import Path

from fedfa import memory
from fedfa.ledger import Ledger
from fedfa.merge import rule_of, window_size
from fedfa.spec import FederationSpec

# Beside the window: the model, the next one, and the update that is merged or read ahead.
MODELS_BESIDE_WINDOW = 3
SHARE_OF_MEMORY = 0.75  # of what the container may use; the rest is for everything else
ENDED_KEPT = 16  # federations that are over: what comes late for them is answered from here
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Views:
    """Least recently used first.

    memory_bytes bounds the vectors of all of them together, and the pages that wait for more.
    """

    def __init__(self, *, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self._ledgers: OrderedDict[str, Ledger] = OrderedDict()

    def get(self, federation: str) -> Ledger | None:
        if federation in self._ledgers:
            self._ledgers.move_to_end(federation)
        return self._ledgers.get(federation)

    def keep(self, ledger: Ledger) -> None:
        self.drop(ledger.submission.federation)
        self._ledgers[ledger.submission.federation] = ledger
        ended = [name for name, each in self._ledgers.items() if each.replica is None]
        for name in ended[:-ENDED_KEPT]:
            self.drop(name)

    def drop(self, federation: str) -> None:
        self._ledgers.pop(federation, None)

    def clear(self) -> None:
        self._ledgers.clear()

    def make_room(self, federation: str, spec: FederationSpec, model_bytes: int) -> str | None:
        """Drop what was used least recently until this one fits; why it never will, or None."""
        needed = num_models(spec) * model_bytes
        if needed > self.memory_bytes:
            return self._refusal(spec, model_bytes)
        others = [name for name in self._ledgers if name != federation]
        while others and needed + sum(map(self._held_bytes, others)) > self.memory_bytes:
            self.drop(others.pop(0))
        held = needed + sum(map(self._held_bytes, others))
        if held + memory.waiting_bytes() > self.memory_bytes:
            memory.discard(but=model_bytes)  # those are for this one, and counted as needed
        return None

    def _refusal(self, spec: FederationSpec, model_bytes: int) -> str:
        return (
            f"a model of {_mib(model_bytes)} does not fit: merging holds {num_models(spec)} of "
            f"them (a window of {window_size(spec)}, and {num_models(spec) - window_size(spec)} "
            f"more), {_mib(num_models(spec) * model_bytes)} in all, and the aggregator may use "
            f"{_mib(self.memory_bytes)}; raise FEDFA_AGGREGATOR_MEMORY_MIB and the memory behind "
            f"it, or lower the window"
        )

    def _held_bytes(self, federation: str) -> int:
        replica = self._ledgers[federation].replica
        if replica is None:
            return 0
        return (1 + len(replica.window)) * replica.model.floats.nbytes


def num_models(spec: FederationSpec) -> int:
    """The most vectors of a model's size that serving a federation holds at once."""
    return window_size(spec) + MODELS_BESIDE_WINDOW + rule_of(spec).needs_cosine


def default_memory_bytes() -> int:
    """A share of the container's limit, or of the machine's memory where there is none."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, CGROUP_LIMITS):
        if path.exists() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return int(min(limits) * SHARE_OF_MEMORY)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
