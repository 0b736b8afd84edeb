"""What went wrong in a task's code, as its author wants to read it: the error, and their own lines.

The text goes into messages, the log and `fedfa status`, so its length is bounded.
"""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary

import fedfa
from fedfa.errors import FedfaError

MAX_CHARACTERS = 3_000
MAX_FIRST_LINE = 1_000
MAX_FRAMES = 8

TRAINER = "fedfa_trainer"
# Packages whose lines a task's author did not write, though they lie beside the author's own.
LIBRARIES = frozenset(
    f"""{TRAINER} PIL accelerate huggingface_hub numpy pandas peft pyarrow pydantic safetensors
    scipy sklearn timm tokenizers torch torchvision transformers""".split()
)
OURS = Path(fedfa.__file__).parent
STANDARD = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}


def explain(error: BaseException) -> str:
    """The error in a line, its causes, and where it was raised, by the author's own lines."""
    if isinstance(error, FedfaError):
        return _printable(str(error))[:MAX_CHARACTERS]
    lines = traceback.format_exception_only(error)
    where = "".join(lines[:-1]) if isinstance(error, SyntaxError) else ""  # the misspelt line
    text = "".join(lines).removeprefix(where).strip()
    if error.__cause__ is not None:
        text += f" (because of {_line(error.__cause__)})"
    text = _printable(text)[:MAX_FIRST_LINE]
    frames = [*_useful(traceback.extract_tb(error.__traceback__)), where]
    kept: list[str] = []
    room = MAX_CHARACTERS - len(text) - 1
    for frame in reversed([_printable(frame) for frame in frames if frame]):
        if len(frame) > room:
            break
        kept.insert(0, frame)
        room -= len(frame)
    return "\n".join([text, "".join(kept)]).rstrip()


def first_line(reason: str) -> str:
    """A reason as one line, without the lines of code that `explain` brings along."""
    return " ".join(reason.partition("\n  File ")[0].split())


def code_of(reason: str) -> str:
    """The lines of code that `explain` brings along, "" without any."""
    _, found, code = reason.partition("\n  File ")
    return f"  File {code}" if found else ""


def _line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _useful(frames: Sequence[FrameSummary]) -> list[str]:
    """The author's frames, and the last one of all; without any of theirs, the last few."""
    own = [frame for frame in frames if not _is_library(Path(frame.filename))]
    if not own:
        return traceback.format_list(frames[-MAX_FRAMES:])
    shown = own[-MAX_FRAMES:]
    if frames[-1] is own[-1]:
        return traceback.format_list(shown)
    num_hidden = len(frames) - 2 - max(at for at, frame in enumerate(frames) if frame is own[-1])
    hidden = [f"  ... {num_hidden} more lines of libraries\n"] if num_hidden else []
    return [*traceback.format_list(shown), *hidden, *traceback.format_list([frames[-1]])]


def _is_library(file: Path) -> bool:
    if file.is_relative_to(OURS):
        return file.parent != OURS / "tasks" or file.name == "base.py"  # a task has an author
    for place in ("site-packages", "dist-packages"):
        if place in file.parts:
            return file.parts[file.parts.index(place) + 1] in LIBRARIES
    is_standard = file.name.startswith("<frozen ") or any(map(file.is_relative_to, STANDARD))
    return is_standard or TRAINER in file.parts


def _printable(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode()
