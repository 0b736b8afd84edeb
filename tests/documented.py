"""What the documentation shows to be typed: its code blocks, and the commands in them.

A block of commands is fenced and says `bash`. A block with a title is a file of that name (YAML) or
a program that a test runs (Python).
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "k8s").rglob("*.md")),
    *sorted((ROOT / "services").glob("*/*.md")),
    ROOT / "shared/fedfa/scaffold/README.md",
]
FENCE = re.compile(r"^( *)```+ *(\w*)(?: +title=\"([^\"]*)\")?.*$")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=.*")
BETWEEN = {"&&", "||", "&", ";", "|"}
KEYWORDS = {"do", "done"}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    title: str
    body: str


@dataclass(frozen=True)
class Command:
    """words: the program and its arguments; variables: what is set for it alone."""

    page: str
    line: int  # of its block
    words: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return " ".join(self.words)


def blocks() -> Iterator[Block]:
    for path in PAGES:
        page, fence, language, title = str(path.relative_to(ROOT)), None, "", ""
        body: list[str] = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = FENCE.match(line)
            if fence is None and found:
                fence, language, title, body = found[1], found[2], found[3] or "", []
                start = number
            elif fence is not None and found and not found[2]:
                yield Block(page, start, language, title, "\n".join(body) + "\n")
                fence = None
            elif fence is not None:
                body.append(line.removeprefix(fence))
        assert fence is None, f"{page}:{start}: a block without an end"


def commands() -> Iterator[Command]:
    for block in blocks():
        if block.language == "bash":
            for words, variables in _split(block.body):
                yield Command(block.page, block.line, words, variables)


def _split(body: str) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    for line in body.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        part: list[str] = []
        for token in [*lexer, ";"]:
            if token not in BETWEEN:
                part.append(token)
                continue
            while part and part[0] in KEYWORDS:
                del part[0]
            variables = {}
            while part and VARIABLE.fullmatch(part[0]):
                name, _, value = part.pop(0).partition("=")
                variables[name] = value
            if part:
                yield tuple(part), variables
            part = []


def inline() -> Iterator[tuple[str, str]]:
    """(page, text) of every `fedfa ...` in the text between the blocks."""
    for path in PAGES:
        text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text())
        for found in re.findall(r"`(fedfa [^`]*)`", text):
            yield str(path.relative_to(ROOT)), " ".join(found.split())
