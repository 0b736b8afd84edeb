"""The scheduler's settings, from FEDFA_* environment variables."""

from pydantic import Field

from fedfa.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    lease_ttl_seconds: float = Field(
        default=60.0,
        gt=0,
        description="a job whose trainer was silent for this long is handed out again",
    )
    reconcile_interval_seconds: float = Field(
        default=2.0, gt=0, description="how often the bucket and the job queues are looked at"
    )
    discover_interval_seconds: float = Field(
        default=30.0, gt=0, description="how often the bucket is searched for new federations"
    )
