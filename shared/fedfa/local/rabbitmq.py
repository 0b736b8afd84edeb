"""A private RabbitMQ node in a folder, for demos and tests. No system service is touched.

Everything listens on 127.0.0.1 only, with an epmd (Erlang's port mapper) of its own: otherwise
Erlang starts one on every interface that outlives us. The ports are chosen once, so that a node
that was killed comes back at the same address, with the same data.
"""

import os
import secrets
import shutil
import subprocess
from pathlib import Path

from fedfa.errors import Misconfigured
from fedfa.local.processes import ServerProcess, accepts, free_ports

START_SECONDS = 90.0
# Idle Erlang schedulers spin for a while by default, which costs the other processes CPU time.
_LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"
_NO_SPINNING = "+sbwt none +sbwtdcpu none +sbwtdio none"


class RabbitMQ:
    """One node. `config` are lines of rabbitmq.conf, `advanced` is a whole advanced.config."""

    def __init__(self, folder: Path, *, config: str = "", advanced: str = "[].") -> None:
        self.folder = folder.absolute()
        self.port, distribution_port, epmd_port = free_ports(3)
        self._binaries = _find_binaries()
        self._node: ServerProcess | None = None
        self._epmd: ServerProcess | None = None
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(self.folder / "erl_crash.dump"),
            "RABBITMQ_NODENAME": "fedfa@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,  # whatever lies in /etc/rabbitmq
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "schema"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_LOOPBACK_ONLY} {_NO_SPINNING}",
            "RABBITMQ_CTL_ERL_ARGS": _LOOPBACK_ONLY,
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script becomes the node: one pid
        }
        self._write_files(config, advanced)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        if self._node is None:
            raise Misconfigured("RabbitMQ: the node was not started")
        return self._node.pid

    def start(self) -> None:
        """Start and wait until clients can connect."""
        epmd = shutil.which("epmd", path=self._env["PATH"])
        if epmd is None:
            raise Misconfigured("epmd is not on PATH: apt-get install erlang-base")
        if self._epmd is None or not self._epmd.is_running:
            command = [epmd, "-port", self._env["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
            log = self.folder / "epmd.log"
            self._epmd = ServerProcess("epmd", command, log=log, env=self._env)
            epmd_port = int(self._env["ERL_EPMD_PORT"])
            self._epmd.wait_until(lambda: accepts(epmd_port), timeout_seconds=START_SECONDS)
        self._node = ServerProcess(
            "RabbitMQ",
            [self._binaries / "rabbitmq-server"],
            log=self.folder / "rabbitmq.log",
            env=self._env,
            cwd=self.folder,
        )
        self._node.wait_until(lambda: accepts(self.port), timeout_seconds=START_SECONDS)

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop(grace_seconds=20)
        if self._epmd is not None:
            self._epmd.stop()

    def kill(self) -> None:
        """End the node as a crash would."""
        if self._node is not None:
            self._node.kill()

    def restart(self) -> None:
        """A clean stop and a start on the same data. After kill(), start() does the same."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl and return what it prints. It takes a second or two."""
        done = subprocess.run(
            [self._binaries / "rabbitmqctl", "--quiet", *arguments],
            env=self._env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise Misconfigured(f"rabbitmqctl {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def _write_files(self, config: str, advanced: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        listener = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        (self.folder / "rabbitmq.conf").write_text(listener + config + "\n")
        (self.folder / "advanced.config").write_text(advanced + "\n")
        (self.folder / "enabled_plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"  # Erlang demands that nobody else can read it
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(20))


def _find_binaries() -> Path:
    """The folder of the real scripts: Debian's wrappers on PATH insist on the system's user."""
    debian = Path("/usr/lib/rabbitmq/bin")
    if (debian / "rabbitmq-server").exists():
        return debian
    found = shutil.which("rabbitmq-server")
    if found is None:
        raise Misconfigured("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    return Path(found).resolve().parent
