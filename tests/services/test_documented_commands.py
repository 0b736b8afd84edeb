"""The commands of the documentation, run as they are written, page by page.

The folder is laid out as the pages say: the examples, the files that the pages show, small data of
the kind that they describe. Federations are cut short, and the network for the pictures is a small
one. The README's `fedfa local run` is started first and kept: its three services run the others,
which are submitted to them. One simulation stands for all. What is not run has its reason here, and
its options are checked by tests/unit/test_documented_commands.py.
"""

import io
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml

from fedfa.broker import Publisher
from fedfa.cli import EXIT_INTERRUPTED, main
from fedfa.local.rabbitmq import RabbitMQ
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.topology import DEAD, REASON_HEADER
from tests import documented, tiny
from tests.documented import ROOT, Command
from tests.servers import variables
from tests.unit.builders import update_ready
from tests.unit.test_documented_commands import FOREIGN

COMMANDS = list(documented.commands())
NOT_RUN = {
    **{
        re.escape(program): reason
        for program, reason in FOREIGN.items()
        if program != "rabbitmqctl"
    },
    "make": "its targets are the demo, the images and these very tests",
    "fedfa local run silos.yaml": "needs three pools, as tests/services/test_pools.py has",
    "fedfa local up": "stays until Ctrl-C, as the `local run` here, which starts the same",
    "fedfa paper": "takes from minutes to hours; tests/unit/test_paper.py makes its tables",
    "fedfa submit my_task.yaml": "of `fedfa new`, whose federation tests/unit/test_new.py trains",
    "fedfa simulate .* --id (?!first)\\S+": "as `--id first`, with another name or field",
    "fedfa simulate examples/digits.yaml$": "as `--id first`, with the file's name",
    "fedfa track .* --mlflow": "needs MLflow's server; tests/unit/test_habits.py tracks to MLflow",
    "fedfa-(aggregator|scheduler|trainer)": "stays until stopped; this stack is these three",
    "rabbitmqctl (stop_app|reset|start_app|delete_queue)": "would take the broker from the stack",
    "rabbitmqctl (add_|set_permissions)": "takes seconds; test_doctor.py makes its users so",
}
NOT_RUN_PYTHON = {
    "docs/adding-a-task.md": "examples/my_task.py, which tests/unit/test_example_task.py runs",
    "docs/tasks.md": "models from a hub, what quickstart.md and lora.md have in parts, and what "
    "tests/unit/test_own_data.py runs",
    "docs/quickstart.md": "a model from a hub",
}
KEPT = "fedfa local run examples/digits.yaml --set rule.window=10"  # its services run the others
SIMULATED = "fedfa simulate examples/digits.yaml --id first"
LIKE_FIRST = ("runs/k-10", "runs/lr-2", "runs/mc-4", "runs/simulated", "digits")  # not simulated


@dataclass(frozen=True)
class Place:
    """federations: the id that each `submit` or `local run` made."""

    bucket: str
    federations: dict[str, str]
    done: set[str]  # by another page

    def there(self, text: str) -> str:
        """What a page leaves open, filled in."""
        filled = {"ID": self.federations["fedfa submit examples/digits.yaml"], "NEW": self.bucket}
        filled |= {"OTHER-ID": "lr-1", "OTHER-BUCKET": self.bucket, "PASSWORD": "secret"}
        filled |= {each: each.replace(each.rpartition("/")[2], "first") for each in LIKE_FIRST}
        return filled.get(text, text)


