"""The tables of the documentation, and the README's sample of a run, say what the code says."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import prometheus_client
import pytest
import yaml
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

import fedfa_aggregator.metrics
import fedfa_scheduler.metrics
import fedfa_trainer.metrics
from fedfa import spec_files, topology
from fedfa.cli import control, views
from fedfa.cli.results import Confirmed
from fedfa.dashboard import DashboardSettings
from fedfa.history import HistoryReader
from fedfa.messages import AnyMessage
from fedfa.rule_choices import RuleChoice
from fedfa.settings import BrokerSettings, ServiceSettings, StoreSettings
from fedfa.store import DirectoryStore
from fedfa.summary import summarize
from fedfa_aggregator.settings import AggregatorSettings
from fedfa_scheduler.settings import SchedulerSettings
from fedfa_trainer.settings import TrainerSettings
from tests import documented
from tests.unit.sample_run import write_sample_run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
PROTOCOL = (DOCS / "protocol.md").read_text()
RULES = (DOCS / "rules.md").read_text()
TROUBLES = (DOCS / "troubleshooting.md").read_text()
ALERTS = yaml.safe_load((DOCS / "alerts.yaml").read_text())

HEADINGS: dict[str, type[BaseSettings]] = {
    "All services": ServiceSettings,
    "Aggregator": AggregatorSettings,
    "Scheduler": SchedulerSettings,
    "Trainer": TrainerSettings,
    "Dashboard (scheduler, `fedfa dashboard`)": DashboardSettings,
    "Broker (every process)": BrokerSettings,
    "Bucket (every process)": StoreSettings,
}
METRICS = {
    "aggregator": fedfa_aggregator.metrics,
    "scheduler": fedfa_scheduler.metrics,
    "trainer": fedfa_trainer.metrics,
}
COMPUTED = {"trainer_name": "host name and process id"}
NOT_LISTED = {"schema_version", "kind", "federation", "uid"}  # of every message


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its header."""
    section = re.split(r"^#+ ", page.split(f"# {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def shown(name: str, field: FieldInfo) -> str:
    """A default value, as the tables write it."""
    if name in COMPUTED:
        return COMPUTED[name]
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, int | float) else f"`{value}`"


def test_the_rules_table_has_every_option_with_its_default_and_meaning() -> None:
    expected = []
    for rule in get_args(get_args(RuleChoice)[0]):
        for name, field in rule.model_fields.items():
            if name != "name":
                kind = getattr(field.default, "kind", None)
                default = f"`{kind}`" if kind else shown(name, field)
                expected.append([f"`{rule().name}.{name}`", default, field.description])
    assert rows(RULES, "Options") == expected


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_settings_table_has_every_variable_with_its_default_and_meaning(heading: str) -> None:
    kind = HEADINGS[heading]
    inherited = ServiceSettings.model_fields if kind is not ServiceSettings else {}
    prefix = kind.model_config.get("env_prefix", "")
    expected = [
        [f"`{prefix}{name.upper()}`", shown(name, field), field.description]
        for name, field in kind.model_fields.items()
        if name not in inherited
    ]
    assert rows(OPERATIONS, heading) == expected


def test_the_message_table_has_every_kind_with_its_route_and_fields() -> None:
    expected = {}
    for kind in get_args(AnyMessage):
        home = topology.home_of(kind.model_construct())
        route = "jobs" if home is None else home.exchange.removeprefix("fedfa.")
        expected[kind.__name__] = (route, [n for n in kind.model_fields if n not in NOT_LISTED])
    found = {}
    for kind, _, route, fields, _ in rows(PROTOCOL, "Messages"):
        listed = fields.replace("the same", ", ".join(found.get("JobStarted", ("", []))[1]))
        names = [name.strip() for name in listed.split(",") if name.strip()]
        found[kind.strip("`")] = (re.split(r"[ ,]", route)[0], names)
    assert found == expected


def exported(module: Any) -> Iterator[str]:
    """name{label} of each metric that a module defines, as Prometheus shows it."""
    for metric in vars(module).values():
        if isinstance(metric, prometheus_client.metrics.MetricWrapperBase):
            (described,) = metric.describe()
            total = "_total" if described.type == "counter" else ""
            labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
            yield f"{described.name}{total}{labels}"


def test_the_metrics_table_has_every_metric_of_every_service() -> None:
    expected = {(name, of) for of, module in METRICS.items() for name in exported(module)}
    found = {
        (name.strip(" `"), of)
        for names, of, _ in rows(OPERATIONS, "Metrics")
        for name in names.split("`, `")
    }
    assert found == expected


def test_every_alert_is_explained_and_asks_for_metrics_that_exist() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    listed = [name.strip("`") for name, _, _ in rows(OPERATIONS, "Alerts")]
    assert listed == [rule["alert"] for rule in rules]
    names = {name.partition("{")[0] for module in METRICS.values() for name in exported(module)}
    for rule in rules:
        asked = set(re.findall(r"\bfedfa_\w+", rule["expr"]))
        assert asked
        assert {name.removesuffix("_bucket") for name in asked} <= names, rule["alert"]


def literals(file: Path) -> list[str]:
    """Every text in a module, with a NUL where an f-string has a value."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def fragments(message: str) -> list[str]:
    """What a quoted message says between its gaps; a gap is `...`."""
    return [part for each in message.split("...") if (part := each.strip(" :;,'"))]


def test_every_message_of_the_troubleshooting_page_is_said_by_a_module() -> None:
    modules = [
        literals(file) for top in ("shared", "services") for file in (ROOT / top).rglob("*.py")
    ]
    rows = re.findall(r"^\| `(.+?)` \| (.+) \| (.+) \|$", TROUBLES, re.MULTILINE)
    assert len(rows) == TROUBLES.count("\n| `")
    for message, cause, cure in rows:
        parts = fragments(message)
        assert parts, message
        assert cause.strip(), message
        assert cure.strip(), message
        assert any(
            all(any(part in text for text in module) for part in parts) for module in modules
        ), message


def shape(line: str) -> str:
    """A line without its numbers and durations."""
    return re.sub(r"\d+[hm]\d+[ms]|\d[\d.,]*s?\b", "0", line.strip())


def test_the_readme_shows_what_a_run_prints(tmp_path: Path) -> None:
    # given
    (sample,) = (each for each in documented.blocks() if each.body.startswith("digits-"))
    first, *lines = sample.body.splitlines()
    write_sample_run(DirectoryStore(tmp_path), "fed")
    finished = summarize(HistoryReader(DirectoryStore(tmp_path), "fed").refresh(), now=0)
    running = replace(finished, status="running", target=0.95, eta_seconds=60.0)
    confirmed = Confirmed("fed", 2, 0, 1, 1, 1, None)
    # then
    digits = spec_files.load(ROOT / "examples/digits.yaml")
    assert first.partition(": ")[2] == control.describe(digits)
    said = [shape(line) for line in lines if re.search("  version |^verified", line)]
    printed = (views.line(running), views.line(finished), confirmed.text)
    assert list(dict.fromkeys(said)) == list(map(shape, printed))
