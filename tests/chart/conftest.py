"""The chart, rendered by the Helm engine itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

CHART = Path(__file__).parents[2] / "k8s" / "fedfa"
SCENARIOS = {
    path.name.removesuffix("-values.yaml"): path for path in (CHART / "ci").glob("*-values.yaml")
}
RELEASE, NAMESPACE = "demo", "learning"

Objects = list[dict[str, Any]]
Render = Callable[[dict[str, Any]], Objects]


def scenario(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(SCENARIOS[name].read_text())
    return values


@pytest.fixture(scope="session")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: helm.Chart) -> Render:
    """Values -> every object of a release. Raises helm.HelmError as `helm template` would."""

    def objects(values: dict[str, Any]) -> Objects:
        chart.validate_schema(values)
        rendered = chart.render(values, name=RELEASE, namespace=NAMESPACE)
        documents = (
            document
            for path, text in sorted(rendered.items())
            if path.endswith(".yaml")
            for document in yaml.load_all(text, Loader=yaml.CSafeLoader)  # ten times as fast
        )
        return [document for document in documents if document]

    return objects


@pytest.fixture(scope="session")
def rendered(render: Render) -> dict[str, Objects]:
    """Every scenario's objects."""
    return {name: render(scenario(name)) for name in SCENARIOS}


def of_kind(objects: Objects, *kinds: str) -> Objects:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return found


def pods(objects: Objects) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, str]]]:
    """(object, pod spec, pod labels) of every object that makes pods."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each, each["spec"], each["metadata"]["labels"]
        elif each["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = each["spec"]["template"]
            yield each, template["spec"], template["metadata"]["labels"]
