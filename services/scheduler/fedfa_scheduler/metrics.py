"""The scheduler's Prometheus metrics. Labels are bounded: never a client, and a federation only
while it runs.
"""

from collections import Counter as Tally
from collections.abc import Mapping
from itertools import islice

from prometheus_client import Counter, Gauge

from fedfa_scheduler.fleet import Fleet
from fedfa_scheduler.pools import pools_down

open_jobs = Gauge("fedfa_open_jobs", "Work that needs a trainer", ["pool"])
pool_down = Gauge("fedfa_pool_down", "1 while its clients wait for a trainer", ["pool"])
federations = Gauge("fedfa_federations", "Federations by status", ["status"])
open_slots = Gauge("fedfa_open_slots", "Open slots of a running federation", ["federation"])
version = Gauge("fedfa_version", "Newest version of a running federation", ["federation"])
latest_evaluation = Gauge(
    "fedfa_latest_evaluation",
    "The newest evaluation of a running federation",
    ["federation", "metric"],
)
jobs_published = Counter("fedfa_jobs_published", "Jobs, evaluations, initialisations handed out")
lease_expired = Counter("fedfa_lease_expired", "Leases whose trainer fell silent")
jobs_failed = Counter("fedfa_jobs_failed", "Failures that trainers reported")
jobs_released = Counter("fedfa_jobs_released", "Jobs that trainers handed back")
dead_letters_waiting = Gauge("fedfa_dead_letters_waiting", "Messages that wait for a person")

STATUSES = ("unborn", "running", "finished", "stopped", "failed")
MOST_METRICS = 20  # of one evaluation: their names are the task's own choice


def show(fleet: Fleet) -> None:
    tally = Tally(known.status for known in fleet.federations.values())
    down = pools_down(fleet.federations.values())
    jobs = fleet.open_jobs()
    _set(federations, {(status,): tally[status] for status in STATUSES})
    _set(open_jobs, {(pool,): number for pool, number in jobs.items()})
    _set(pool_down, {(pool,): pool in down for pool in jobs})
    running = [
        (known, known.value)
        for known in fleet.federations.values()
        if known.value is not None and known.is_alive
    ]
    _set(open_slots, {(known.id,): len(list(value.open_jobs())) for known, value in running})
    _set(version, {(known.id,): value.state.version for known, value in running})
    measured = {
        known.id: known.evaluations[max(known.evaluations)].metrics
        for known, _ in running
        if known.evaluations
    }
    _set(
        latest_evaluation,
        {
            (federation, metric): number
            for federation, numbers in measured.items()
            for metric, number in islice(numbers.items(), MOST_METRICS)
        },
    )


def hide() -> None:
    """A scheduler that does not act knows nothing of all this any more."""
    for gauge in (federations, open_jobs, pool_down, open_slots, version, latest_evaluation):
        _set(gauge, {})


def _set(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Show these, by their labels' values, and no others."""
    (family,) = gauge.collect()
    for sample in family.samples:
        labels = tuple(sample.labels.values())
        if labels not in values:
            gauge.remove(*labels)
    for labels, number in values.items():
        gauge.labels(*labels).set(number)
