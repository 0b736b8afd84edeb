"""The trainer's settings, from FEDFA_* environment variables."""

import os
import socket
from pathlib import Path

from pydantic import Field

from fedfa.messages import POOL_PATTERN
from fedfa.settings import ServiceSettings


class TrainerSettings(ServiceSettings):
    trainer_name: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}",
        min_length=1,
        max_length=200,
        description="name in messages and logs, unlike any other trainer's",
    )
    trainer_jobs: int = Field(
        default=1,
        ge=1,
        le=64,
        description="jobs held at once; one computes, the others wait, sleep or deliver",
    )
    trainer_prefetch: bool = Field(
        default=False,
        description="take one job more, and read its model while another trains: less idle time, "
        "more staleness",
    )
    trainer_pools: str = Field(
        default="default",
        pattern=f"^{POOL_PATTERN}(,{POOL_PATTERN})*$",
        description="pools of clients whose data is here, separated by commas",
    )
    trainer_task_allow: str = Field(
        default="",
        description="modules that a spec's module:Class may name, as patterns separated by "
        "commas; none means installed tasks only",
    )
    trainer_grace_seconds: float = Field(
        default=25.0,
        ge=0,
        description="after SIGTERM: how long work that can finish may go on; a few seconds less "
        "than the time after which the process is killed",
    )
    trainer_torch_threads: int | None = Field(
        default=None, ge=1, description="CPU threads for torch; none leaves it to torch"
    )
    trainer_gpu_autocast: bool = Field(
        default=False, description="on a GPU: bfloat16 autocast; weights and updates stay float32"
    )
    trainer_gpu_channels_last: bool = Field(
        default=False, description="on a GPU: images and convolutions channels-last"
    )
    trainer_gpu_compile: bool = Field(
        default=False, description="on a GPU: torch.compile; a federation's first job takes longer"
    )
    trainer_pod: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="name of the Kubernetes pod that this is: it is marked while it holds work, so "
        "that scale-in takes idle ones first; none marks nothing",
    )
    trainer_journal: Path | None = Field(
        default=None,
        description="file to append a line to for each update that is stored and announced; "
        "none keeps no journal",
    )

    @property
    def most_held(self) -> int:
        """Jobs at once, with the one that is fetched ahead."""
        return self.trainer_jobs + self.trainer_prefetch

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.trainer_pools.split(",")))

    @property
    def task_allow(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in self.trainer_task_allow.split(",") if pattern)
