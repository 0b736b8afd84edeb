"""Values: each explained, each setting of the services reachable, wrong ones refused by name."""

import re
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from pydantic_settings import BaseSettings

from fedfa.dashboard import DashboardSettings
from fedfa.settings import SECRETS_DIR, BrokerSettings, ServiceSettings, StoreSettings
from fedfa.spec import parse
from fedfa_aggregator.settings import AggregatorSettings
from fedfa_scheduler.settings import SchedulerSettings
from fedfa_trainer.settings import TrainerSettings
from k8s import generate
from tests import documented
from tests.chart.conftest import (
    CHART,
    RELEASE,
    Objects,
    Render,
    named,
    of_kind,
    scenario,
)

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SERVICES = {
    "aggregator": AggregatorSettings,
    "scheduler": SchedulerSettings,
    "trainer-default": TrainerSettings,
}
HELM = [command for command in documented.commands() if command.words[0] == "helm"]
INSTALL, *CHANGES = (command for command in HELM if command.words[1] in ("install", "upgrade"))
FILES = [block.body for block in documented.blocks() if block.language == "yaml"]
EXAMPLES = [
    block
    for block in documented.blocks()
    if block.language == "yaml" and "trainers:\n" in block.body
]
# What the chart itself sets, and the values need not name.
NOT_FOR_KUBERNETES = {"FEDFA_TRAINER_JOURNAL"}


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), name)


def variables(kind: type[BaseSettings]) -> set[str]:
    prefix = kind.model_config.get("env_prefix", "")
    return {f"{prefix}{name}".upper() for name in kind.model_fields}


@pytest.mark.parametrize("component", SERVICES)
def test_a_pod_can_be_given_every_setting_and_no_other(render: Render, component: str) -> None:
    values = scenario("production")
    values["trainers"]["defaults"] = {
        "settings": {"trainerTorchThreads": 2, "trainerTaskAllow": "mine.*"}
    }
    values["scheduler"]["settings"]["poolDownAfterSeconds"] = 600
    values["scheduler"]["dashboard"] = {"tokenSecret": "dashboard"}
    values["aggregator"].setdefault("settings", {})["aggregatorMemoryMib"] = 2048
    objects = render(values)
    config = named(objects, "ConfigMap", f"{RELEASE}-{component}")["data"]
    deployment = named(objects, "Deployment", f"{RELEASE}-{component}")
    pod = deployment["spec"]["template"]["spec"]
    env = {variable["name"] for variable in pod["containers"][0].get("env", [])}
    files = {
        item["path"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        for item in source["secret"]["items"]
    }
    known = variables(SERVICES[component]) | variables(BrokerSettings) | variables(StoreSettings)
    if component == "scheduler":
        known |= variables(DashboardSettings)
    given = {name for name in config.keys() | env if name.startswith("FEDFA_")} | files
    assert given - {SECRETS_DIR} == known - NOT_FOR_KUBERNETES


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        (VALUES["settings"], ServiceSettings),
        (VALUES["aggregator"]["settings"], AggregatorSettings),
        (VALUES["scheduler"]["settings"], SchedulerSettings),
        (VALUES["trainers"]["defaults"]["settings"], TrainerSettings),
        (VALUES["broker"]["settings"], BrokerSettings),
        (VALUES["bucket"]["settings"], StoreSettings),
        ({"bucket": VALUES["bucket"]["name"], "region": VALUES["bucket"]["region"]}, StoreSettings),
    ],
)
def test_a_default_here_is_the_services_own(
    group: dict[str, Any], kind: type[BaseSettings]
) -> None:
    for name, value in group.items():
        assert value == kind.model_fields[snake(name)].default, name


