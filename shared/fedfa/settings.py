"""How a process reaches the broker and the bucket; read once, at start, from the environment.

What the environment does not have may be in a file of the variable's name in the folder that
FEDFA_SECRETS_DIR names: secrets are mounted there, and appear in no environment.
"""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

SECRETS_DIR = "FEDFA_SECRETS_DIR"


class EnvironmentSettings(BaseSettings):
    """Settings from environment variables and, below them, from files in FEDFA_SECRETS_DIR."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        folder = os.environ.get(SECRETS_DIR)
        # A folder that is not there leaves its settings unset, which the broker or bucket refuses.
        if not folder or not Path(folder).is_dir():
            return init_settings, env_settings
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, folder)


class StoreSettings(EnvironmentSettings):
    """The bucket that holds every federation, and how to reach it (FEDFA_S3_*)."""

    # Errors must not print the secrets that came with a wrong field.
    model_config = SettingsConfigDict(
        env_prefix="FEDFA_S3_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="URL of the S3 server, without credentials; none means AWS S3",
    )
    bucket: str = Field(
        default="fedfa",
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="the bucket; each federation is a folder in it",
    )
    region: str = Field(
        default="us-east-1", min_length=1, description="the bucket's region; many servers ignore it"
    )
    access_key: SecretStr | None = Field(
        default=None,
        description="access key id; none, with secret_key: the usual AWS chain (environment, "
        "profile, web identity, instance role)",
    )
    secret_key: SecretStr | None = Field(
        default=None, description="the secret that belongs to access_key"
    )
    path_style: bool = Field(
        default=True,
        description="address the bucket in the path (most servers) and not in the host name",
    )
    connect_timeout_seconds: float = Field(
        default=5.0, gt=0, description="how long one try waits for a connection"
    )
    read_timeout_seconds: float = Field(
        default=20.0, gt=0, description="how long one try waits for the next bytes of an answer"
    )
    outage_seconds: float = Field(
        default=30.0,
        ge=0,
        description="how long one operation keeps trying before it reports an outage",
    )


class ServiceSettings(EnvironmentSettings):
    """What all three services share (FEDFA_*); each adds its own fields in a subclass."""

    model_config = SettingsConfigDict(
        env_prefix="FEDFA_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    http_host: str = Field(default="127.0.0.1", description="where /healthz and /metrics listen")
    http_port: int = Field(default=0, ge=0, le=65535, description="0 picks a free port")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="the least severe log line that is written"
    )
    log_json: bool = Field(default=True, description="JSON log lines; false for plain ones")


class BrokerSettings(EnvironmentSettings):
    """The RabbitMQ broker, and when a connection counts as lost (FEDFA_AMQP_*)."""

    # Errors must not print the password inside the URL.
    model_config = SettingsConfigDict(
        env_prefix="FEDFA_AMQP_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    url: SecretStr = Field(
        default=SecretStr("amqp://guest:guest@127.0.0.1:5672/"),
        description="amqp:// or amqps:// URL with user, password and virtual host ('/' is %2f)",
    )
    username: SecretStr | None = Field(
        default=None, description="with password: used in place of the URL's user and password"
    )
    password: SecretStr | None = Field(
        default=None, description="the password that belongs to username"
    )
    declare: bool = Field(
        default=True,
        description="declare the exchanges and queues that are used; false uses those that "
        "another process has declared, as soon as they are there, and needs no permission to "
        "configure them",
    )
    reconnect_max_seconds: float = Field(
        default=15.0,
        gt=0,
        description="longest wait before another try to connect; at most a third of the lease TTL",
    )
    heartbeat_seconds: int = Field(
        default=60,
        ge=5,
        description="a connection that was silent for this long is lost, on both sides",
    )
    blocked_timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        description="how long the broker may leave a call without an answer (short of memory or "
        "disk, or a queue without a leader) before the connection is dropped and tried again",
    )

    @model_validator(mode="after")
    def _is_a_pair(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("FEDFA_AMQP_USERNAME and FEDFA_AMQP_PASSWORD: set both or neither")
        return self


def wrong_settings(kind: type[BaseSettings], error: ValidationError) -> list[str]:
    """A line for each wrong variable: what is wrong with it, its value, and what it is for.

    The value is left out where it may hold a password.
    """
    prefix = kind.model_config.get("env_prefix", "")
    lines = []
    for problem in error.errors(include_url=False):
        if not problem["loc"]:  # of several variables, which it names; its input holds them all
            lines.append(problem["msg"].removeprefix("Value error, "))
            continue
        name = prefix + "_".join(str(part) for part in problem["loc"]).upper()
        may_be_secret = any(
            word in name for word in ("ENDPOINT", "KEY", "PASSWORD", "TOKEN", "URL")
        )
        value = "" if may_be_secret else f" (got {problem['input']!r:.80})"
        field = kind.model_fields.get(str(problem["loc"][0]))
        purpose = f"; {field.description}" if field and field.description else ""
        lines.append(f"{name}: {problem['msg']}{value}{purpose}")
    return lines
