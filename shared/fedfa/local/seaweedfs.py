"""A private SeaweedFS in a folder: a real S3 server for demos and tests.

Listens on 127.0.0.1 only and sends no telemetry. Ports and keys are chosen once, so that a
server that was killed comes back at the same address, with the same data.
"""

import json
import os
import secrets
import shutil
import sys
from pathlib import Path

from pydantic import SecretStr

from fedfa.errors import Misconfigured, StoreUnavailable
from fedfa.local.processes import ServerProcess, accepts, free_ports
from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings

START_SECONDS = 60.0
STOP_SECONDS = 10.0
# Overwritten and deleted objects keep their disk space until a vacuum, by default every 14
# minutes, which fills a disk when models are collected as fast as they are made.
VACUUM_SECONDS = 60
_SERVICES = ("master", "volume", "filer", "s3", "admin")


class SeaweedFS:
    """One server with all of SeaweedFS's services in one process, and one bucket."""

    def __init__(self, folder: Path, *, bucket: str = "fedfa", has_iam: bool = False) -> None:
        """has_iam: users and policies can be made by the AWS IAM calls, at the same endpoint."""
        self.folder = folder.absolute()
        self.bucket = bucket
        self._has_iam = has_iam
        self.access_key = "fedfa"
        self.secret_key = secrets.token_hex(16)
        self._binary = _find_binary()
        self._process: ServerProcess | None = None
        ports = iter(free_ports(2 * len(_SERVICES)))
        self._ports = {name: (next(ports), next(ports)) for name in _SERVICES}  # HTTP, gRPC

    @property
    def port(self) -> int:
        return self._ports["s3"][0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise Misconfigured("SeaweedFS: the server was not started")
        return self._process.pid

    def settings(self) -> StoreSettings:
        return StoreSettings(
            endpoint=self.endpoint,
            bucket=self.bucket,
            access_key=SecretStr(self.access_key),
            secret_key=SecretStr(self.secret_key),
        )

    def start(self) -> None:
        """Start and wait until the bucket exists and an object was written."""
        self._write_files()
        self._process = ServerProcess(
            "SeaweedFS",
            self._command(),
            log=self.folder / "seaweedfs.log",
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)},
            cwd=self.folder,
        )
        one_try = S3Store(self.settings().model_copy(update={"outage_seconds": 0.0}))
        self._process.wait_until(
            lambda: accepts(self.port) and _takes_objects(one_try), timeout_seconds=START_SECONDS
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(grace_seconds=STOP_SECONDS)
            self._remove_sockets()

    def kill(self) -> None:
        """End it at once, as a crash would; start() brings it back with the same data."""
        if self._process is not None:
            self._process.kill()
            self._remove_sockets()

    def _command(self) -> list[str | Path]:
        options = {
            "dir": self.folder / "data",
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",  # the default is every interface
            "master.telemetry": "false",
            "master.vacuumIntervalSeconds": VACUUM_SECONDS,
            "s3.config": self.folder / "s3.json",
            "s3.iam.readOnly": str(not self._has_iam).lower(),
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "admin.ui": "false",
            "webdav": "false",
        }
        for name, (http, grpc) in self._ports.items():
            options |= {f"{name}.port": http, f"{name}.port.grpc": grpc}
        flags = [f"-{name}={value}" for name, value in options.items()]
        return [self._binary, "-logtostderr", f"-config_dir={self.folder}", "mini", *flags]

    def _write_files(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        key = {"accessKey": self.access_key, "secretKey": self.secret_key}
        identity = {"name": "fedfa", "credentials": [key], "actions": ["Admin"]}
        config = self.folder / "s3.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"identities": [identity]}))

    def _remove_sockets(self) -> None:
        # SeaweedFS also listens on sockets in /tmp, named by port, and leaves some behind.
        for port in (port for pair in self._ports.values() for port in pair):
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)


def _takes_objects(store: S3Store) -> bool:
    """Whether the bucket exists and takes a write; the port answers earlier than that."""
    try:
        store.ensure_bucket()
        store.put("_ready", b"")
        store.delete("_ready")
    except StoreUnavailable:
        return False
    return True


def _find_binary() -> Path:
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("weed", path=here)
    if found is None:
        raise Misconfigured(
            "SeaweedFS (the program weed) is neither next to this Python nor on PATH; "
            "in FedFa's checkout: pip install -e '.[local]'"
        )
    return Path(found)
