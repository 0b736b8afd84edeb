"""The scheduler's Prometheus metrics. Labels are bounded: pools and statuses, never a client."""

from collections import Counter as Tally

from prometheus_client import Counter, Gauge

from fedfa_scheduler.fleet import Fleet

open_jobs = Gauge("fedfa_open_jobs", "Work that needs a trainer", ["pool"])
pool_down = Gauge("fedfa_pool_down", "1 while its clients wait for a trainer", ["pool"])
federations = Gauge("fedfa_federations", "Federations by status", ["status"])
jobs_published = Counter("fedfa_jobs_published", "Jobs, evaluations, initialisations handed out")
lease_expired = Counter("fedfa_lease_expired", "Leases whose trainer fell silent")
jobs_failed = Counter("fedfa_jobs_failed", "Failures that trainers reported")
jobs_released = Counter("fedfa_jobs_released", "Jobs that trainers handed back")
dead_letters_waiting = Gauge("fedfa_dead_letters_waiting", "Messages that wait for a person")

STATUSES = ("unborn", "running", "finished", "stopped", "failed")


def show(fleet: Fleet) -> None:
    tally = Tally(known.status for known in fleet.federations.values())
    for status in STATUSES:
        federations.labels(status=status).set(tally[status])
    down = fleet.pools_down()
    for pool, number in fleet.open_jobs().items():
        pool_down.labels(pool=pool).set(pool in down)
        open_jobs.labels(pool=pool).set(number)
