"""The dashboard's settings, from FEDFA_DASHBOARD_* environment variables."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from fedfa.settings import EnvironmentSettings


class DashboardSettings(EnvironmentSettings):
    model_config = SettingsConfigDict(
        env_prefix="FEDFA_DASHBOARD_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="who knows it may start and stop federations from the page; at least 16 "
        "characters; none: the page only shows",
    )
