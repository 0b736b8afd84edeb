"""Who owns which examples: one folder or file for each client, or tables with a client column.

Without either, the rows of all tables are dealt out by the spec's partition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedfa.errors import InvalidData, InvalidSpec
from fedfa.partition import split
from fedfa.randomness import prf
from fedfa.sections import Section
from fedfa.spec import FederationSpec
from fedfa.tasks import tables
from fedfa.tasks.classification import client_name
from fedfa.tasks.data import place
from fedfa.tasks.tables import Convert, Rows

NOBODY = ""
Read = Callable[[Path, Mapping[str, Convert]], Rows]  # a file or folder, with these columns too


class ShardOptions(Section):
    data: str = Field(
        min_length=1,
        description="a table, or a folder with a table or a folder for each client: below "
        "FEDFA_DATA, or s3://bucket/prefix",
    )
    test: str | None = Field(
        default=None,
        min_length=1,
        description="held-out examples, of all clients together: a table, a folder of tables, or "
        "for pictures a folder for each class; without, test_share is held out",
    )
    test_share: float = Field(
        default=0.2, gt=0, lt=1, description="of each client's examples, held out without test"
    )
    client: str | None = Field(
        default=None, min_length=1, description="the column that says whose a row is"
    )
    label: str = Field(default="label", min_length=1, description="the column with the class")
    classes: int | None = Field(
        default=None, ge=2, description="how many there are, to be sure; counted if left out"
    )


@dataclass(frozen=True, slots=True)
class Shards:
    """Each client's rows, those held out, and the classes' names, in the order of their numbers."""

    train: dict[str, Rows]
    test: Rows
    classes: tuple[str, ...]
    label: str

    def labels(self, rows: Rows) -> npt.NDArray[np.int64]:
        numbers = {each: number for number, each in enumerate(self.classes)}
        return np.array([numbers[each] for each in rows.columns[self.label]], np.int64)


def load(spec: FederationSpec, options: ShardOptions, read: Read) -> Shards:
    """Read all of it. Raises InvalidData or InvalidSpec with the file and the remedy."""
    root = place(options.data)
    owners = _owners(root, spec, options, read)
    for owner, rows in owners.items():
        if not len(rows):
            whose = f"client {owner} has" if owner else "there are"
            raise InvalidData(f"{rows.source}: {whose} no examples; add some, or remove it")
    classes = _classes(root, options, owners)
    if options.test is None:
        train, test = _hold_out(owners, options)
    else:
        train, test = owners, read(place(options.test), {})
        if not len(test):
            raise InvalidData(f"{test.source}: no examples in it; task.options.test needs some")
    if unknown := sorted(set(test.columns[options.label]) - set(classes)):
        raise InvalidData(
            f"{test.source}: label {unknown[0]} is not in the training data, which has: "
            f"{_listed(classes)}; correct it, or task.options.test, which has no folders of clients"
        )
    shards = Shards(train, test, classes, options.label)
    if spec.partition.kind == "natural":
        return shards
    whole = train[NOBODY]
    dealt = split(shards.labels(whole), spec.partition, spec.clients or 0, spec.seed)
    clients = {client_name(number): whole.take(shard) for number, shard in enumerate(dealt)}
    return replace(shards, train=clients)


def _owners(root: Path, spec: FederationSpec, options: ShardOptions, read: Read) -> dict[str, Rows]:
    """Each client's rows, or all of them as NOBODY's where the spec deals them out."""
    if spec.partition.kind != "natural":
        return {NOBODY: read(root, {})}
    if spec.clients is not None:
        raise InvalidSpec("clients: with a natural partition the data says how many; leave it out")
    if options.client is not None:
        return _by_column(read(root, {options.client: tables.name}), options.client)
    return {name: read(path, {}) for name, path in _clients_in(root).items()}


def _by_column(rows: Rows, column: str) -> dict[str, Rows]:
    owners = rows.columns[column]
    names, first = np.unique(owners.astype(str), return_inverse=True)
    return {str(name): rows.take(np.flatnonzero(first == at)) for at, name in enumerate(names)}


def _clients_in(root: Path) -> dict[str, Path]:
    """A name for every folder and table in a folder."""
    if root.is_file():
        raise InvalidSpec(
            "task.options.client: one table has all examples; name the column that says whose a "
            f"row is (there are: {', '.join(tables.column_names(root))}), or deal them out by "
            "partition.kind: iid and clients"
        )
    found: dict[str, Path] = {}
    for path in sorted(root.iterdir() if root.is_dir() else ()):
        if path.name.startswith("."):
            continue
        if path.is_file() and not tables.is_table(path):
            raise InvalidData(
                f"{path}: not a client's data, which is a folder or one of "
                f"{', '.join(tables.SUFFIXES)}; move it elsewhere"
            )
        suffix = "" if path.is_dir() else next(s for s in tables.SUFFIXES if path.name.endswith(s))
        client = path.name.removesuffix(suffix)
        if client in found:
            raise InvalidData(f"{path}: {found[client].name} is client {client} too; keep one")
        found[client] = path
    if not found:
        raise InvalidData(
            f"no data at {root}; put a folder or a table of each client there, or correct "
            "task.options.data; FEDFA_DATA says where names begin"
        )
    return found


def _classes(root: Path, options: ShardOptions, owners: Mapping[str, Rows]) -> tuple[str, ...]:
    found = {label for rows in owners.values() for label in rows.columns[options.label]}
    are_numbers = all(label.removeprefix("-").isdecimal() for label in found)
    classes = tuple(sorted(found, key=(lambda x: (int(x), x)) if are_numbers else None))
    if len(classes) < 2:
        raise InvalidData(f"{root}: one class alone, {_listed(classes)}; nothing to tell apart")
    if options.classes not in (None, len(classes)):
        raise InvalidData(
            f"{root}: {len(classes)} classes, and task.options.classes says {options.classes}: "
            f"{_listed(classes)}"
        )
    return classes


def _hold_out(owners: Mapping[str, Rows], options: ShardOptions) -> tuple[dict[str, Rows], Rows]:
    """A part of each client's examples, the same for every spec, so that federations compare."""
    train, held_out = {}, []
    for owner, rows in owners.items():
        seed = prf(0, f"held out of {owner}")
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))
        num_held_out = int(len(rows) * options.test_share)
        held_out.append(rows.take(np.sort(order[:num_held_out])))
        train[owner] = rows.take(np.sort(order[num_held_out:]))
    test = tables.concatenate(options.data, held_out)
    if not len(test):
        raise InvalidData(
            f"{options.data}: no client has enough examples to hold out {options.test_share:g} of "
            "them; give task.options.test, or a larger test_share"
        )
    return train, test


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names):.300}"
