"""Run what the chart renders as real pods: podman, the images, a RabbitMQ and an S3 server.

A federation of digits is trained while every pod is killed once; then it is verified. Afterwards a
trainer gets SIGTERM in the middle of a long job, and must have handed it back within 5 s. At last a
task of `fedfa new` is trained, by the pool whose image is built from the trainer's. Each component
has the broker user that k8s/rabbitmq-users.sh made for it. `make images-test` runs this, as root.

podman has no Services, probes, projected volumes and pod networks: pods share the host's network,
each with a port of its own, and their secrets are a folder. Everything else is as rendered.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

from fedfa import __version__
from fedfa.local.processes import free_ports
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.local.seaweedfs import SeaweedFS

K8S = Path(__file__).parent
USER = 10001
RELEASE = "fedfa"
VHOST = "images"
COMPONENTS = ("aggregator", "scheduler", "trainer-one", "trainer-two")
OWN_IMAGE = "localhost/fedfa-images-test-own-task:latest"  # of pool two
START_SECONDS = 180.0
RUN_SECONDS = 900.0
RELEASE_SECONDS = 5.0
SPEC: dict[str, Any] = {
    "task": {"name": "digits"},
    "rule": {"name": "fedfa-delta", "window": 3},
    "concurrency": 4,
    "clients": 10,
    "partition": {"kind": "iid"},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    "delay": {"distribution": "pareto", "shape": 3.0, "unit_seconds": 1.0},
    "stop": {"updates": 100_000},
}
IMAGES = [  # name, torch, compiled kernel
    ("aggregator", False, True),
    ("scheduler", False, False),
    ("cli", False, True),
    ("trainer", True, False),
]
LOOK = """
import importlib.util, json, os, shutil
from fedfa.kernel import kernel
tools = [name for name in ("cc", "gcc", "make", "pip", "git") if shutil.which(name)]
torch = importlib.util.find_spec("torch") is not None
kernel = kernel.name == "compiled"
user = [os.getuid(), os.getgid()]
print(json.dumps({"torch": torch, "kernel": kernel, "tools": tools, "user": user}))
"""
LONG_DELAY = {"delay": {"distribution": "pareto", "shape": 50.0, "unit_seconds": 600.0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--registry", default="localhost")
    parser.add_argument("--tag", default=__version__)
    options = parser.parse_args()
    if shutil.which("podman") is None:
        raise SystemExit(
            "images-test: no podman here; Debian: apt-get install podman runc catatonit"
        )
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="fedfa-images-")))
        folder.chmod(0o755)
        os.environ.setdefault("CONTAINERS_CONF", str(containers_conf(folder)))
        Trial(folder, options.registry, options.tag, cleanup).run()


class Trial:
    def __init__(self, folder: Path, registry: str, tag: str, cleanup: ExitStack) -> None:
        self._folder = folder
        self._registry = registry
        self._tag = tag
        self._cleanup = cleanup
        self._ports = dict(zip(COMPONENTS, free_ports(len(COMPONENTS)), strict=True))

    def run(self) -> None:
        for name, has_torch, has_kernel in IMAGES:
            self._look_into(name, has_torch=has_torch, has_kernel=has_kernel)
        own_task = self._build_own_task()
        self._start_servers()
        self._play()
        name = self._submit(SPEC)
        for component in COMPONENTS:
            wanted = self._num_decided(name) + 4
            self._kill(component)
            await_true(
                partial(self._has_decided, name, wanted),
                f"no merge after {component} was killed",
            )
        self._cli("stop", name)
        self._cli("watch", name)
        print(self._cli("verify", name).strip())
        self._release_in_time()
        self._train_own_task(own_task)

    # -- what is in the images --------------------------------------------------------------------

    def _look_into(self, name: str, *, has_torch: bool, has_kernel: bool) -> None:
        image = f"{self._registry}/fedfa-{name}:{self._tag}"
        offline = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "all"]
        version = podman(*offline, image, "--version").strip()
        found = json.loads(podman(*offline, "--entrypoint", "python3", image, "-c", LOOK))
        wanted = {"torch": has_torch, "kernel": has_kernel, "tools": [], "user": [USER, USER]}
        if found != wanted or __version__ not in version:
            raise SystemExit(f"images-test: {image}: {version}, {found}; expected {wanted}")
        print(f"{image}: {version}, {found}")

    def _build_own_task(self) -> Path:
        """As the README of a new task says, with podman in docker's place."""
        fedfa = [sys.executable, "-m", "fedfa.cli"]
        subprocess.run([*fedfa, "new", "own-task"], cwd=self._folder, check=True, timeout=60)
        package = self._folder / "own-task"
        trainer = f"{self._registry}/fedfa-trainer:{self._tag}"
        build = ["build", "--isolation", "chroot", "--build-arg", f"TRAINER={trainer}"]
        podman(*build, "--tag", OWN_IMAGE, str(package))
        self._cleanup.callback(podman, "rmi", "--force", OWN_IMAGE)
        return package

    # -- servers and pods -------------------------------------------------------------------------

    def _start_servers(self) -> None:
        self._rabbitmq = RabbitMQ(self._folder / "rabbitmq")
        self._rabbitmq.start()
        self._cleanup.callback(self._rabbitmq.stop)
        self._rabbitmq.ctl("add_vhost", VHOST)
        bucket = SeaweedFS(self._folder / "s3")
        bucket.start()
        self._cleanup.callback(bucket.stop)
        self._store = bucket.settings()
        for user, password in self._make_users().items():
            component = user.removeprefix(f"{RELEASE}-")
            self._write_secrets(component, user, password)

    def _make_users(self) -> dict[str, str]:
        """By the script that an operator runs; rabbitmqctl is this node's."""
        ctl = self._folder / "rabbitmqctl"
        self._rabbitmq.write_ctl(ctl)
        command = [str(K8S / "rabbitmq-users.sh"), VHOST, RELEASE, "one=default", "two=default"]
        done = subprocess.run(
            command,
            env={**os.environ, "RABBITMQCTL": str(ctl)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=120,
        )
        return dict(line.split("\t") for line in done.stdout.splitlines() if "\t" in line)

    def _write_secrets(self, component: str, user: str, password: str) -> None:
        assert self._store.access_key is not None
        assert self._store.secret_key is not None
        folder = self._folder / "secrets" / component
        folder.mkdir(parents=True)
        for name, value in {
            "FEDFA_AMQP_USERNAME": user,
            "FEDFA_AMQP_PASSWORD": password,
            "FEDFA_S3_ACCESS_KEY": self._store.access_key.get_secret_value(),
            "FEDFA_S3_SECRET_KEY": self._store.secret_key.get_secret_value(),
        }.items():
            (folder / name).write_text(value)
            os.chown(folder / name, USER, USER)
            (folder / name).chmod(0o400)

    def _values(self) -> dict[str, Any]:
        pool = {"serves": ["default"], "resources": {"limits": {"memory": "2Gi"}}}
        return {
            "image": {"registry": self._registry, "tag": self._tag, "pullPolicy": "Never"},
            "scheduler": {"settings": {"leaseTtlSeconds": 15}},
            "trainers": {
                "defaults": {"settings": {"trainerJobs": 4, "trainerTorchThreads": 1}},
                "pools": [{"name": "one"} | pool, {"name": "two", "image": OWN_IMAGE} | pool],
            },
            "broker": {
                "host": "127.0.0.1",
                "port": self._rabbitmq.port,
                "vhost": VHOST,
                "existingSecret": "of-each-component",
                "restrictTrainers": True,
                "settings": {"reconnectMaxSeconds": 5},
            },
            "bucket": {
                "endpoint": self._store.endpoint,
                "name": "images",
                "existingSecret": "of-each-component",
            },
        }

    def _play(self) -> None:
        with helm.Chart.load(K8S / "fedfa") as chart:
            values = self._values()
            chart.validate_schema(values)
            rendered = chart.render(values, name=RELEASE, namespace="images")
        objects = [
            each
            for path, text in rendered.items()
            if path.endswith(".yaml")
            for each in yaml.safe_load_all(text)
            if each
            and each["kind"] in ("ConfigMap", "Deployment")
            and "helm.sh/hook" not in each["metadata"].get("annotations", {})
        ]
        for each in objects:
            component = each["metadata"]["name"].removeprefix(f"{RELEASE}-")
            if each["kind"] == "ConfigMap":
                each["data"]["FEDFA_HTTP_PORT"] = str(self._ports[component])
            else:
                self._adapt(each["spec"]["template"]["spec"], component)
        play = self._folder / "pods.yaml"
        play.write_text(yaml.safe_dump_all(objects))
        podman("kube", "play", str(play))
        self._cleanup.callback(podman, "kube", "down", str(play))
        self._cleanup.push(self._show_logs)
        for component in COMPONENTS:
            await_true(partial(self._is_ready, component), f"{component} is not ready")
        print("ready:", ", ".join(COMPONENTS))

    def _adapt(self, pod: dict[str, Any], component: str) -> None:
        pod["hostNetwork"] = True
        (container,) = pod["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe", "ports"):
            del container[probe]
        for variable in container.get("env", []):
            variable.pop("valueFrom")
            variable["value"] = f"{RELEASE}-{component}"
        secrets_volume = {"path": str(self._folder / "secrets" / component), "type": "Directory"}
        pod["volumes"] = [
            {"name": each["name"], "hostPath": secrets_volume}
            if "projected" in each
            else {"name": each["name"], "emptyDir": {}}
            for each in pod["volumes"]
        ]

    # -- what is done to them ---------------------------------------------------------------------

    def _kill(self, component: str) -> None:
        """As a crash would; then start it again, as the kubelet would."""
        pod = pod_of(component)
        began = time.monotonic()
        podman("kill", "--signal", "KILL", container_of(component))
        # podman stops the pod of a container that ended, and would stop one that is started before
        await_true(
            lambda: podman("pod", "inspect", "--format", "{{.State}}", pod).strip() == "Exited",
            f"the pod of {component} does not end",
        )
        podman("pod", "start", pod)
        await_true(lambda: self._is_ready(component), f"{component} did not come back")
        print(f"{component}: killed, ready again after {time.monotonic() - began:.1f} s")

    def _release_in_time(self) -> None:
        """A trainer that sleeps out a delay of minutes is told to end."""
        name = self._submit(SPEC | LONG_DELAY)
        trainers = [each for each in COMPONENTS if each.startswith("trainer")]
        await_true(
            lambda: (
                all(job["phase"] == "delaying" for each in trainers for job in self._held(each))
                and sum(len(self._held(each)) for each in trainers) == SPEC["concurrency"]
            ),
            "not all jobs are trained",
        )
        busiest = max(trainers, key=lambda each: len(self._held(each)))
        held = len(self._held(busiest))
        before = self._released()
        began = time.monotonic()
        podman("kill", "--signal", "TERM", container_of(busiest))
        await_true(lambda: self._released() >= before + held, "nothing was handed back")
        seconds = time.monotonic() - began
        print(f"SIGTERM to PID 1: {held} job(s) handed back after {seconds:.1f} s")
        if seconds > RELEASE_SECONDS:
            raise SystemExit(f"handed back after {seconds:.1f} s, more than {RELEASE_SECONDS:g}")
        self._cli("stop", name)

    def _train_own_task(self, package: Path) -> None:
        podman("pod", "start", *(pod_of(each) for each in COMPONENTS))  # one was told to end
        podman("stop", container_of("trainer-one"))
        await_true(lambda: self._is_ready("trainer-two"), "trainer-two did not come back")
        spec = yaml.safe_load((package / "own_task.yaml").read_text())
        name = self._submit(spec | {"stop": {"updates": 8}})
        self._cli("watch", name)
        print(self._cli("verify", name).strip())

    def _submit(self, spec: dict[str, Any]) -> str:
        path = self._folder / f"spec-{secrets.token_hex(4)}.yaml"
        path.write_text(yaml.safe_dump(spec))
        path.chmod(0o644)
        return self._cli("submit", "/spec.yaml", spec=path).strip()

    def _cli(self, *arguments: str, spec: Path | None = None) -> str:
        folder = self._folder / "secrets" / "cli"
        variables = {
            "FEDFA_AMQP_URL": f"amqp://127.0.0.1:{self._rabbitmq.port}/{VHOST}",
            "FEDFA_S3_ENDPOINT": self._store.endpoint,
            "FEDFA_S3_BUCKET": "images",
            "FEDFA_SECRETS_DIR": "/run/secrets/fedfa",
        }
        command = ["run", "--rm", "--network", "host", "--read-only", "--cap-drop", "all"]
        command += ["--tmpfs", "/tmp", "--volume", f"{folder}:/run/secrets/fedfa:ro"]
        command += [f"--env={key}={value}" for key, value in variables.items()]
        command += [f"--volume={spec}:/spec.yaml:ro"] if spec else []
        return podman(*command, f"{self._registry}/fedfa-cli:{self._tag}", *arguments)

    def _show_logs(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            return
        for component in COMPONENTS:
            print(f"-- the end of {component}'s log:", flush=True)
            command = ["podman", "logs", "--tail", "30", container_of(component)]
            subprocess.run(command, check=False, timeout=RUN_SECONDS)

    # -- what is seen of them ---------------------------------------------------------------------

    def _get(self, component: str, path: str) -> Any:
        url = f"http://127.0.0.1:{self._ports[component]}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()

    def _is_ready(self, component: str) -> bool:
        try:
            return bool(json.loads(self._get(component, "/readyz"))["ready"])
        except OSError:
            return False

    def _held(self, component: str) -> list[dict[str, Any]]:
        held: list[dict[str, Any]] = json.loads(self._get(component, "/jobs"))
        return held

    def _has_decided(self, federation: str, number: int) -> bool:
        return self._num_decided(federation) >= number

    def _num_decided(self, federation: str) -> int:
        try:
            listed = json.loads(self._get("scheduler", "/federations"))
        except OSError:
            return -1
        (found,) = [each for each in listed if each["id"] == federation] or [{"merged": -1}]
        return int(found["merged"])

    def _released(self) -> int:
        lines = self._get("scheduler", "/metrics").splitlines()
        return sum(
            int(float(line.split()[1]))
            for line in lines
            if line.startswith("fedfa_jobs_released_total")
        )


def containers_conf(folder: Path) -> Path:
    """For podman inside a container, which may not raise limits as podman does by itself."""
    path = folder / "containers.conf"
    path.write_text(
        """[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
    )
    return path


def pod_of(component: str) -> str:
    return f"{RELEASE}-{component}-pod-0"


def container_of(component: str) -> str:
    service = component.partition("-")[0]
    return f"{pod_of(component)}-{service}"


def podman(*arguments: str) -> str:
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=RUN_SECONDS
    )
    if done.returncode != 0:
        raise SystemExit(f"podman {' '.join(arguments[:3])}: {done.stdout}{done.stderr}")
    return done.stdout


def await_true(
    condition: Callable[[], bool], otherwise: str, seconds: float = START_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"images-test: {otherwise} within {seconds:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
