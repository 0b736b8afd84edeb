"""The scheduler's settings, from FEDFA_* environment variables."""

from pydantic import Field, ValidationInfo, field_validator

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
    pool_down_after_seconds: float | None = Field(
        default=None,
        description="a pool with work and without a trainer for this long is down, and its slots "
        "go to clients of the others; none: two lease times. Longer than it takes to start one",
    )

    @field_validator("pool_down_after_seconds")
    @classmethod
    def _is_a_lease_at_least(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        lease = info.data.get("lease_ttl_seconds", 0.0)
        if seconds is not None and seconds < lease:
            raise ValueError(f"a busy trainer is heard once in a while; give at least {lease:g}")
        return seconds
