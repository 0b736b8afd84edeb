"""Sent140: every user is a client, all of a small BERT is trained (the paper's Tiny-BERT).

The data is LEAF's JSON, plain or gzipped, with `train` or `test` in the files' names:

    {"user_data": {user: {"x": [text, ...], "y": [0 or 1, ...]}}, ...}

Instead of a text, LEAF's own Sent140 has the tweet's row, whose fifth entry is the text.
"""

import gzip
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from fedfa.complaints import describe
from fedfa.errors import InvalidData, InvalidSpec
from fedfa.spec import FederationSpec
from fedfa.tasks.base import options
from fedfa.tasks.data import place
from fedfa.tasks.transformer import Sentences, TextClassification, TextOptions

TEXT_OF_ROW = 4  # id, date, query, user, text

Text = Annotated[
    str,
    BeforeValidator(
        lambda x: x[TEXT_OF_ROW] if isinstance(x, list) and len(x) > TEXT_OF_ROW else x
    ),
]
Label = Annotated[int, Field(ge=0, le=1)]


class User(BaseModel):
    x: list[Text]
    y: list[Label]


class Leaf(BaseModel):
    user_data: dict[str, User]


class Sent140Options(TextOptions):
    data: str = Field(
        default="sent140",
        min_length=1,
        description="where the JSON files are: below FEDFA_DATA, or s3://bucket/prefix",
    )
    files: str = Field(
        default="", description="how the files' names begin, to take one set of several"
    )
    model: str = Field(
        default="models/bert-tiny",
        min_length=1,
        description="the pre-trained model's folder: below FEDFA_DATA, or s3://bucket/prefix",
    )
    min_samples: int = Field(
        default=1,
        ge=1,
        description="leave out users with fewer examples, held-out ones included; the paper's 100",
    )


class Sent140(TextClassification):
    def __init__(self, spec: FederationSpec) -> None:
        chosen = options(spec, Sent140Options)
        if spec.partition.kind != "natural" or spec.clients is not None:
            raise InvalidSpec(
                "partition.kind: the users of sent140 are its clients; give natural, and no "
                "clients (task.options.min_samples chooses among the users)"
            )
        root = place(chosen.data)
        train, test = read(root, "train", chosen.files), read(root, "test", chosen.files)
        users = [
            user
            for user, own in train.items()
            if own.labels
            and len(own.labels) + (len(test[user].labels) if user in test else 0)
            >= chosen.min_samples
        ]
        held_out = Sentences(
            [text for user in users if user in test for text in test[user].texts],
            [label for user in users if user in test for label in test[user].labels],
        )
        if not held_out.labels:
            raise InvalidData(
                f"{root}: {len(train)} users, none of whom has held-out examples and at least "
                f"{chosen.min_samples} in all; lower task.options.min_samples"
            )
        super().__init__(spec, chosen, train={user: train[user] for user in users}, test=held_out)


def read(root: Path, part: str, prefix: str = "") -> dict[str, Sentences]:
    """Each user's examples of a part, train or test, from all of its files."""
    files = [
        file
        for file in sorted(root.rglob(f"{prefix}*.json*"))
        if part in file.name and file.name.endswith((".json", ".json.gz"))
    ]
    if not files:
        raise InvalidData(
            f"no LEAF files {prefix}*{part}*.json or .json.gz at {root}; put them there, or name "
            "their folder or s3:// prefix in the spec as task.options.data; FEDFA_DATA says where "
            "names begin"
        )
    found: dict[str, Sentences] = {}
    for file in files:
        for user, own in _parsed(file).user_data.items():
            if user in found:
                raise InvalidData(
                    f"{file}: user {user} is in another file of {part} too; choose one set of "
                    "files by task.options.files, as in files: all_data_"
                )
            if len(own.x) != len(own.y):
                raise InvalidData(f"{file}: user {user}: {len(own.x)} texts, {len(own.y)} labels")
            found[user] = Sentences(own.x, own.y)
    return found


def _parsed(file: Path) -> Leaf:
    try:
        body = file.read_bytes()
        return Leaf.model_validate_json(gzip.decompress(body) if file.suffix == ".gz" else body)
    except ValidationError as error:
        raise InvalidData(f"{file}: not LEAF's JSON: {describe(error, Leaf):.300}") from error
    except (OSError, EOFError) as error:
        raise InvalidData(f"{file}: cannot be read: {error}") from error
