"""What every scenario renders: valid for Kubernetes and the operators, secure, and what we want."""

import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

import fedfa_aggregator.metrics
import fedfa_scheduler.metrics
import fedfa_trainer.metrics
from fedfa import topology
from fedfa.doctor import POLICY, POLICY_NAME, POLICY_PATTERN
from fedfa_aggregator.views import SHARE_OF_MEMORY, num_models
from tests.chart.conftest import (
    CHART,
    NAMESPACE,
    RELEASE,
    SCENARIOS,
    Objects,
    Render,
    named,
    of_kind,
    pods,
    scenario,
)
from tests.unit import builders
from tests.unit.test_docs import exported

OLDEST, NEWEST = "1.30", "1.37"
ROOT = Path(__file__).parents[2]
OPERATORS = {
    "ScaledObject": ScaledObject,
    "PodMonitor": PodMonitor,
    "PrometheusRule": PrometheusRule,
}
RABBITMQ = yaml.safe_load((Path(__file__).parent / "rabbitmq.yaml").read_text())

each_scenario = pytest.mark.parametrize("name", sorted(SCENARIOS))


# kubernetes_validate.validate reads megabytes for each object; these are the same, read once.
@cache
def kubernetes_schema(version: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}-{number}".replace("--", "-")
    schema = _schema(version, name)
    registry = Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Registry[Any]:
    return Resource.from_contents(_schema(version, "_definitions")) @ Registry()


def _schema(version: str, name: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    return schema_contents(f"{folder}/{name}.json", version)


@each_scenario
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_helm_finds_nothing_to_complain_about(name: str, version: str) -> None:
    report = helm.lint(CHART, scenario(name), strict=True, kube_version=f"v{version}.0")
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@each_scenario
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_fits_the_schema_of_kubernetes_or_of_its_operator(
    rendered: dict[str, Objects], name: str, version: str
) -> None:
    validate(rendered[name], version)


def validate(objects: Objects, version: str) -> None:
    """Raises ValidationError or AssertionError for an object that does not fit."""
    for each in objects:
        if each["kind"] in OPERATORS:
            model = OPERATORS[each["kind"]].model_validate(each)
            # Unknown fields are ignored there: what comes back must be all that went in.
            assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == each
        elif each["apiVersion"].startswith("rabbitmq.com/"):
            assert each["apiVersion"] == "rabbitmq.com/v1beta1"
            schema = RABBITMQ[each["kind"]] | {"definitions": RABBITMQ["definitions"]}
            jsonschema.validate(each["spec"], schema)
        else:
            kubernetes_schema(version, each["apiVersion"], each["kind"]).validate(each)


def test_a_misspelt_field_of_every_kind_would_be_found(rendered: dict[str, Objects]) -> None:
    kinds = {each["kind"]: each for objects in rendered.values() for each in objects}
    for kind, each in kinds.items():
        broken = json.loads(json.dumps(each))
        (broken if kind in ("ConfigMap", "Secret") else broken.get("spec", broken))["nonsense"] = 1
        with pytest.raises((jsonschema.ValidationError, AssertionError)):
            validate([broken], NEWEST)


@each_scenario
def test_names_are_unique_short_enough_and_begin_with_the_release(
    rendered: dict[str, Objects], name: str
) -> None:
    seen = [(each["kind"], each["metadata"]["name"]) for each in rendered[name]]
    assert len(seen) == len(set(seen))
    for kind, each in seen:
        assert each.startswith(RELEASE), (kind, each)
        assert len(each) <= 63


def test_what_yaml_takes_for_something_else_stays_text(render: Render) -> None:
    values = scenario("tls")
    values["image"]["pullSecrets"] = ["5"]
    values["broker"] |= {"usernameKey": "on", "passwordKey": "1e3"}
    values["broker"]["tls"] |= {"caSecret": "3", "caKey": "4"}
    values["bucket"] |= {"accessKeyKey": "yes", "secretKeyKey": "0x1"}
    values["scheduler"] = {"priorityClassName": "10"}
    values["scheduler"]["dashboard"] = {"tokenSecret": "2", "tokenKey": "no"}
    values["trainers"] = {"pools": [{"name": name} for name in ("1", "true", "on", "no")]}
    values["trainers"]["pools"][0]["data"] = {"hostPath": "/srv/a, b"}
    users = scenario("topology")
    users["broker"]["vhost"] = "1"
    validate(render(values) + render(users), NEWEST)


def test_the_longest_names_fit_a_label(render: Render) -> None:
    """KEDA labels what it makes with the ScaledObject's name."""
    values = scenario("keda") | {"fullnameOverride": "a" * 60}
    longest = [{"name": "p" * 14 + last, "keda": {"enabled": True}} for last in "12"]
    values["trainers"]["pools"] = longest
    names = [each["metadata"]["name"] for each in of_kind(render(values), "ScaledObject")]
    assert len(set(names)) == 2
    assert max(len(name) for name in names) <= 63


@each_scenario
def test_every_container_is_restricted(rendered: dict[str, Objects], name: str) -> None:
    """The Pod Security Standard "restricted", and a read-only root."""
    for each, pod, _ in pods(rendered[name]):
        where = each["metadata"]["name"]
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, where
        assert security["runAsUser"] > 0, where
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), where
        for container in pod["containers"] + pod.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, where


