"""A federation's past as plain rows: its decisions and its evaluations. PURE.

No plotting, no printing; `status`, `watch` and the report all look at these rows.
"""

from dataclasses import dataclass

from fedfa.events import Abandoned, Event, Merged, PoolChanged, Rejected, Stopped
from fedfa.federation import State
from fedfa.log import Evaluation, Manifest
from fedfa.spec import Submission

FINAL_EVALUATION_SECONDS = 60.0  # how long an ended federation may take to be evaluated


@dataclass(frozen=True, slots=True)
class Row:
    """One decision. Times are unix seconds: `at` by the aggregator's clock, started_at by the
    trainer's. What an outcome does not have is None.
    """

    n: int
    at: float
    outcome: str
    version: int
    staleness: int | None = None
    slot: int | None = None
    generation: int | None = None
    client: str | None = None
    trainer: str | None = None
    base_version: int | None = None
    started_at: float | None = None
    train_seconds: float | None = None
    delay_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All that is known now. state and born_at are None before the first model.

    at: when the newest manifest was committed, or the federation submitted.
    """

    submission: Submission
    born_at: float | None
    at: float
    state: State | None
    has_model: bool
    rows: tuple[Row, ...]
    evaluations: tuple[Evaluation, ...]  # by version

    @property
    def has_ended(self) -> bool:
        return self.state is not None and self.state.status != "running"

    @property
    def merged(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == "merged"]


def is_over(history: History, *, now: float) -> bool:
    """Whether it has ended and nothing more is to be expected from it. now: unix seconds."""
    state = history.state
    if state is None or state.status == "running":
        return False
    evaluated = any(one.version == state.final_version for one in history.evaluations)
    is_evaluated = evaluated or state.final_version is None or state.status == "failed"
    return is_evaluated or now > history.at + FINAL_EVALUATION_SECONDS


def clients_of(manifest: Manifest) -> dict[int, str]:
    """Whom each slot is open for after a manifest: slot -> client, "" while it waits."""
    return {at: slot.client for at, slot in enumerate(manifest.state.slots)}


def rows_of(manifest: Manifest, clients: dict[int, str]) -> list[Row]:
    """A manifest's decisions in order.

    clients: clients_of the manifest before, which this brings up to date.
    """
    rows = []
    for decision in manifest.decisions:
        rows.append(_row(manifest, decision.event, decision.version, decision.staleness, clients))
        for opened in decision.opened:
            clients[opened.job.slot] = opened.client
    return rows


def _row(
    manifest: Manifest,
    event: Event,
    version: int,
    staleness: int | None,
    clients: dict[int, str],
) -> Row:
    n, at, outcome = manifest.n, manifest.at, event.outcome
    match event:
        case Merged(update) | Rejected(update):
            return Row(
                n,
                at,
                outcome,
                version,
                staleness,
                slot=update.job.slot,
                generation=update.job.generation,
                client=update.client,
                trainer=update.trainer,
                base_version=update.base_version,
                started_at=update.started_at,
                train_seconds=update.train_seconds,
                delay_seconds=update.delay_seconds,
                reason=event.reason if isinstance(event, Rejected) else None,
            )
        case Abandoned(job, reason):
            client = clients[job.slot]
            return Row(
                n,
                at,
                outcome,
                version,
                slot=job.slot,
                generation=job.generation,
                client=client,
                reason=reason,
            )
        case PoolChanged(pool):
            return Row(n, at, outcome, version, reason=f"pool {pool}")
        case Stopped(_, reason):
            return Row(n, at, outcome, version, reason=reason)
