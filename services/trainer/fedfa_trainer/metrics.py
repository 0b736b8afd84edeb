"""The trainer's Prometheus metrics. Labels are bounded: never a client, never a federation."""

from prometheus_client import Counter, Gauge, Histogram

train_seconds = Histogram(
    "fedfa_train_seconds",
    "Training of one job, without reading, delay and delivery",
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200),
)
jobs_held = Gauge("fedfa_jobs_held", "Pieces of work held now, by phase", ["phase"])
jobs = Counter("fedfa_jobs", "Pieces of work that ended, by outcome", ["outcome"])
upload_bytes = Counter("fedfa_upload_bytes", "Bytes of updates and initial models uploaded")
saved_bytes = Counter(
    "fedfa_upload_saved_bytes", "Bytes that the compression of updates kept from being uploaded"
)
computing_seconds = Counter("fedfa_computing_seconds", "Time spent training or evaluating")
