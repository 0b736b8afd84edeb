"""One-parameter models, merged by the product's rules: what a transcription is compared with."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedfa.merge import Entry, combine, rule_of
from fedfa.rule_choices import RuleChoice
from fedfa.tensors import FlatModel, Template, Tensor
from tests.unit.builders import entry, spec

SCALAR = Template((Tensor("w", "parameter", "F32", (1,)),))


@dataclass(frozen=True)
class Sent:
    """What one update says: its difference or its model, and the numbers that go with it."""

    value: float
    numbers: dict[str, Any] = field(default_factory=dict)


def model(value: float) -> FlatModel:
    return FlatModel(SCALAR, np.array([value], np.float32), np.empty(0, np.int64))


def run(choice: RuleChoice, start: float, sent: list[Sent], **fields: Any) -> list[float]:
    """The global model after each update; fields: of the spec."""
    rule = rule_of(spec(rule=choice, **fields))
    current, history = model(start), []
    window: list[FlatModel] = []
    entries: list[Entry] = []
    for each in sent:
        window.append(model(each.value))
        entries.append(entry(**each.numbers))
        merge = rule.merge(entries)
        if merge.combination is not None:
            merged = window[len(window) - len(merge.combination.weights) :]
            current = combine(current, merged, merge.combination)
        window = window[len(window) - merge.kept :]
        entries = entries[len(entries) - merge.kept :]
        history.append(float(current.floats[0]))
    return history
