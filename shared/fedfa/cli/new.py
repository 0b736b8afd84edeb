"""`fedfa new`: a small package with a task that works, to be changed into one's own."""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

import fedfa
from fedfa.cli import console, results
from fedfa.errors import InvalidInput

TEMPLATE = Path(fedfa.__file__).parent / "scaffold"  # working code: its names are replaced
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="the folder and the task", show_default=False)
    ],
) -> None:
    """Write a package with a task, its spec, tests and image, that runs as it is."""
    dashed, module = name.replace("_", "-"), name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > 50:
        raise InvalidInput(
            f"{name!r:.100}: no name for a task; use a-z, 0-9 and single dashes, as in my-task"
        )
    folder = Path(name)
    if folder.exists():
        raise InvalidInput(f"{folder}: is there already; choose another name, or remove it")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        raise InvalidInput(f"{name}: Python has a module {module} already; choose another name")
    title = "".join(part.capitalize() for part in module.split("_"))
    names = {"my_task": module, "my-task": dashed, "MyTask": title}
    results.make_folder("NAME", folder)
    for file in sorted(path for path in TEMPLATE.iterdir() if path.is_file()):
        target = folder / _renamed(file.name, names)
        target.write_text(_renamed(file.read_text("utf-8"), names), "utf-8")
    console.say(f"{folder}/ has a task that works; what is in it: {folder}/README.md\n")
    for line in (f"cd {folder}", f"fedfa simulate {module}.yaml", f"fedfa local run {module}.yaml"):
        console.say(f"    {line}")
    console.say("    make test")


def _renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text
