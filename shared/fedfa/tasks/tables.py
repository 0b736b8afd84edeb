"""Rows of CSV, JSON Lines and Parquet files, CSV and JSON Lines also gzipped, as columns by name.

A file is checked as it is read: what lacks a column, or holds something else than it should, is
named with its row.
"""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfa.complaints import did_you_mean
from fedfa.errors import InvalidData

SUFFIXES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")

Column = npt.NDArray[Any]
Convert = Callable[[Any], Any]  # raises ValueError, whose text completes "column x ..."


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of one length. source: the file or folder they are from, for people."""

    source: str
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, indices: npt.NDArray[np.int64]) -> "Rows":
        return Rows(self.source, {name: of[indices] for name, of in self.columns.items()})


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is no text: {value!r:.80}")
    return value


def name(value: Any) -> str:
    """A label or a client, as it is written: 1, 1.0 and "1" are the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int) or value == "":
        raise ValueError(f"is no name: {value!r:.80}")
    return str(value)


def number(value: Any) -> float:
    try:
        converted = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"is no number: {value!r:.80}") from None
    if not math.isfinite(converted):
        raise ValueError(f"is not finite: {value!r:.80}")
    return converted


def read(place: Path, columns: Mapping[str, Convert]) -> Rows:
    """These columns of a table, or of all tables in a folder one after the other."""
    return concatenate(
        str(place), [_checked(file, _parse(file), columns) for file in tables_in(place)]
    )


def column_names(place: Path) -> list[str]:
    """The columns of a table, or of the first one in a folder."""
    return list(_parse(tables_in(place)[0]))


def tables_in(place: Path) -> list[Path]:
    """The file itself, or the tables in a folder and its folders; InvalidData without any."""
    if not place.exists():
        raise InvalidData(
            f"no data at {place}; put it there, or correct task.options.data (or test); "
            "FEDFA_DATA says where names begin"
        )
    files = [place] if place.is_file() else [file for file in place.rglob("*") if is_table(file)]
    if not files:
        raise InvalidData(f"{place}: no table in it; there may be {', '.join(SUFFIXES)}")
    return sorted(files)


def is_table(file: Path) -> bool:
    return file.is_file() and file.name.endswith(SUFFIXES) and not file.name.startswith(".")


def concatenate(source: str, parts: Sequence[Rows]) -> Rows:
    names = parts[0].columns
    return Rows(source, {each: np.concatenate([p.columns[each] for p in parts]) for each in names})


def _checked(file: Path, found: Mapping[str, list[Any]], columns: Mapping[str, Convert]) -> Rows:
    checked: dict[str, Column] = {}
    for wanted, convert in columns.items():
        if wanted not in found:
            raise InvalidData(
                f"{file}: no column {wanted}{did_you_mean(wanted, found)}; there are: "
                f"{', '.join(found) or 'none'}; task.options says which is which"
            )
        values: list[Any] = []
        for row, value in enumerate(found[wanted], 1):
            try:
                values.append(convert(value))
            except ValueError as error:
                raise InvalidData(f"{file}: row {row}: column {wanted} {error}") from None
        checked[wanted] = np.array(values, np.float32 if convert is number else object)
    return Rows(str(file), checked)


def _parse(file: Path) -> dict[str, list[Any]]:
    """Every column of a file, as its format has the values; CSV has texts."""
    try:
        if file.name.endswith(".parquet"):
            return _parquet(file)
        body = file.read_bytes()
        decoded = (gzip.decompress(body) if file.suffix == ".gz" else body).decode("utf-8-sig")
        if file.name.endswith((".csv", ".csv.gz")):
            return _csv(decoded)
        if file.name.endswith((".jsonl", ".jsonl.gz")):
            return _jsonl(decoded)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InvalidData(f"{file}: cannot be read: {error}") from error
    raise InvalidData(f"{file}: not a table; there may be {', '.join(SUFFIXES)}")


def _csv(body: str) -> dict[str, list[Any]]:
    rows = (row for row in csv.reader(io.StringIO(body, newline=""), strict=True) if row)
    header = next(rows, [])
    columns: dict[str, list[Any]] = {each: [] for each in header}
    if len(columns) != len(header):
        raise ValueError("a column is there twice")
    for number_of_row, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"row {number_of_row} has {len(row)} values, the header {len(header)}")
        for each, value in zip(header, row, strict=True):
            columns[each].append(value)
    return columns


def _jsonl(body: str) -> dict[str, list[Any]]:
    rows = []
    for line_number, line in enumerate(body.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {line_number}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"line {line_number} is no object with a field for each column")
            rows.append(row)
    names = dict.fromkeys(each for row in rows for each in row)
    return {each: [row.get(each) for row in rows] for each in names}


def _parquet(file: Path) -> dict[str, list[Any]]:
    from pyarrow import parquet  # slow to import, and no other format needs it

    columns: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    return columns
