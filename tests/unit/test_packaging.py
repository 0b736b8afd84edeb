"""What each image installs and loads: the scheduler and the aggregator know no torch."""

import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement


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