def test_the_services_read_what_the_chart_gives_them(
    rendered: dict[str, Objects], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = named(rendered["production"], "ConfigMap", f"{RELEASE}-trainer-default")["data"]
    for name, value in config.items():
        monkeypatch.setenv(name, value)
    for name in ("FEDFA_AMQP_USERNAME", "FEDFA_AMQP_PASSWORD", "FEDFA_S3_SECRET_KEY"):
        (tmp_path / name).write_text(f"{name} from a file\n")
    monkeypatch.setenv(SECRETS_DIR, str(tmp_path))
    broker, store, trainer = BrokerSettings(), StoreSettings(), TrainerSettings()
    assert broker.url.get_secret_value() == "amqp://rabbitmq.messaging.svc:5672/fedfa"
    assert broker.password is not None
    assert broker.password.get_secret_value() == "FEDFA_AMQP_PASSWORD from a file"
    assert broker.declare is False
    assert store.bucket == "federations"
    assert store.secret_key is not None
    assert trainer.pools == ("default",)
    assert trainer.http_host == "0.0.0.0"


def test_every_value_is_explained_and_the_readme_is_up_to_date() -> None:
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path}: run k8s/generate.py"
    unexplained = [line for line in generate.readme().splitlines() if line.endswith("|  |")]
    assert unexplained == []


def paths(schema: dict[str, Any], root: dict[str, Any], where: str = "") -> set[str]:
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    if not schema.get("properties"):
        return {where}
    return {
        path
        for name, each in schema["properties"].items()
        for path in paths(each, root, f"{where}.{name}".lstrip("."))
    }


def leaves(values: Any, where: str, ends: set[str]) -> set[str]:
    if where in ends or not isinstance(values, dict):
        return {where}
    return {
        path
        for name, each in values.items()
        for path in leaves(each, f"{where}.{name}".lstrip("."), ends)
    }


