"""A spec as people write it: one YAML file, and assignments that change its fields."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedfa.errors import InvalidSpec
from fedfa.spec import FederationSpec, parse


def load(path: Path, *, assignments: Sequence[str] = ()) -> FederationSpec:
    """Read a spec from a YAML file, or raise InvalidSpec.

    assignments change or add fields before the check, as in "rule.server_lr=2.0".
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidSpec(f"{path}: no such file") from None
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidSpec(f"{path}: cannot be read as YAML: {_line(error)}") from error
    return loads(text, source=str(path), assignments=assignments)


def loads(text: str, *, source: str = "spec", assignments: Sequence[str] = ()) -> FederationSpec:
    """`load` for YAML that is at hand; source names it in errors."""
    try:
        fields = _read(text)
    except yaml.YAMLError as error:
        raise InvalidSpec(f"{source}: cannot be read as YAML: {_line(error)}") from error
    if isinstance(fields, dict):  # otherwise the text is wrong, and no assignment mends it
        for assignment in assignments:
            _assign(fields, assignment)
    return parse(fields, source=source)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _assign(fields: Any, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    *sections, last = path.strip().split(".")
    for section in sections:
        if isinstance(fields, dict) and fields.get(section) is None:
            fields[section] = {}
        fields = fields[section] if isinstance(fields, dict) else None
    if not equals or not last or not isinstance(fields, dict):
        raise InvalidSpec(f"{assignment!r}: sets no field; write it as in rule.server_lr=2.0")
    try:
        fields[last] = _read(text)
    except yaml.YAMLError as error:
        raise InvalidSpec(
            f"{assignment!r}: its value cannot be read as YAML: {_line(error)}"
        ) from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
