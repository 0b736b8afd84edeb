"""Decisions as the page shows them: a row each, with the time at which its job was opened."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fedfa import manifests
from fedfa.events import Abandoned, Job
from fedfa.log import Manifest
from fedfa.rows import Row, clients_of, rows_of
from fedfa.store import ObjectStore

JsonRow = dict[str, Any]


class Openings:
    """Follows consecutive manifests: who each slot is open for, and since when."""

    def __init__(self, before: Manifest | None) -> None:
        """before: the manifest ahead of the first that is added; None for the log's first."""
        self._clients = clients_of(before) if before is not None else {}
        self._opened: dict[int, tuple[int, float]] = {}  # slot -> generation, unix seconds

    def add(self, manifest: Manifest) -> list[tuple[Row, float | None]]:
        """Its decisions, and when the job of each was opened, as far as that was seen."""
        if manifest.n == manifests.FIRST:
            self._clients = clients_of(manifest)
            for at, slot in enumerate(manifest.state.slots):
                self._opened[at] = slot.generation, manifest.at
        rows = []
        for row in rows_of(manifest, self._clients):
            rows.append((row, self.since(row.slot, row.generation)))
        for decision in manifest.decisions:
            for opened in decision.opened:
                self._opened[opened.job.slot] = opened.job.generation, manifest.at
        return rows

    def since(self, slot: int | None, generation: int | None) -> float | None:
        opened = self._opened.get(slot) if slot is not None else None
        return opened[1] if opened is not None and opened[0] == generation else None


def page_of(
    store: ObjectStore, federation: str, created_at: float, numbers: range
) -> list[JsonRow]:
    """The rows of these manifests, newest first, read now."""
    start = numbers.start
    before = manifests.read(store, federation, start - 1).manifest if start else None
    openings = Openings(before)
    shown: list[JsonRow] = []
    for n in numbers:
        manifest = manifests.read(store, federation, n).manifest
        shown += as_json(openings.add(manifest), created_at)
    return shown[::-1]


def rows_alone(store: ObjectStore, manifest: Manifest) -> list[Row]:
    """A manifest's rows without its neighbours; the one before is read if a client is needed."""
    clients: dict[int, str] = {}
    needed: set[Job] = {
        decision.event.job
        for decision in manifest.decisions
        if isinstance(decision.event, Abandoned)
    }
    if needed:
        clients = clients_of(manifests.read(store, manifest.federation, manifest.n - 1).manifest)
    return rows_of(manifest, clients)


def as_json(rows: Iterable[tuple[Row, float | None]], created_at: float) -> list[JsonRow]:
    """All times in seconds since submission."""
    return [_row(row, opened, created_at) for row, opened in rows]


def _row(row: Row, opened: float | None, created_at: float) -> JsonRow:
    fields = asdict(row)
    fields["opened_at"] = opened
    for name in ("at", "started_at", "opened_at"):
        if fields[name] is not None:
            fields[name] = round(fields[name] - created_at, 3)
    return fields
