"""What mkdocs cannot read from docs/: reference pages, made from the code, and linked sources.

- reference/*.md are tables of the spec's schema, the settings, the command line, the metrics and
  the tasks' options, as the code has them when the site is built.
- A link that leaves docs/ leads to a page with that file in it: the site needs no other host.
"""

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import prometheus_client
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings

import fedfa_aggregator.metrics
import fedfa_scheduler.metrics
import fedfa_trainer.metrics
from fedfa.cli.app import app
from fedfa.dashboard import DashboardSettings
from fedfa.settings import BrokerSettings, ServiceSettings, StoreSettings
from fedfa.spec import FederationSpec
from fedfa.tasks import cifar10, digits, images, sent140, sst2, tabular, text
from fedfa_aggregator.settings import AggregatorSettings
from fedfa_scheduler.settings import SchedulerSettings
from fedfa_trainer.settings import TrainerSettings

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
SOURCE = "source"  # the folder of pages with files from outside docs/
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}

SETTINGS: dict[str, type[BaseSettings]] = {
    "All services": ServiceSettings,
    "Aggregator": AggregatorSettings,
    "Scheduler": SchedulerSettings,
    "Trainer": TrainerSettings,
    "Dashboard": DashboardSettings,
    "Broker": BrokerSettings,
    "Bucket": StoreSettings,
}
METRICS = {
    "Aggregator": fedfa_aggregator.metrics,
    "Scheduler": fedfa_scheduler.metrics,
    "Trainer": fedfa_trainer.metrics,
}
OPTIONS: dict[str, type[BaseModel]] = {
    "images": images.ImagesOptions,
    "text": text.OwnTextOptions,
    "tabular": tabular.TabularOptions,
    "digits": digits.DigitsOptions,
    "cifar10": cifar10.Cifar10Options,
    "sent140": sent140.Sent140Options,
    "sst2": sst2.Sst2Options,
}


