"""What is wrong with a value from outside, in one line that a person can act on.

pydantic names a wrong field by its own path and speaks of dictionaries and tags. A person wrote
YAML: they need the path as they wrote it, the value that is wrong, and what is allowed there.
"""

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

SHOWN_CHARACTERS = 80
SCALARS = ("str", "int", "float", "bool")  # how pydantic names the members of a scalar union
NOT_A_SECTION = ("model_type", "model_attributes_type", "dict_type")

Sections = list[type[BaseModel]]


def describe(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """Each wrong field, what is wrong with it and the value it had, in one line.

    With the model that was to be made, its paths lack pydantic's union tags, and an unknown
    field is answered with the known ones.
    """
    problems = [_problem(problem, model) for problem in error.errors(include_url=False)]
    return "; ".join(dict.fromkeys(problems))


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """What a misspelt name was probably meant to be, in brackets; nothing if none is like it."""
    close = get_close_matches(str(name), list(names), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def _problem(problem: Any, model: type[BaseModel] | None) -> str:
    location = problem["loc"]
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    is_scalar = len(location) > 1 and location[-1] in SCALARS
    path, around, at = _locate(model, location[:-1] if is_scalar else location)
    text = problem["msg"].removeprefix("Value error, ")
    if is_scalar:
        text = "give text, a number, true, false or null"
    elif kind == "extra_forbidden":
        text = f"no such field{did_you_mean(path[-1], _names(around))}{_fields(around)}"
    elif kind == "union_tag_invalid":
        path, value = [*path, context["discriminator"].strip("'")], context["tag"]
        tags = context["expected_tags"].replace("'", "").split(", ")
        text = f"no such name{did_you_mean(value, tags)}; there are: {', '.join(tags)}"
    elif kind == "missing":
        text = "is missing"
    elif kind == "union_tag_not_found":
        tags = sorted(str(tag) for section in at for tag in _tags(section))
        text = f"{context['discriminator']} says which one{_listed(tags)}, and is missing"
    elif kind in NOT_A_SECTION:
        text = f"must be a mapping of fields{_fields(at)}"
    where = ".".join(path)
    shown = "" if isinstance(value, dict) else f" (got {_short(value)})"
    return f"{where}: {text}{shown}" if where else f"{text}{shown}"


def _locate(
    model: type[BaseModel] | None, location: Sequence[str | int]
) -> tuple[list[str], Sections, Sections]:
    """(the path as it was written, the sections around its end, the sections at its end)."""
    path: list[str] = []
    around: Sections = []
    at = [] if model is None else [model]
    for part in location:
        tagged = [section for section in at if part in _tags(section)]
        if tagged:
            at = tagged
            continue
        path.append(str(part))
        fields = [section.model_fields[part] for section in at if part in section.model_fields]
        around, at = at, [found for field in fields for found in _sections(field.annotation)]
    return path, around, at


def _sections(annotation: Any) -> Sections:
    """The models that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _sections(part)]


def _tags(section: type[BaseModel]) -> set[Any]:
    """What tells this section from its alternatives: the value of its one-valued literal."""
    return {
        field.default
        for field in section.model_fields.values()
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    }


def _names(sections: Sections) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _fields(sections: Sections) -> str:
    names = _names(sections)
    return f"; there are: {', '.join(names)}" if names else ""


def _listed(names: list[str]) -> str:
    return f" of {', '.join(names)}" if names else ""


def _short(value: Any) -> str:
    # reprlib, because a few YAML aliases make a value that takes hours to print whole.
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = shown.maxlong = SHOWN_CHARACTERS
    return shown.repr(value)[:SHOWN_CHARACTERS]
