"""Everything a federation needs on one machine: RabbitMQ, an S3 server and the three services.

Servers that the environment names (FEDFA_AMQP_URL; FEDFA_S3_ENDPOINT or FEDFA_S3_BUCKET) are used
as they are and none is started in their place. All processes are children that end with this
one; a service that dies is started again by `supervise`, as Kubernetes would.
"""

import os
import secrets
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from fedfa.errors import Misconfigured
from fedfa.forks import end_unguarded
from fedfa.local.processes import ServerProcess, accepts, free_port
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.pools import DEFAULT_POOL
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.store import ObjectStore, from_settings

SERVICE_START_SECONDS = 90.0
RESTARTS_PER_MINUTE = 6
TOKEN = "FEDFA_DASHBOARD_TOKEN"
STORE_VARIABLES = ("FEDFA_S3_ENDPOINT", "FEDFA_S3_BUCKET")


class LocalStack:
    """A context manager: entered, all processes are up; left, all are gone.

    folder: the servers' data, kept afterwards; None takes a temporary one. logs: the services'
    logs, inside the folder by default. trainers: so many for each of the pools. task_allow:
    modules that a spec's module:Class may name.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        logs: Path | None = None,
        trainers: int = 2,
        pools: Sequence[str] = (DEFAULT_POOL,),
        jobs_per_trainer: int = 4,
        lease_ttl_seconds: float = 10.0,
        task_allow: str = "",
    ) -> None:
        self.rabbitmq: RabbitMQ | None = None
        self.seaweedfs: SeaweedFS | None = None
        self.processes: dict[str, ServerProcess] = {}
        self.http_ports: dict[str, int] = {}
        self._given_folder = folder
        self._given_logs = logs
        self._pools = [pool for pool in pools for _ in range(trainers)]  # of each trainer
        self._jobs_per_trainer = jobs_per_trainer
        self._lease_ttl_seconds = lease_ttl_seconds
        self._task_allow = task_allow
        self._environment = dict(os.environ)
        self._dashboard_token = os.environ.get(TOKEN) or secrets.token_urlsafe(16)
        self._needs_broker = not os.environ.get("FEDFA_AMQP_URL")
        self.needs_bucket = not any(os.environ.get(name) for name in STORE_VARIABLES)
        self._service_environments: dict[str, dict[str, str]] = {}
        self._restarts: deque[float] = deque()
        self._cleanup = ExitStack()

    # -- what a user of the stack needs to know ---------------------------------------------------

    @property
    def description(self) -> str:
        """What it consists of, for people."""
        servers = ["RabbitMQ"] * self._needs_broker + ["SeaweedFS"] * self.needs_bucket
        trainers = f"{len(self._pools)} trainer{'s' * (len(self._pools) != 1)}"
        return ", ".join([*servers, "aggregator", "scheduler", trainers])

    @property
    def logs(self) -> Path:
        """Where each service's log is."""
        return self._given_logs or self.folder / "logs"

    @property
    def servers_environment(self) -> dict[str, str]:
        """The FEDFA_* variables that point any process at this stack's broker and bucket."""
        names = ("FEDFA_AMQP_", "FEDFA_S3_")
        return {key: self._environment[key] for key in self._environment if key.startswith(names)}

    def dashboard_url(self, federation: str = "") -> str:
        """The scheduler's page, with the token that lets its reader start and stop."""
        port, token = self.http_ports["scheduler"], self._dashboard_token
        return f"http://127.0.0.1:{port}/#/{federation}?token={token}"

    def broker_settings(self) -> BrokerSettings:
        if self.rabbitmq is None:
            return BrokerSettings()
        return BrokerSettings.model_validate({"url": self.rabbitmq.url})

    def store_settings(self) -> StoreSettings:
        return StoreSettings() if self.seaweedfs is None else self.seaweedfs.settings()

    def store(self) -> ObjectStore:
        return from_settings(self.store_settings())

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        end_unguarded()
        with ExitStack() as undo_if_this_fails:
            undo_if_this_fails.push(self)
            self.folder = self._open_folder()
            self._start_servers()
            self._start_services()
            undo_if_this_fails.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._cleanup, ThreadPoolExecutor() as together:
            # Services end first, so that they can hand back what they hold.
            list(together.map(ServerProcess.stop, self.processes.values()))
            servers = [server for server in (self.rabbitmq, self.seaweedfs) if server is not None]
            list(together.map(lambda server: server.stop(), servers))

    def add_trainer(self, pool: str = DEFAULT_POOL) -> str:
        """Start one more trainer; returns its name."""
        name = f"trainer-{sum(name.startswith('trainer-') for name in self.processes) + 1}"
        variables = {
            "FEDFA_TRAINER_NAME": name,
            "FEDFA_TRAINER_JOBS": str(self._jobs_per_trainer),
            "FEDFA_TRAINER_POOLS": pool,
            "FEDFA_TRAINER_TASK_ALLOW": self._task_allow,
        }
        self._add_service(name, variables)
        return name

    def add_standby(self, service: str) -> str:
        """Start a second aggregator or scheduler; returns its name."""
        name = f"{service}-{1 + sum(name.startswith(service) for name in self.processes)}"
        self._add_service(name, self._service_variables(service))
        return name

    def restart(self, name: str, **variables: str) -> None:
        """Start a service again, at the same port, after it ended; stop it first if it runs.

        variables: added to its environment this time.
        """
        self.processes[name].stop()
        self._launch(name, variables)

    def wait_until_up(self) -> None:
        """Wait until every service answers HTTP. Raises Misconfigured with the end of its log."""
        for name, process in self.processes.items():
            port = self.http_ports[name]
            process.wait_until(partial(accepts, port), timeout_seconds=SERVICE_START_SECONDS)

    def supervise(self) -> list[str]:
        """Start again whatever service has died, and say which in a line each.

        Raises Misconfigured, with the end of the last one's log, when that happens too often.
        """
        dead = [name for name, process in self.processes.items() if not process.is_running]
        for name in dead:
            now = time.monotonic()
            self._restarts.append(now)
            while self._restarts[0] < now - 60:
                self._restarts.popleft()
            if len(self._restarts) > RESTARTS_PER_MINUTE:
                raise Misconfigured(
                    f"services died {len(self._restarts)} times within a minute; the end of "
                    f"{self.processes[name].log}:\n{self.processes[name].log_tail()}"
                )
            self._launch(name)
        return [f"{name} died and was started again" for name in dead]

    # -- parts ------------------------------------------------------------------------------------

    def _open_folder(self) -> Path:
        if self._given_folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="fedfa-", ignore_cleanup_errors=True)
            return Path(self._cleanup.enter_context(temporary))
        self._given_folder.mkdir(parents=True, exist_ok=True)
        return self._given_folder.absolute()

    def _start_servers(self) -> None:
        # Children end with the thread that started them: these threads live as long as the stack.
        starters = self._cleanup.enter_context(ThreadPoolExecutor(2, "local-stack"))
        starting = []
        if self._needs_broker:
            self.rabbitmq = RabbitMQ(self.folder / "rabbitmq")
            starting.append(starters.submit(self.rabbitmq.start))
            self._environment["FEDFA_AMQP_URL"] = self.rabbitmq.url
        if self.needs_bucket:
            self.seaweedfs = SeaweedFS(self.folder / "s3")
            starting.append(starters.submit(self.seaweedfs.start))
            self._environment |= {
                "FEDFA_S3_ENDPOINT": self.seaweedfs.endpoint,
                "FEDFA_S3_BUCKET": self.seaweedfs.bucket,
                "FEDFA_S3_ACCESS_KEY": self.seaweedfs.access_key,
                "FEDFA_S3_SECRET_KEY": self.seaweedfs.secret_key,
            }
        for started in starting:
            started.result()

    def _start_services(self) -> None:
        for service in ("aggregator", "scheduler"):
            self._add_service(service, self._service_variables(service))
        for pool in self._pools:
            self.add_trainer(pool)
        self.wait_until_up()

    def _service_variables(self, service: str) -> dict[str, str]:
        if service != "scheduler":
            return {}
        return {
            "FEDFA_LEASE_TTL_SECONDS": f"{self._lease_ttl_seconds:g}",
            TOKEN: self._dashboard_token,
        }

    def _add_service(self, name: str, variables: dict[str, str]) -> None:
        self.http_ports[name] = free_port()
        self._service_environments[name] = {
            "FEDFA_LOG_JSON": "false",
            # Reconnecting must be faster than a lease, or jobs are handed out twice.
            "FEDFA_AMQP_RECONNECT_MAX_SECONDS": f"{self._lease_ttl_seconds / 3:g}",
            "FEDFA_TRAINER_TORCH_THREADS": str(self._threads_per_trainer()),
            "FEDFA_TRAINER_GRACE_SECONDS": "5",
            "FEDFA_DISCOVER_INTERVAL_SECONDS": "5",  # a private bucket is quickly listed
            **self._environment,
            "FEDFA_HTTP_PORT": str(self.http_ports[name]),
            **variables,
        }
        self._launch(name)

    def _threads_per_trainer(self) -> int:
        """The trainers share the machine, and one core is left to servers and services."""
        return max(1, ((os.cpu_count() or 1) - 1) // max(1, len(self._pools)))

    def _launch(self, name: str, variables: Mapping[str, str] | None = None) -> None:
        module = f"fedfa_{name.partition('-')[0]}"
        log = self.logs / f"{name}.log"
        env = self._service_environments[name] | dict(variables or {})
        if module == "fedfa_trainer":
            process = ServerProcess.fork(name, module, log=log, env=env)
        else:
            process = ServerProcess(name, [sys.executable, "-m", module], log=log, env=env)
        self.processes[name] = process