@each_scenario
def test_pods_have_limits_probes_and_no_token_unless_they_need_one(
    rendered: dict[str, Objects], name: str
) -> None:
    protected = scenario(name).get("trainers", {}).get("protection", {}).get("enabled", False)
    for each, pod, labels in pods(rendered[name]):
        where, component = each["metadata"]["name"], labels["app.kubernetes.io/component"]
        needs_token = component == "trainer" and protected
        assert pod["automountServiceAccountToken"] is needs_token, where
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), where
            assert "memory" in container["resources"]["limits"], where
            if each["kind"] in ("Deployment", "StatefulSet"):
                assert container["startupProbe"], where
                assert container["livenessProbe"], where
                assert container["readinessProbe"], where
    for account in of_kind(rendered[name], "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_liveness_asks_only_whether_the_loop_turns(rendered: dict[str, Objects]) -> None:
    """An outage of the broker, which ends readiness, must not restart a trainer."""
    for component in ("aggregator", "scheduler", "trainer-default"):
        container = only_container(rendered["production"], component)
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def only_container(objects: Objects, component: str) -> dict[str, Any]:
    deployment = named(objects, "Deployment", f"{RELEASE}-{component}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


@each_scenario
def test_gpus_are_for_trainers_alone(rendered: dict[str, Objects], name: str) -> None:
    for _, pod, labels in pods(rendered[name]):
        for container in pod["containers"]:
            limits = container["resources"]["limits"]
            has_gpu = any("gpu" in resource for resource in limits)
            assert has_gpu == (name == "gpu" and labels["app.kubernetes.io/component"] == "trainer")


def test_a_gpu_pool_gets_what_it_asks_for(rendered: dict[str, Objects]) -> None:
    deployment = named(rendered["gpu"], "Deployment", f"{RELEASE}-trainer-default")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "1"}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "model-cache"}
    config = named(rendered["gpu"], "ConfigMap", f"{RELEASE}-trainer-default")["data"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert config["TORCHINDUCTOR_CACHE_DIR"].startswith(mounts["cache"] + "/")


@each_scenario
def test_no_secret_is_in_an_environment_or_a_config_map(
    rendered: dict[str, Objects], name: str
) -> None:
    objects = rendered[name]
    secrets = {
        value
        for secret in of_kind(objects, "Secret")
        for key, value in secret["stringData"].items()
        if key in ("password", "secretKey")
    }
    elsewhere = json.dumps([each for each in objects if each["kind"] != "Secret"])
    for secret in secrets:
        assert secret not in elsewhere
    for _, pod, _ in pods(objects):
        for container in pod["containers"]:
            for variable in container.get("env", []):
                assert "secretKeyRef" not in variable.get("valueFrom", {})
            assert not any("secretRef" in source for source in container.get("envFrom", []))


@each_scenario
def test_every_secret_that_is_mounted_is_made_here_or_named_in_the_values(
    rendered: dict[str, Objects], name: str
) -> None:
    objects = rendered[name]
    made = {each["metadata"]["name"] for each in of_kind(objects, "Secret")}
    made |= {f"{each['metadata']['name']}-user-credentials" for each in of_kind(objects, "User")}
    given = SCENARIOS[name].read_text()
    for each, pod, _ in pods(objects):
        for volume in pod["volumes"]:
            names = [
                source["secret"]["name"]
                for source in volume.get("projected", {}).get("sources", [])
            ]
            names += [volume["secret"]["secretName"]] if "secret" in volume else []
            for secret in names:
                known = secret in made or re.search(rf"\b{re.escape(secret)}\b", given)
                assert known, (each["metadata"]["name"], secret)


def test_an_installation_has_one_broker_secret_per_component(rendered: dict[str, Objects]) -> None:
    used = {
        labels["app.kubernetes.io/component"]: [
            source["secret"]["name"]
            for volume in pod["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
        ]
        for _, pod, labels in pods(rendered["production"])
    }
    assert used == {
        component: [f"broker-{component}", f"bucket-{component}"]
        for component in ("aggregator", "scheduler", "trainer", "cli")
    }


def test_ones_own_secrets_have_ones_own_keys_whatever_their_names(render: Render) -> None:
    """Also where a name is one that the chart or the operator would give."""
    values = scenario("minimal")
    values["broker"] = {
        "host": "h",
        "existingSecret": f"{RELEASE}-broker",
        "usernameKey": "user",
        "passwordKey": "pass",
    }
    values["bucket"] = {
        "existingSecret": f"{RELEASE}-bucket",
        "accessKeyKey": "id",
        "secretKeyKey": "key",
    }
    values["scheduler"] = {"brokerSecret": "scheduler-user-credentials"}
    for _, pod, _ in pods(render(values)):
        (sources,) = (
            each["projected"]["sources"] for each in pod["volumes"] if "projected" in each
        )
        keys = [item["key"] for source in sources for item in source["secret"]["items"]]
        assert keys == ["user", "pass", "id", "key"]


def test_tls_verifies_by_the_given_authorities(rendered: dict[str, Objects]) -> None:
    config = named(rendered["tls"], "ConfigMap", f"{RELEASE}-scheduler")["data"]
    assert config["FEDFA_AMQP_URL"] == "amqps://rabbitmq.example.org:5671/%2F"
    assert config["SSL_CERT_FILE"] == "/run/authorities/broker/authority.pem"
    assert config["AWS_CA_BUNDLE"] == "/run/authorities/bucket/ca.crt"
    mounts = {
        m["name"]: m["mountPath"]
        for m in only_container(rendered["tls"], "scheduler")["volumeMounts"]
    }
    assert mounts["broker-authority"] == "/run/authorities/broker"
    assert mounts["bucket-authority"] == "/run/authorities/bucket"


def test_in_an_air_gap_every_image_comes_from_the_registry_inside(
    rendered: dict[str, Objects],
) -> None:
    for _, pod, _ in pods(rendered["airgapped"]):
        assert pod["imagePullSecrets"] == [{"name": "mirror-password"}]
        for container in pod["containers"]:
            assert container["image"].startswith("registry.internal:5000/mirror/")


# -- the network -----------------------------------------------------------------------------------


@each_scenario
def test_every_pod_has_a_network_policy_unless_they_are_off(
    rendered: dict[str, Objects], name: str
) -> None:
    policies = of_kind(rendered[name], "NetworkPolicy")
    if scenario(name).get("networkPolicy", {}).get("enabled", True) is False:
        assert policies == []
        return
    for each, _, labels in pods(rendered[name]):
        matching = [
            policy
            for policy in policies
            if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        assert len(matching) == 1, each["metadata"]["name"]
        assert matching[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_only_whom_the_values_name_may_come_in(rendered: dict[str, Objects]) -> None:
    monitoring = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    }
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
    peers = {
        policy["metadata"]["name"]: [
            peer for rule in policy["spec"]["ingress"] for peer in rule["from"]
        ]
        for policy in of_kind(rendered["production"], "NetworkPolicy")
    }
    assert peers == {
        f"{RELEASE}-aggregator": [monitoring],
        f"{RELEASE}-scheduler": [monitoring, keda],
        f"{RELEASE}-trainer": [monitoring],
        f"{RELEASE}-cli": [],
    }


def test_trainers_reach_names_broker_bucket_and_nothing_else(rendered: dict[str, Objects]) -> None:
    def ports(name: str) -> list[int]:
        policy = named(rendered[name], "NetworkPolicy", f"{RELEASE}-trainer")
        return [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]

    assert ports("pools") == [53, 53, 5672, 9000]
    assert ports("tls") == [53, 53, 5671, 443]
    assert ports("production") == [53, 53, 5672, 443, 443, 6443]  # and the API server, for marks


def test_further_egress_is_every_components(render: Render) -> None:
    dns = {"ports": [{"port": 5353, "protocol": "UDP"}]}
    values = scenario("production")
    values["networkPolicy"] |= {"egress": [dns], "trainerEgress": [{"ports": [{"port": 2049}]}]}
    policies = of_kind(render(values), "NetworkPolicy")
    assert len(policies) == 4
    for policy in policies:
        assert policy["spec"]["egress"].count(dns) == 1, policy["metadata"]["name"]


def test_who_sees_the_dashboard_may_come_in_beside_every_pod(render: Render) -> None:
    outside = {"ipBlock": {"cidr": "203.0.113.0/24"}}  # an ingress controller on the nodes' network
    values = scenario("minimal") | {"networkPolicy": {"dashboard": [outside]}}
    policy = named(render(values), "NetworkPolicy", f"{RELEASE}-scheduler")
    assert policy["spec"]["ingress"][0]["from"] == [{"namespaceSelector": {}}, outside]


# -- scaling ---------------------------------------------------------------------------------------


def test_a_fixed_pool_says_how_many_and_a_scaled_one_leaves_it_to_its_scaler(
    rendered: dict[str, Objects],
) -> None:
    assert (
        named(rendered["production"], "Deployment", f"{RELEASE}-trainer-default")["spec"][
            "replicas"
        ]
        == 4
    )
    for name in ("keda", "hpa"):
        deployment = named(rendered[name], "Deployment", f"{RELEASE}-trainer-default")
        assert "replicas" not in deployment["spec"]


def test_keda_scales_on_open_jobs_and_never_on_a_queue(rendered: dict[str, Objects]) -> None:
    default = named(rendered["keda"], "ScaledObject", f"{RELEASE}-trainer-default")["spec"]
    assert default["scaleTargetRef"] == {"name": f"{RELEASE}-trainer-default"}
    assert default["minReplicaCount"] == 0
    (trigger,) = default["triggers"]
    assert trigger == {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{RELEASE}-scheduler.{NAMESPACE}.svc:8000/open-jobs",
            "valueLocation": "[pools.default,!0].0",
            "targetValue": "1",
        },
    }
    (spot,) = named(rendered["keda"], "ScaledObject", f"{RELEASE}-trainer-spot")["spec"]["triggers"]
    wanted = 'sum(fedfa_open_jobs{namespace="learning", pool=~"spot|cheap"})'
    zero = '0 * sum(fedfa_open_jobs{namespace="learning"})'  # of pools without work so far
    assert spot["metadata"]["query"] == f"{wanted} or {zero}"
    assert spot["metadata"]["threshold"] == "4"  # jobs that one pod holds


def test_the_hpa_asks_for_the_metric_that_the_scheduler_exports(
    rendered: dict[str, Objects],
) -> None:
    spec = named(rendered["hpa"], "HorizontalPodAutoscaler", f"{RELEASE}-trainer-default")["spec"]
    metric = spec["metrics"][0]["external"]["metric"]
    assert metric["name"] in {each.partition("{")[0] for each in exported(fedfa_scheduler.metrics)}
    assert metric["selector"]["matchExpressions"][0]["values"] == ["default"]


def test_protection_is_a_role_to_patch_pods_and_an_admission_policy_that_narrows_it(
    rendered: dict[str, Objects],
) -> None:
    objects = rendered["production"]
    (role,) = of_kind(objects, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    (binding,) = of_kind(objects, "RoleBinding")
    account = {"kind": "ServiceAccount", "name": f"{RELEASE}-trainer", "namespace": NAMESPACE}
    assert binding["subjects"] == [account]
    (policy,) = of_kind(objects, "ValidatingAdmissionPolicy")
    (limits,) = of_kind(objects, "ValidatingAdmissionPolicyBinding")
    assert limits["spec"]["policyName"] == policy["metadata"]["name"]
    user = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-trainer"
    assert user in policy["spec"]["matchConditions"][0]["expression"]
    assert of_kind(rendered["minimal"], "Role", "RoleBinding", "ValidatingAdmissionPolicy") == []


def test_nothing_blocks_a_drain(rendered: dict[str, Objects]) -> None:
    for objects in rendered.values():
        assert of_kind(objects, "PodDisruptionBudget") == []


@pytest.mark.parametrize("window", [1, 10, 50, 200])
@pytest.mark.parametrize("rule", ["fedfa-delta", "port"])
def test_the_aggregators_memory_holds_what_its_federations_need(
    render: Render, rule: str, window: int
) -> None:
    spec = builders.spec(
        rule={"name": rule, "window": window}, clients=window + 10, concurrency=window
    )
    for size, federations in ((1, 1), (50, 1), (500, 3)):
        model = {"sizeMiB": size, "window": window, "federations": federations}
        objects = render(scenario("minimal") | {"aggregator": {"model": model}})
        limits = only_container(objects, "aggregator")["resources"]["limits"]
        usable = int(limits["memory"].removesuffix("Mi")) * SHARE_OF_MEMORY
        assert usable >= num_models(spec) * size * federations


# -- the broker and the bucket ---------------------------------------------------------------------


def test_the_built_in_servers_can_write_where_they_must(rendered: dict[str, Objects]) -> None:
    bucket = named(rendered["minio"], "StatefulSet", f"{RELEASE}-bucket")
    (minio,) = bucket["spec"]["template"]["spec"]["containers"]
    (home,) = (each["value"] for each in minio["env"] if each["name"] == "HOME")
    mounts = {each["mountPath"]: each for each in minio["volumeMounts"]}
    assert not mounts[home].get("readOnly")
    broker = named(rendered["minio"], "StatefulSet", f"{RELEASE}-broker")
    security = broker["spec"]["template"]["spec"]["securityContext"]
    # Erlang refuses a cookie that its group may read, which each mount would make of it.
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"


def test_each_component_and_pool_has_a_user_with_its_permissions(
    rendered: dict[str, Objects],
) -> None:
    objects = rendered["operator"]
    users = {each["metadata"]["name"] for each in of_kind(objects, "User")}
    components = ("aggregator", "scheduler", "cli", "trainer-default", "trainer-gpu")
    assert users == {f"{RELEASE}-{component}" for component in components}
    for permission in of_kind(objects, "Permission"):
        assert permission["spec"]["userReference"]["name"] == permission["metadata"]["name"]
    gpu = named(objects, "Permission", f"{RELEASE}-trainer-gpu")["spec"]["permissions"]
    for queue, may in [
        (topology.jobs_queue("gpu"), True),
        (topology.jobs_queue("big"), True),
        (topology.jobs_queue("default"), False),
        (topology.UPDATES_QUEUE, False),
        (topology.EVENTS_QUEUE, False),
        (topology.DEAD_QUEUE, False),
    ]:
        assert bool(re.search(gpu["read"], queue.name)) is may, queue.name
        assert not re.search(gpu["configure"], queue.name)
    for route in (topology.UPDATES, topology.EVENTS, topology.DEAD, topology.BROADCAST):
        assert re.search(gpu["write"], route.exchange)
    assert not re.search(gpu["write"], topology.jobs("gpu").exchange)
    data = named(objects, "ConfigMap", f"{RELEASE}-trainer-gpu")["data"]
    assert data["FEDFA_AMQP_DECLARE"] == "false"


def test_the_script_grants_what_the_operator_grants() -> None:
    permissions = yaml.safe_load((CHART / "files" / "permissions.yaml").read_text())
    script = (ROOT / "k8s" / "rabbitmq-users.sh").read_text()
    for role in ("aggregator", "scheduler", "cli"):
        quoted = re.search(rf"^user {role} ((?:.|\n)*?'\n)(?=\w|for)", script, re.MULTILINE)
        assert quoted
        assert re.findall(r"'([^']*)'", quoted[1]) == list(permissions[role].values())
    trainer = script.partition("for pool")[2]
    assert f"'{permissions['trainer']['configure']}'" in trainer
    assert f"'{permissions['trainer']['write']}'" in trainer
    read = permissions["trainer"]["read"].replace("POOLS", "$serves")
    assert f'"{read.removesuffix("$")}\\$"' in trainer


def test_the_policy_is_the_one_that_doctor_prints(rendered: dict[str, Objects]) -> None:
    spec = named(rendered["operator"], "Policy", RELEASE)["spec"]
    assert (spec["name"], spec["pattern"]) == (POLICY_NAME, POLICY_PATTERN)
    assert spec["definition"] == json.loads(POLICY)


def test_users_can_be_made_in_a_cluster_that_exists(rendered: dict[str, Objects]) -> None:
    for each in of_kind(rendered["topology"], "User", "Permission", "Policy"):
        cluster = {"name": "shared", "namespace": "messaging"}
        assert each["spec"]["rabbitmqClusterReference"] == cluster
    assert of_kind(rendered["topology"], "RabbitmqCluster") == []


# -- observing -------------------------------------------------------------------------------------


def test_the_alerts_are_those_of_the_documentation_for_one_namespace(
    rendered: dict[str, Objects],
) -> None:
    """Otherwise absent() would be silent about one release while another one runs."""
    (rule,) = of_kind(rendered["monitoring"], "PrometheusRule")
    namespace = f'namespace="{NAMESPACE}"'
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    for alert in alerts:
        metrics = re.findall(r"fedfa_\w+(.*?})", alert["expr"])
        assert len(metrics) == alert["expr"].count("fedfa_")
        assert all(selector.startswith("{" + namespace) for selector in metrics), alert["expr"]
        assert alert["labels"].pop("namespace") == NAMESPACE
        alert["expr"] = alert["expr"].replace(f"{namespace}, ", "").replace(f"{{{namespace}}}", "")
    assert rule["spec"] == yaml.safe_load((ROOT / "docs" / "alerts.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_pod_monitor_selects_the_services_and_a_port_that_they_have(
    rendered: dict[str, Objects],
) -> None:
    objects = rendered["monitoring"]
    (monitor,) = of_kind(objects, "PodMonitor")
    selector = monitor["spec"]["selector"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    components = selector["matchExpressions"][0]["values"]
    for _, pod, labels in pods(objects):
        component = labels["app.kubernetes.io/component"]
        if component in components:
            assert selector["matchLabels"].items() <= labels.items()
            assert endpoint["port"] in {port["name"] for port in pod["containers"][0]["ports"]}
    assert set(components) == {"aggregator", "scheduler", "trainer"}


def test_the_dashboard_asks_for_metrics_that_exist(rendered: dict[str, Objects]) -> None:
    data = named(rendered["monitoring"], "ConfigMap", f"{RELEASE}-dashboard")["data"]
    dashboard = json.loads(data["fedfa.json"])
    modules = (fedfa_aggregator.metrics, fedfa_scheduler.metrics, fedfa_trainer.metrics)
    known = {name.partition("{")[0] for module in modules for name in exported(module)}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {
        metric.removesuffix("_bucket")
        for query in queries
        for metric in re.findall(r"\bfedfa_\w+", query)
    }
    assert asked
    assert asked <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


# -- helm test and federations ---------------------------------------------------------------------


def test_the_federations_of_the_chart_are_valid_specs(rendered: dict[str, Objects]) -> None:
    specs = importlib.import_module("fedfa.spec")
    for name in ("monitoring", "minimal"):
        for config in of_kind(rendered[name], "ConfigMap"):
            if "spec.yaml" in config["data"]:
                specs.FederationSpec.model_validate(yaml.safe_load(config["data"]["spec.yaml"]))
    (job,) = of_kind(rendered["monitoring"], "Job")
    assert "post-upgrade" in job["metadata"]["annotations"]["helm.sh/hook"]


def test_helm_test_runs_the_doctor_and_then_a_federation(rendered: dict[str, Objects]) -> None:
    tests = [
        (
            each["metadata"]["annotations"].get("helm.sh/hook-weight", "0"),
            pod["containers"][0]["args"][0].strip(),
        )
        for each, pod, _ in pods(rendered["minimal"])
        if each["kind"] == "Pod"
    ]
    first, second = sorted(tests)
    assert first == ("0", "fedfa doctor")
    assert second[1].splitlines() == ["id=$(fedfa submit /spec/spec.yaml)", 'fedfa watch "$id"']
