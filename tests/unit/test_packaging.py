"""What each image installs and loads, and which module may import what."""

import ast
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]


def requirements(name: str, extra: str = "") -> set[str]:
    """Every distribution that installing name[extra] brings, by the installed metadata."""
    found: set[str] = set()
    waiting = [(name, extra)]
    while waiting:
        current, current_extra = waiting.pop()
        for text in metadata.requires(current) or []:
            requirement = Requirement(text)
            environment = {"extra": current_extra}
            if requirement.marker and not requirement.marker.evaluate(environment):
                continue
            if requirement.name not in found:
                found.add(requirement.name)
                waiting.extend((requirement.name, each) for each in ["", *requirement.extras])
    return found


@pytest.mark.parametrize("extra", ["aggregator", "scheduler"])
def test_the_light_services_bring_no_torch(extra: str) -> None:
    brought = requirements("fedfa", extra)
    assert "boto3" in brought
    assert not brought & {"torch", "torchvision", "transformers", "peft", "scikit-learn"}


def test_the_trainer_brings_torch() -> None:
    assert {"torch", "torchvision"} <= requirements("fedfa", "trainer")


@pytest.mark.parametrize("service", ["fedfa-aggregator", "fedfa-scheduler"])
def test_the_light_services_start_without_loading_torch(service: str) -> None:
    module = service.replace("-", "_")
    program = (
        f"import sys; sys.argv = ['{service}', '--version']\n"
        f"from {module}.__main__ import main; main()\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{service} 0.")


def imported_by(package: str) -> set[str]:
    """Our modules that name a package in an import statement, anywhere in their source."""
    found = set()
    for root in ("shared", "services"):
        for path in (REPOSITORY / root).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                if any(name.split(".")[0] == package for name in names):
                    found.add(path.relative_to(REPOSITORY).as_posix())
    return found


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("pika", "shared/fedfa/broker/"),
        ("boto3", "shared/fedfa/s3.py"),
        ("botocore", "shared/fedfa/s3"),
        ("msgpack", "shared/fedfa/messages.py"),
        ("torchvision", "shared/fedfa/tasks/vision.py"),
    ],
)
def test_one_place_alone_knows_each_foreign_api(package: str, home: str) -> None:
    users = imported_by(package)
    assert users
    assert all(user.startswith(home) for user in users), users


def test_what_says_that_it_is_pure_is_held_to_it() -> None:
    said = set()
    for root in (REPOSITORY / "shared", *REPOSITORY.glob("services/*")):
        for path in root.rglob("*.py"):
            if "PURE" in (ast.get_docstring(ast.parse(path.read_text())) or ""):
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                said.add(name.removesuffix(".__init__"))
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    [core] = [contract for contract in contracts if "PURE" in contract["name"]]
    assert said == set(core["source_modules"])
