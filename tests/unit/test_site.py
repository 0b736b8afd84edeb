"""The site of the documentation: built strictly, true to the code, and loading nothing foreign."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config

from fedfa.cli.app import app
from fedfa.spec import FederationSpec
from tests.unit.test_docs import HEADINGS, METRICS, exported

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself; links that a person follows may lead anywhere.
LOADED = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
NOT_FETCHED = {"canonical", "next", "prev"}  # rel of <link>

pytestmark = pytest.mark.filterwarnings("default")  # of mkdocs and its extensions


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


class Fetched(HTMLParser):
    """Addresses that a page loads, and its security policy."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.policy = ""
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag in LOADED and given.get("rel") not in NOT_FETCHED:
            self.addresses += [given[name] for name in ("src", "href", "data") if name in given]
            self.addresses += re.findall(r"[^\s,]+", given.get("srcset", ""))
        self.addresses += addresses(given.get("style", ""))


def addresses(css: str) -> Iterator[str]:
    yield from re.findall(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""", css)


def is_foreign(address: str) -> bool:
    return re.match(r"(?!data:)([a-z]+:)?//|(?!data:)[a-z]+:", address) is not None


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        fetched = Fetched(page)
        assert fetched.addresses
        assert not [each for each in fetched.addresses if is_foreign(each)], page
        assert fetched.policy.startswith("default-src 'self'; script-src 'self'"), page
    for sheet in site.rglob("*.css"):
        assert not [each for each in addresses(sheet.read_text()) if is_foreign(each)], sheet


def test_the_reference_has_every_field_option_variable_and_metric(site: Path) -> None:
    spec = text_of(site / "reference/spec.html")
    schema = FederationSpec.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, field in section["properties"].items():
            assert name in spec
            assert re.sub(r"[`<>&*]+.*", "", field.get("description", "")) in spec
    settings = text_of(site / "reference/settings.html")
    for kind in HEADINGS.values():
        for name in kind.model_fields:
            assert f"{kind.model_config.get('env_prefix', '')}{name}".upper() in settings
    metrics = text_of(site / "reference/metrics.html")
    for module in METRICS.values():
        assert all(name.partition("{")[0] in metrics for name in exported(module))
    commands = text_of(site / "reference/cli.html")
    for path, command in walk("fedfa", typer.main.get_command(app)):
        assert f"\n{path} [OPTIONS]" in commands
        options = [name for each in command.params for name in each.opts if name.startswith("--")]
        assert all(option in commands for option in options)


def walk(path: str, command: object) -> Iterator[tuple[str, "typer.core.TyperCommand"]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command  # type: ignore[misc]
    else:
        for name, child in children.items():
            yield from walk(f"{path} {name}", child)