def test_the_schema_knows_exactly_the_values(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    known = paths(schema, schema)
    # resources are Kubernetes' own; `global` is what Helm gives to every chart.
    ends = known | {path.rpartition(".")[0] for path in known if path.endswith(".requests")}
    found = leaves(VALUES, "", ends)
    kubernetes = {path for path in known if path.endswith((".requests", ".limits"))}
    given = {path for path in found if not path.endswith("resources")}
    assert known - kubernetes - {"global"} == given - kubernetes


def with_pool(**fields: Any) -> dict[str, Any]:
    return {"trainers": {"pools": [{"name": "default"} | fields]}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"image": {"registry": ""}}, "image.registry"),
    ({"aggregator": {"replicas": -1}}, "aggregator/replicas"),
    ({"aggregator": {"replicas": 3}}, "aggregator/replicas"),
    ({"aggregatr": {}}, "aggregatr"),
    ({"scheduler": {"settings": {"leaseTtl": 5}}}, "leaseTtl"),
    ({"scheduler": {"settings": {"leaseTtlSeconds": 0}}}, "leaseTtlSeconds"),
    (
        {"scheduler": {"settings": {"poolDownAfterSeconds": 59}}},
        "scheduler.settings.poolDownAfterSeconds: 59 is less than leaseTtlSeconds, 60",
    ),
    (
        {"broker": {"settings": {"reconnectMaxSeconds": 21}}},
        "broker.settings.reconnectMaxSeconds: 21 is more than a third",
    ),
    (
        {"scheduler": {"settings": {"leaseTtlSeconds": 44}}},
        "third of scheduler.settings.leaseTtlSeconds, 44",
    ),
    ({"scheduler": {"dashboard": {"token": "in the clear"}}}, "token"),
    ({"settings": {"logLevel": "LOUD"}}, "logLevel"),
    (with_pool(replicas=-1), "trainers/pools/0/replicas"),
    (with_pool(name="UPPER"), "trainers/pools/0/name"),
    (with_pool(gpus=1), "gpus"),
    (with_pool(keda={"enabled": True}, hpa={"enabled": True}), "trainers.pools[0] (default): keda"),
    (with_pool(keda={"enabled": True, "trigger": "rabbitmq"}), "trigger"),
    (with_pool(keda={"enabled": True, "trigger": "prometheus"}), "keda.prometheusUrl"),
    (with_pool(keda={"enabled": True}, serves=["a", "b"]), "keda.trigger"),
    (with_pool(hpa={"enabled": True, "minReplicas": 9}), "hpa.minReplicas"),
    (with_pool(hpa={"enabled": True, "minReplicas": 0}), "hpa/minReplicas"),
    (with_pool(terminationGracePeriodSeconds=20), "terminationGracePeriodSeconds"),
    (with_pool(data={"existingClaim": "a", "hostPath": "/b"}), "data.existingClaim"),
    ({"trainers": {"pools": [{"name": "a"}, {"name": "a"}]}}, "trainers.pools[1] (a)"),
    ({"broker": {"mode": "external"}}, "broker.host"),
    ({"broker": {"mode": "external", "host": "h"}}, "broker.existingSecret"),
    ({"broker": {"mode": "bitnami"}}, "broker/mode"),
    ({"broker": {"existingSecret": "a"}}, "broker.existingSecret"),
    (
        {
            "broker": {
                "mode": "external",
                "host": "h",
                "existingSecret": "a",
                "username": "b",
                "password": "c",
            }
        },
        "broker.existingSecret and broker.username/broker.password",
    ),
    ({"broker": {"username": "a"}}, "broker.username and broker.password"),
    ({"broker": {"mode": "operator", "operator": {"replicas": 2}}}, "broker/operator/replicas"),
    ({"broker": {"tls": {"enabled": True}}}, "broker.tls.enabled"),
    ({"broker": {"port": 70000}}, "broker/port"),
    ({"broker": {"port": 5673}}, 'broker.host ("") and broker.port (5673)'),
    ({"broker": {"mode": "operator", "host": "h"}}, 'broker.host ("h") and broker.port (0)'),
    ({"bucket": {"existingSecret": "a"}}, "bucket.existingSecret"),
    (
        {"bucket": {"mode": "external", "existingSecret": "a", "accessKey": "b", "secretKey": "c"}},
        "bucket.existingSecret and bucket.accessKey/bucket.secretKey",
    ),
    ({"bucket": {"endpoint": "https://key:secret@host"}}, "bucket/endpoint"),
    ({"bucket": {"name": "No"}}, "bucket/name"),
    ({"bucket": {"settings": {"outageSeconds": 61}}}, "bucket/settings/outageSeconds"),
    ({"bucket": {"builtin": {"kind": "garage"}}}, "bucket/builtin/kind"),
    ({"federation": {"id": "a"}}, "federation.spec"),
    ({"networkPolicy": {"enabled": "yes"}}, "networkPolicy/enabled"),
]


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for name, value in change.items():
        old = both.get(name)
        both[name] = (
            merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return both


@pytest.mark.parametrize(("change", "named_value"), WRONG, ids=[name for _, name in WRONG])
def test_a_wrong_value_is_refused_by_its_name(
    render: Render, change: dict[str, Any], named_value: str
) -> None:
    with pytest.raises(helm.HelmError) as refusal:
        render(merged(scenario("minimal"), change))
    assert named_value in str(refusal.value)


# -- upgrades --------------------------------------------------------------------------------------

# What the API server refuses to change in an object that exists, by kind.
IMMUTABLE = {
    "Deployment": ["spec.selector"],
    "StatefulSet": ["spec.selector", "spec.serviceName", "spec.podManagementPolicy"],
    "RoleBinding": ["roleRef"],
    "Secret": ["type"],
    "Service": ["spec.clusterIP"],
    "ValidatingAdmissionPolicyBinding": [],
    "User": ["spec.rabbitmqClusterReference"],
    "Permission": ["spec.vhost", "spec.userReference", "spec.rabbitmqClusterReference"],
    "Policy": ["spec.name", "spec.vhost", "spec.rabbitmqClusterReference"],
    "Vhost": ["spec.name", "spec.rabbitmqClusterReference"],
}


def field(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


UPGRADES = [
    ("minimal", "monitoring"),
    ("minimal", "airgapped"),
    ("production", "gpu"),
    ("gpu", "pools"),
    ("hpa", "keda"),
    ("keda", "production"),
    ("tls", "production"),
]


@pytest.mark.parametrize(("before", "after"), UPGRADES)
def test_an_upgrade_changes_no_immutable_field(
    rendered: dict[str, Objects], before: str, after: str
) -> None:
    def by_name(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
        return {
            (each["kind"], each["metadata"]["name"]): each
            for each in objects
            if "helm.sh/hook" not in each["metadata"].get("annotations", {})
        }

    old, new = by_name(rendered[before]), by_name(rendered[after])
    common = old.keys() & new.keys()
    assert {kind for kind, _ in common} >= {"Deployment", "ConfigMap", "ServiceAccount"}
    for kind, name in common:
        for path in IMMUTABLE.get(kind, []):
            assert field(old[kind, name], path) == field(new[kind, name], path), (kind, name, path)
    assert of_kind(list(old.values()) + list(new.values()), "Job") == []  # hooks, made anew


def test_a_pools_selector_matches_its_own_pods_alone(rendered: dict[str, Objects]) -> None:
    deployments = of_kind(rendered["pools"], "Deployment")
    for one in deployments:
        wanted = one["spec"]["selector"]["matchLabels"]
        for other in deployments:
            labels = other["spec"]["template"]["metadata"]["labels"]
            assert (wanted.items() <= labels.items()) == (one is other)


def test_only_a_pools_own_change_restarts_its_trainers(render: Render) -> None:
    def checksum(values: dict[str, Any], pool: str) -> str:
        deployment = named(render(values), "Deployment", f"{RELEASE}-trainer-{pool}")
        annotations: dict[str, str] = deployment["spec"]["template"]["metadata"]["annotations"]
        return annotations["checksum/config"]

    values = scenario("pools")
    changed = scenario("pools")
    changed["trainers"]["pools"][1]["settings"] = {"trainerJobs": 3}
    assert checksum(values, "north") != checksum(changed, "north")
    assert checksum(values, "south") == checksum(changed, "south")
    assert checksum(values, "default") == checksum(changed, "default")


def documented_values(command: documented.Command) -> dict[str, Any]:
    """What a documented `helm install` or `helm upgrade` sets; an upgrade keeps the rest."""
    values = {} if command == INSTALL else documented_values(INSTALL)
    assert (CHART.parents[1] / command.words[3]) == CHART
    for option, argument in zip(command.words, command.words[1:], strict=False):
        if option == "--values":
            (file,) = (body for body in FILES if body.startswith(f"# {argument}\n"))
            values |= yaml.safe_load(file)
        elif option == "--set":
            path, _, value = argument.partition("=")
            *sections, last = path.split(".")
            inner = values
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = yaml.safe_load(value) if value.isdigit() else value
    return values


def test_the_documented_helm_commands_are_rendered(render: Render) -> None:
    assert {command.words[1] for command in HELM} == {"install", "upgrade", "test", "rollback"}
    for command in (INSTALL, *CHANGES):
        values = documented_values(command)
        objects = render(values)
        assert {"Deployment", "StatefulSet"} <= {each["kind"] for each in objects}
        if "federation" in values:
            name = f"{RELEASE}-submit-{values['federation']['id']}"
            spec = named(objects, "ConfigMap", name)["data"]["spec.yaml"]
            assert parse(yaml.safe_load(spec)).task.name == "digits"
    assert any("federation" in documented_values(each) for each in CHANGES)


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: f"{block.page}:{block.line}")
def test_the_documented_pools_are_rendered(render: Render, block: documented.Block) -> None:
    values = yaml.safe_load(block.body)
    names = {each["metadata"]["name"] for each in render(documented_values(INSTALL) | values)}
    assert {f"{RELEASE}-trainer-{pool['name']}" for pool in values["trainers"]["pools"]} <= names
