"""The aggregator's settings, from FEDFA_* environment variables."""

from pydantic import Field

from fedfa.settings import ServiceSettings


class AggregatorSettings(ServiceSettings):
    aggregator_prefetch: int = Field(
        default=64,
        ge=1,
        le=1000,
        description="announcements taken from the broker at once; more share one commit",
    )
    aggregator_memory_mib: int | None = Field(
        default=None,
        ge=1,
        description="for the models of all federations together; none means three quarters of "
        "the container's limit, or of the machine's memory",
    )