def call(*words: str, **variables: str) -> str:
    """Run `fedfa` in this process; returns what it printed. It must end well."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.setattr(sys, "argv", list(words))
        for name, value in variables.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    ends = (0, EXIT_INTERRUPTED) if words[1] == "dashboard" else (0,)
    assert ended.value.code in ends, f"{' '.join(words)}:\n{printed.getvalue()}"
    return printed.getvalue()


def show(*words: str) -> None:
    """Run `fedfa dashboard`, and press Ctrl-C once its address was printed."""

    def press(number: int, frame: FrameType | None) -> None:
        if any("dashboard of" in each.getvalue() for each in printing()):
            raise KeyboardInterrupt

    def printing() -> list[io.StringIO]:
        return [sys.stdout] if isinstance(sys.stdout, io.StringIO) else []

    before = signal.signal(signal.SIGALRM, press), signal.getsignal(signal.SIGTERM)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        assert "dashboard of" in call(*words)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGTERM, before[1])


def lay_out(folder: Path) -> None:
    """A checkout's examples and the files that pages show, cut short, and the data for them."""
    specs = {f"examples/{path.name}": path.read_text() for path in ROOT.glob("examples/*.yaml")}
    for block in documented.blocks():
        if block.title and block.language == "yaml":
            specs[block.title] = block.body
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples/my_task.py", folder / "examples")
    for name, text in specs.items():
        fields = yaml.safe_load(text)
        short = {"evaluation": {"every_versions": 2}, "stop": {"updates": 6}, "delay": {}}
        fields |= short | {"local": fields.get("local", {}) | {"epochs": None, "steps": 2}}
        if name == "pictures.yaml":
            fields["task"]["options"]["model"] = "shufflenet_v2_x0_5"
        if fields["task"]["name"] == "text":
            fields["task"]["options"]["max_tokens"] = 32  # all that the small model reads
        (folder / name).write_text(yaml.safe_dump(fields))
    tiny.write_pictures(folder / "data/pictures", each=3)
    tiny.write_table(folder / "data/reviews.csv", tiny.reviews(60, seed=3))
    tiny.write_bert(folder / "data/models/bert-tiny")
    (folder / "runs").mkdir()


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory,
    broker_settings: BrokerSettings,
    store_settings: StoreSettings,
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("checkout")
    lay_out(folder)
    environment = variables(store_settings, broker_settings) | {
        "FEDFA_DATA": str(folder / "data"),
        "FEDFA_TRAINER_TASK_ALLOW": "my_task",
        "FEDFA_TRAINER_TORCH_THREADS": "1",
        "PYTHONPATH": f"{folder / 'examples'}:{':'.join(sys.path)}",
        "BROWSER": "true",
        "HOME": str(folder),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        call(*SIMULATED.split())
        with kept(*KEPT.split(), "--id", "kept", "--trainers", "1", "--keep"):
            yield Place(store_settings.bucket, {KEPT: "kept"} | submitted(), {SIMULATED})


@contextmanager
def kept(*words: str) -> Iterator[None]:
    """`fedfa local run --keep`, from when its federation has ended until Ctrl-C."""
    command = [sys.executable, "-m", "fedfa.cli", *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        try:
            said = ""
            while "everything is up" not in said:
                assert run.poll() is None, said
                said += run.stdout.readline()
            yield
        finally:
            run.terminate()  # Ctrl-C to it; a background job may have SIGINT ignored
            run.communicate(timeout=60)


def submitted() -> dict[str, str]:
    """Every documented federation, submitted to the stack and followed to its end."""
    federations: dict[str, str] = {}
    for command in COMMANDS:
        text, words = str(command), command.words
        if starts_one(command) and is_run(command) and text not in (KEPT, *federations):
            assignments = [each for each in words if "=" in each]
            settings = [word for each in assignments for word in ("--set", each)]
            spec = next(word for word in words if word.endswith(".yaml"))
            named = words[words.index("--id") + 1] if "--id" in words else f"fed-{len(federations)}"
            federations[text] = named
            call("fedfa", "submit", spec, "--id", named, *settings)
    for text, name in federations.items():
        assert "merged 6 updates" in call("fedfa", "watch", name), text
    return federations


def starts_one(command: Command) -> bool:
    """Whether it starts a federation on services."""
    return command.words[:3] == ("fedfa", "local", "run") or command.words[:2] == (
        "fedfa",
        "submit",
    )


def is_run(command: Command) -> bool:
    return not any(re.match(rf"{pattern}(?![\w-])", str(command)) for pattern in NOT_RUN)


@pytest.fixture(scope="module")
def letters(broker_settings: BrokerSettings) -> Iterator[None]:
    """Dead letters to list, show, replay and drop."""
    publisher = Publisher(broker_settings, name="test")
    for _ in range(3):
        publisher.publish(update_ready(), DEAD, headers={REASON_HEADER: "for a test"})
    yield
    publisher.close()


def pages(*which: Any) -> list[str]:
    return list(dict.fromkeys(each.page for each in which))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", pages(*filter(is_run, COMMANDS)))
def test_the_commands_of_a_page_run(
    page: str, place: Place, rabbit: RabbitMQ, letters: None
) -> None:
    for command in COMMANDS:
        if command.page != page or not is_run(command) or starts_one(command):
            continue
        words = tuple(place.there(word) for word in command.words)
        if " ".join(words) in place.done:
            continue
        place.done.add(" ".join(words))
        set_for_it = {name: place.there(value) for name, value in command.variables.items()}
        if words[0] == "rabbitmqctl":
            rabbit.ctl(*words[1:])
        elif words[1] == "dashboard":
            show(*words)
        else:
            call(*words, **set_for_it)


@pytest.mark.parametrize(
    "title",
    [each.title for each in documented.blocks() if each.language == "python" and each.title],
)
def test_a_program_of_a_page_loads_what_its_federation_left(title: str, place: Place) -> None:
    (block,) = (each for each in documented.blocks() if each.title == title)
    name = place.federations[f"fedfa local run {title}.yaml --pretrained"]
    call("fedfa", "export", name, "--pretrained")
    program = block.body.replace("runs/ID", f"runs/{name}")
    found: dict[str, Any] = {}
    exec(compile(program, f"{block.page}:{block.line}", "exec"), found)
    assert not found["model"].training


def test_the_program_of_the_python_page_runs(place: Place) -> None:
    (block,) = (
        each
        for each in documented.blocks()
        if each.page == "docs/python.md" and each.language == "python"
    )
    found: dict[str, Any] = {}
    exec(compile(block.body, block.page, "exec"), found)
    assert found["run"].summary().merged == 6


def test_every_reason_not_to_run_something_is_still_needed() -> None:
    texts = [str(command) for command in COMMANDS]
    for pattern in NOT_RUN:
        assert any(re.match(rf"{pattern}(?![\w-])", text) for text in texts), pattern
    shown = [each for each in documented.blocks() if each.language == "python" and not each.title]
    assert set(pages(*shown)) == {*NOT_RUN_PYTHON, "docs/python.md"}
