"""SST-2: LoRA on a frozen, pre-trained BERT (the paper: rank 1, alpha 1), GLUE's files.

`data` has train.tsv and dev.tsv, plain or gzipped: a header, then sentence, tab, label. Only the
adapter's matrices and the classifier's head are trained, exchanged and exported. The server
averages A and B each for itself, and mean(B) mean(A) is not the mean of the clients' products B A:
the usual practice, which costs nothing extra and is exact only if the clients share one of them.
"""

import gzip
from pathlib import Path

import numpy as np
from pydantic import Field

from fedfa.errors import InvalidData
from fedfa.partition import split
from fedfa.spec import FederationSpec
from fedfa.tasks.base import options
from fedfa.tasks.classification import client_name
from fedfa.tasks.data import place
from fedfa.tasks.transformer import Lora, Sentences, TextClassification, TextOptions


class Sst2Options(TextOptions):
    data: str = Field(
        default="sst2",
        min_length=1,
        description="where train.tsv and dev.tsv are: below FEDFA_DATA, or s3://bucket/prefix",
    )
    model: str = Field(
        default="models/bert-base-uncased",
        min_length=1,
        description="the pre-trained model's folder: below FEDFA_DATA, or s3://bucket/prefix",
    )
    lora_rank: int = Field(default=1, ge=1, description="of the adapter that is trained")
    lora_alpha: int = Field(default=1, ge=1, description="the update B A is scaled by alpha / rank")
    train_examples: int | None = Field(default=None, ge=1, description="use only the first ones")


class Sst2(TextClassification):
    def __init__(self, spec: FederationSpec) -> None:
        chosen = options(spec, Sst2Options)
        root = place(chosen.data)
        train, test = read(root, "train", chosen.train_examples), read(root, "dev")
        shards = split(np.array(train.labels), spec.partition, spec.clients or 0, spec.seed)
        clients = {
            client_name(number): Sentences(
                [train.texts[index] for index in shard], [train.labels[index] for index in shard]
            )
            for number, shard in enumerate(shards)
        }
        lora = Lora(chosen.lora_rank, chosen.lora_alpha)
        super().__init__(spec, chosen, train=clients, test=test, lora=lora)


def read(root: Path, part: str, limit: int | None = None) -> Sentences:
    """The sentences of train or dev, at most so many."""
    file = next((f for f in (root / f"{part}.tsv", root / f"{part}.tsv.gz") if f.is_file()), None)
    if file is None:
        raise InvalidData(
            f"no {part}.tsv or {part}.tsv.gz at {root}; put GLUE's SST-2 there, or name its folder "
            "or s3:// prefix in the spec as task.options.data; FEDFA_DATA says where names begin"
        )
    try:
        body = file.read_bytes()
        text = (gzip.decompress(body) if file.suffix == ".gz" else body).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidData(f"{file}: cannot be read: {error}") from error
    header, *lines = text.replace("\r\n", "\n").split("\n")  # splitlines() knows more ends
    rows = [line.rsplit("\t", 1) for line in lines if line]
    wrong = [number for number, row in enumerate(rows, 2) if row[1:] not in (["0"], ["1"])]
    if header.split("\t") != ["sentence", "label"] or wrong or not rows:
        raise InvalidData(
            f"{file}: line {wrong[0] if wrong else 1} is not as expected: a header "
            "sentence<TAB>label, then one sentence, a tab and 0 or 1 on each line"
        )
    taken = rows[:limit]
    return Sentences([sentence for sentence, _ in taken], [int(label) for _, label in taken])
