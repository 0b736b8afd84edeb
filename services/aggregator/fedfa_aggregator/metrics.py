"""The aggregator's Prometheus metrics. Labels are bounded: never a client, never a federation."""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from fedfa.events import Decision, Merged, Rejected, job_of

# What a rejection's reason begins with; anything else could be a client's own words.
REASONS = {
    *("base_version", "client", "digest", "diverged", "key", "metadata", "missing", "norm"),
    *("num_examples", "size", "tensors", "too_stale", "unreadable"),
}

updates = Counter("fedfa_updates", "Updates and abandonments by outcome", ["outcome"])
rejected = Counter("fedfa_rejected_updates", "Rejected updates by their reason", ["reason"])
dead_letters = Counter("fedfa_dead_letters", "Messages moved to the dead-letter queue")
postponed = Counter(
    "fedfa_postponed", "Messages let go because their federation could not be loaded"
)
fenced = Counter("fedfa_fenced", "Commits lost to another writer")
fetch_seconds = Histogram("fedfa_fetch_seconds", "Download and check of one update")
merge_seconds = Histogram("fedfa_merge_seconds", "Merge of one update")
commit_seconds = Histogram("fedfa_commit_seconds", "Upload of a model and its manifest")
staleness = Histogram(
    "fedfa_update_staleness_versions",
    "Versions between an update's base and its merge",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
)

collected = Counter("fedfa_collected_objects", "Models and updates that retention let go")
sweep_seconds = Histogram(
    "fedfa_sweep_seconds",
    "One search of a federation's folder for what may be deleted, and its deletion",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 60, 100),
)


def observe(decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        if job_of(decision.event) is not None:
            updates.labels(outcome=decision.event.outcome).inc()
        if isinstance(decision.event, Rejected):
            word = decision.event.reason.partition(":")[0]
            rejected.labels(reason=word if word in REASONS else "other").inc()
        if isinstance(decision.event, Merged) and decision.staleness is not None:
            staleness.observe(decision.staleness)
