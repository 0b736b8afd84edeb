"""Every command of the documentation is one that exists, with options that exist.

tests/services/test_documented_commands.py runs those that one machine can run.
"""

import re
import subprocess
import tomllib
from collections import Counter
from typing import Any

import pytest
import typer
import yaml

from fedfa import spec, spec_files
from fedfa.cli.app import app
from fedfa.spec import FederationSpec
from tests import documented
from tests.documented import ROOT, Command
from tests.unit.test_docs import HEADINGS

LANGUAGES = {"bash", "dockerfile", "json", "python", "text", "toml", "yaml"}
# Programs of others, and of the shell: why nothing here runs them.
FOREIGN = {
    ".": "enters the virtual environment, which the tests are in",
    "aws": "needs a bucket at AWS",
    "buildah": "needs a registry to push to",
    "curl": "tests/unit/test_dashboard.py makes the same requests",
    "docker": "k8s/images_test.py builds the same image with buildah",
    "export": "sets variables, whose names are checked",
    "for": "a loop of the shell, whose command is checked by itself",
    "helm": "needs a cluster; tests/chart renders the chart with the same values",
    "kubectl": "needs a cluster",
    "pip": "installs FedFa, as `make setup` has where the tests run",
    "python3": "makes an environment for that",
    "rabbitmqctl": "changes the broker; tests/services/test_documented_commands.py runs it",
    "sudo": "installs packages of the system",
}
SERVICES = ("fedfa-aggregator", "fedfa-scheduler", "fedfa-trainer")
OTHER_VARIABLES = {"FEDFA_DATA", "PYTHONPATH"}
COMMANDS = list(documented.commands())


def known_variables() -> set[str]:
    return OTHER_VARIABLES | {
        f"{kind.model_config.get('env_prefix', '')}{name}".upper()
        for kind in HEADINGS.values()
        for name in kind.model_fields
    }


def parse(arguments: tuple[str, ...]) -> None:
    """Raises UsageError unless the command line has this command, with these options."""
    command: Any = typer.main.get_command(app)
    context, name, rest = None, "fedfa", list(arguments)
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "commands"):
            return
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: f"{each.page}:{each.line}: {each}")
def test_a_documented_command_exists_with_its_options_and_variables(command: Command) -> None:
    program, *arguments = command.words
    assignments = arguments if program == "export" else []
    named = {*command.variables, *(each.partition("=")[0] for each in assignments)}
    assert named <= known_variables()
    if program == "fedfa":
        parse(tuple(arguments))
    elif program == "make":
        target, *variables = arguments
        folders = (ROOT / command.page).parents
        makefile = next(each for each in folders if (each / "Makefile").exists()) / "Makefile"
        sources = makefile.read_text()
        assert re.search(rf"^{target}:", sources, re.MULTILINE)
        sources += (ROOT / "k8s/images.sh").read_text()
        assert all(re.search(rf"\b{each.partition('=')[0]}\b", sources) for each in variables)
    elif program in SERVICES:
        scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
        assert program in scripts
        assert not arguments
    else:
        assert program in FOREIGN


def test_every_reason_not_to_run_a_program_is_still_needed() -> None:
    assert FOREIGN.keys() <= {command.words[0] for command in COMMANDS}


@pytest.mark.parametrize(("page", "text"), sorted(set(documented.inline())))
def test_a_command_in_the_text_exists_with_its_options(page: str, text: str) -> None:
    command: Any = typer.main.get_command(app)
    words = text.split()[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        assert all(word.startswith("-") or word.isupper() for word in words), f"{page}: {text}"
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    asked = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert asked <= known | {"--help"}, f"{page}: {text}"


def test_every_block_says_its_language_and_no_command_hides_in_an_indented_one() -> None:
    for block in documented.blocks():
        assert block.language in LANGUAGES, f"{block.page}:{block.line}"
    for path in documented.PAGES:
        text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text())
        hidden = re.findall(r"^ {4,}(?:fedfa|make|helm|kubectl|python) .*", text, re.MULTILINE)
        assert not hidden, f"{path.name}: {hidden}; put it between ```bash and ```"


def test_the_shell_reads_every_block_of_commands() -> None:
    bash = [block for block in documented.blocks() if block.language == "bash"]
    script = "\n".join(f"block_{n}() {{\n{block.body}\n}}" for n, block in enumerate(bash))
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_spec_in_a_page_is_one_and_no_two_files_have_one_name() -> None:
    titles = Counter[str]()
    for block in documented.blocks():
        where = f"{block.page}:{block.line}"
        if block.language == "yaml" and block.body.lstrip("#").lstrip().startswith("task:"):
            spec_files.loads(block.body, source=where)
        elif block.language == "yaml":
            fields = yaml.safe_load(block.body)
            if fields.keys() <= FederationSpec.model_fields.keys():
                spec.parse({"clients": 20} | fields, source=where)
        elif block.language == "python":
            compile(block.body, where, "exec")
        titles.update([block.title] if block.title else [])
    assert titles
    assert set(titles.values()) == {1}
