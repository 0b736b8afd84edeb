"""A private RabbitMQ node in a folder, for demos and tests. No system service is touched.

Everything listens on 127.0.0.1 only, with an epmd (Erlang's port mapper) of its own: otherwise
Erlang starts one on every interface that outlives us. The ports are chosen once, so that a node
that was killed comes back at the same address, with the same data.

FEDFA_RABBITMQ_ROOT may name the root of another system whose RabbitMQ is to run, entered with
chroot, which needs root: `tests/rabbitmq4-root.sh` makes one with RabbitMQ 4.
"""

import os
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path

from fedfa.errors import Misconfigured
from fedfa.local.processes import ServerProcess, accepts, free_ports

START_SECONDS = 90.0
# Idle Erlang schedulers spin for a while by default, which costs the other processes CPU time.
_LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"
_NO_SPINNING = "+sbwt none +sbwtdcpu none +sbwtdio none"
# What quorum queues have written stays in memory until the log begins a new file; 512 MB otherwise.
_SMALL_LOG = "raft.wal_max_size_bytes = 16777216"
_ROOT_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_DEBIAN_BINARIES = Path("/usr/lib/rabbitmq/bin")

ROOT_VARIABLE = "FEDFA_RABBITMQ_ROOT"
_DATA_IN_ROOT = Path("/mnt")  # where a node in another root finds its folder
# Becomes the command, in that root: $0, with the folder $1 at $2. The mounts end with it.
_ENTER_ROOT = """
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --bind "$1" "$0$2" || exit
shift 2
exec chroot "$0" "$@"
"""


class RabbitMQ:
    """One node. Its folder's advanced.config may be written before it is started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.port, distribution_port, epmd_port = free_ports(3)
        self._root = _other_root()
        self._binaries = _find_binaries() if self._root is None else _DEBIAN_BINARIES
        home = self.folder if self._root is None else _DATA_IN_ROOT
        self._node: ServerProcess | None = None
        self._epmd: ServerProcess | None = None
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath) if self._root is None else _ROOT_PATH,
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(home / "erl_crash.dump"),
            "RABBITMQ_NODENAME": "fedfa@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,  # whatever lies in /etc/rabbitmq
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "schema"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_LOOPBACK_ONLY} {_NO_SPINNING}",
            "RABBITMQ_CTL_ERL_ARGS": f"{_LOOPBACK_ONLY} {_NO_SPINNING} +S 1:1",
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script becomes the node: one pid
        }
        self._write_files()

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
        if self._root is None and shutil.which("epmd", path=self._env["PATH"]) is None:
            raise Misconfigured("epmd is not on PATH: apt-get install erlang-base")
        if self._epmd is None or not self._epmd.is_running:
            command = ["epmd", "-port", self._env["ERL_EPMD_PORT"], "-address", "127.0.0.1"]
            log = self.folder / "epmd.log"
            self._epmd = ServerProcess("epmd", self._inside(*command), log=log, env=self._env)
            epmd_port = int(self._env["ERL_EPMD_PORT"])
            self._epmd.wait_until(lambda: accepts(epmd_port), timeout_seconds=START_SECONDS)
        self._node = ServerProcess(
            "RabbitMQ",
            self._inside(self._binaries / "rabbitmq-server"),
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
            self._inside(self._binaries / "rabbitmqctl", "--quiet", *arguments),
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

    def write_ctl(self, script: Path) -> None:
        """Write a `rabbitmqctl` of this node, for programs that run one."""
        command = self._inside(self._binaries / "rabbitmqctl")
        variables = [f"{name}={value}" for name, value in self._env.items()]
        script.write_text(
            f"#!/bin/sh\ncd {shlex.quote(str(self.folder))}\n"
            f'exec {shlex.join(["env", "-i", *variables, *command])} "$@" </dev/null\n'
        )
        script.chmod(0o700)

    def _inside(self, *command: str | Path) -> list[str]:
        """The command, in the other root if there is one; its pid stays the same."""
        words = [str(word) for word in command]
        if self._root is None:
            return words
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER_ROOT]
        return [*enter, str(self._root), str(self.folder), str(_DATA_IN_ROOT), *words]

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        listener = f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
        (self.folder / "rabbitmq.conf").write_text(f"{listener}{_SMALL_LOG}\n")
        (self.folder / "advanced.config").write_text("[].\n")
        (self.folder / "enabled_plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"  # Erlang demands that nobody else can read it
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(20))


def _other_root() -> Path | None:
    if not (name := os.environ.get(ROOT_VARIABLE)):
        return None
    root = Path(name).absolute()
    if not (root / _DEBIAN_BINARIES.relative_to("/") / "rabbitmq-server").exists():
        raise Misconfigured(f"{ROOT_VARIABLE}: there is no RabbitMQ in {root}")
    if os.geteuid() != 0:
        raise Misconfigured(f"{ROOT_VARIABLE}: only root may enter {root} (chroot); use sudo")
    return root


def _find_binaries() -> Path:
    """The folder of the real scripts: Debian's wrappers on PATH insist on the system's user."""
    if (_DEBIAN_BINARIES / "rabbitmq-server").exists():
        return _DEBIAN_BINARIES
    found = shutil.which("rabbitmq-server")
    if found is None:
        raise Misconfigured("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    return Path(found).resolve().parent