# -- mkdocs' hooks ---------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    for path in sorted(_linked(files)):
        files.append(File.generated(config, _page_of(path), content=_source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def target(found: "re.Match[str]") -> str:
        link, anchor = found[1], found[2] or ""
        path = _outside(page.file.src_uri, link)
        if path is None:
            return found[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"]({posixpath.relpath(_page_of(path), here or '.')}{anchor})"

    return LINK.sub(target, markdown)


# -- sources ---------------------------------------------------------------------------------------


def _outside(page: str, link: str) -> str | None:
    """The path below the repository that a link names, if it leads out of docs/."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") or path == "docs" else path


def _page_of(path: str) -> str:
    return f"{SOURCE}/{path}/index.md" if (ROOT / path).is_dir() else f"{SOURCE}/{path}.md"


def _linked(files: Files) -> set[str]:
    """What pages link to outside docs/; of a folder, also every file in it."""
    found = set()
    for file in files.documentation_pages():
        for link, _ in LINK.findall(file.content_string):
            if (path := _outside(file.src_uri, link)) is not None:
                found |= {path, *_inside(path)}
    return found


def _inside(path: str) -> Iterator[str]:
    for each in sorted((ROOT / path).glob("*.*")):
        if each.suffix in LANGUAGES or each.suffix == ".md":
            yield posixpath.join(path, each.name)


def _source_page(path: str) -> str:
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    place = ROOT / path
    if place.is_dir():
        names = [posixpath.basename(each) for each in _inside(path)]
        return head + "\n".join(f"- [{name}]({name}.md)" for name in names) + "\n"
    body = place.read_text("utf-8")
    if place.suffix == ".md":  # its own links lead from where it lies, not from here
        unlinked = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", body)
        return head + re.sub(r"^# .*\n", "", unlinked, count=1)
    if place.suffix == ".ipynb":
        return head + "".join(_cells(json.loads(body)))
    fence = "`" * 4
    return f"{head}{fence}{LANGUAGES.get(place.suffix, 'text')}\n{body}{fence}\n"


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        body = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        yield f"```python\n{body}\n```\n\n" if is_code else f"{body.replace('# ', '## ', 1)}\n\n"


# -- reference -------------------------------------------------------------------------------------


def reference() -> dict[str, str]:
    """The generated pages: name -> Markdown."""
    return {
        "spec": _spec(),
        "tasks": _tasks(),
        "settings": _settings(),
        "cli": _cli(),
        "metrics": _metrics(),
    }


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(value: Any) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


LIMITS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A field's type, with its limits, for people."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        _, mark = _mark(definitions[name])
        return f"[{mark or 'section'}](#{name.lower()})"
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return ", ".join(map(_code, schema["enum"]))
    if alternatives := schema.get("oneOf") or schema.get("anyOf"):
        outer = {key: schema[key] for key in LIMITS if key in schema}
        given = [outer | each for each in alternatives if each.get("type") != "null"]
        mark = schema.get("discriminator", {}).get("propertyName")
        by = f"by `{mark}`: " if mark else ""
        return by + ", ".join(_kind(each, definitions) for each in given)
    limits = ", ".join(f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if key in schema)
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'], definitions)}"
    if schema.get("type") == "object":
        return "mapping"
    return f"{schema.get('type', 'any')}{f' {limits}' if limits else ''}"


def _mark(schema: dict[str, Any]) -> tuple[str, str]:
    """What tells an alternative from the others, as (kind, hinge); of a section twice nothing."""
    for name, field in schema.get("properties", {}).items():
        if "const" in field:
            return name, field["const"]
    return "", ""


def _default(field: dict[str, Any], *, is_required: bool) -> str:
    if is_required:
        return "required"
    default = field.get("default")
    if isinstance(default, dict):
        marks = [default[key] for key in ("name", "kind", "keep") if key in default]
        return _code(str(marks[0])) if marks else "its defaults" if default else "none"
    return "none" if default is None or default == "" else _code(default)


def _fields(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            f"`{name}`",
            _kind(field, definitions),
            _default(field, is_required=name in required),
            field.get("description", ""),
        )
        for name, field in schema["properties"].items()
        if "const" not in field
    ]
    return _table(("field", "type", "default", "meaning"), rows) if rows else ""


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _spec() -> str:
    schema = FederationSpec.model_json_schema()
    definitions = schema.pop("$defs")
    page = (
        "# The spec\n\nEvery field of a federation's YAML. `fedfa schema` prints the same as JSON "
        "schema, for editors; `--set SECTION.FIELD=VALUE` changes one on the command line.\n\n"
        + _fields(schema, definitions)
    )
    shown: list[str] = []

    def visit(part: dict[str, Any]) -> str:
        text = ""
        for field, inner in part.get("properties", {}).items():
            for name in _references(inner):
                if name not in shown:
                    shown.append(name)
                    found = definitions[name]
                    name_of_mark, mark = _mark(found)
                    title = f"{field}, {name_of_mark}: {mark}" if mark else field
                    about = found.get("description", "")
                    text += f"## {title} {{#{name.lower()}}}\n\n{about}\n\n"
                    text += _fields(found, definitions) + visit(found)
        return text

    return page + visit(schema)


def _tasks() -> str:
    page = (
        "# Options of the tasks\n\nWhat `task.options` of a spec may hold, for each task that is "
        "installed with FedFa. How they are used: [your own data](../tasks.md).\n\n"
    )
    for name, options in OPTIONS.items():
        schema = options.model_json_schema()
        page += f"## {name}\n\n"
        page += _fields(schema, schema.get("$defs", {})) or "None.\n\n"
    return page


def _settings() -> str:
    page = (
        "# Settings\n\nEnvironment variables, read once at the start; empty counts as not set. "
        "[Operations](../operations.md#settings) says where else they are looked for.\n\n"
    )
    for title, settings in SETTINGS.items():
        inherited = set() if settings is ServiceSettings else set(ServiceSettings.model_fields)
        prefix = settings.model_config.get("env_prefix", "")
        schema = settings.model_json_schema()
        rows = []
        for name, field in settings.model_fields.items():
            if name in inherited:
                continue
            about = schema["properties"][name]
            default = field.default
            if isinstance(default, SecretStr):
                default = default.get_secret_value()
            if name == "trainer_name":  # computed at the start
                default = "host name and process id"
            kind = _kind(about, schema.get("$defs", {}))
            if SecretStr in (field.annotation, *get_args(field.annotation)):
                kind = "secret"
            shown = "none" if default in (None, "") else _code(default)
            rows.append((f"`{prefix}{name.upper()}`", kind, shown, field.description or ""))
        page += f"## {title}\n\n" + _table(("variable", "type", "default", "meaning"), rows)
    return page


def _cli() -> str:
    page = "# Command line\n\nWhat `fedfa COMMAND --help` says, for every command.\n\n"
    return page + _commands(typer.main.get_command(app), ["fedfa"])


def _commands(command: Any, path: list[str]) -> str:
    context = command.context_class(command, info_name=" ".join(path))
    if children := getattr(command, "commands", None):
        return "".join(_commands(each, [*path, name]) for name, each in children.items())
    usage = " ".join(command.collect_usage_pieces(context))
    page = f"## {' '.join(path)}\n\n```text\n{' '.join(path)} {usage}\n```\n\n"
    page += "\n\n".join((command.help or "").split("\n\n")) + "\n\n"
    rows = []
    for one in command.params:
        record = one.get_help_record(context)
        name, meaning = record if record else (one.make_metavar(context), one.help or "")
        rows.append((f"`{name}`", meaning))
    return page + (_table(("argument or option", "meaning"), rows) if rows else "")


def _metrics() -> str:
    page = (
        "# Metrics\n\nOf `/metrics` of each service, for Prometheus. What to make of them, and the "
        "alerts: [operations](../operations.md#metrics).\n\n"
    )
    for title, module in METRICS.items():
        rows = [_metric(each) for each in _exported(module)]
        page += f"## {title}\n\n" + _table(("metric", "type", "labels", "meaning"), rows)
    return page


def _exported(module: ModuleType) -> Iterator[Any]:
    for each in vars(module).values():
        if isinstance(each, prometheus_client.metrics.MetricWrapperBase):
            yield each


def _metric(metric: Any) -> tuple[str, str, str, str]:
    (described,) = metric.describe()
    name = described.name + ("_total" if described.type == "counter" else "")
    labels = ", ".join(_code(label) for label in metric._labelnames) or "none"
    return f"`{name}`", described.type, labels, described.documentation


# An editable installation of another checkout must not describe this one.
if not Path(fedfa_trainer.metrics.__file__ or "").is_relative_to(ROOT):
    raise SystemExit(f"mkdocs: fedfa is imported from outside {ROOT}{os.sep}; set PYTHONPATH")
