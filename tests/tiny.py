"""Real data and real models of a few kilobytes, for tasks whose own are larger and elsewhere."""

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from transformers import BertConfig, BertForPreTraining, BertModel

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD = ["good", "great", "fine", "lovely", "warm"]
BAD = ["bad", "poor", "dull", "cold", "broken"]
FILLER = ["the", "film", "is", "was", "a", "very", "and", "story", "cast", "plot"]
WORDS = GOOD + BAD + FILLER


def write_bert(
    folder: Path, *, form: type = BertModel, num_layers: int = 2, **more: object
) -> Path:
    """A BERT with its tokenizer, as a download would lie there; form: what was trained before."""
    vocabulary = SPECIAL + WORDS
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    form(config, **more).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return folder


def write_pretraining_bert(folder: Path) -> Path:
    return write_bert(folder, form=BertForPreTraining)


def sentences(num: int, seed: int) -> tuple[list[str], list[int]]:
    """Sentences whose one telling word gives the label."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(num):
        label = int(random.integers(2))
        words = list(random.choice(FILLER, random.integers(2, 12)))
        words.insert(int(random.integers(len(words))), str(random.choice((BAD, GOOD)[label])))
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def write_leaf(folder: Path, *, users: int = 6, prefix: str = "") -> Path:
    """Users with 10, 20, ... training examples and 5 held-out ones each, as LEAF splits them."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        data = {}
        for user in range(users):
            num = 10 * (user + 1) if part == "train" else 5
            x, y = sentences(num, 2 * user + (part == "test"))
            data[f"user-{user}"] = {"x": x, "y": y}
        counts = [len(own["x"]) for own in data.values()]
        leaf = {"users": list(data), "num_samples": counts, "user_data": data}
        body = gzip.compress(json.dumps(leaf).encode())
        (folder / f"{prefix}{part}.json.gz").write_bytes(body)
    return folder


def write_sst2(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, num, seed in (("train", 120, 100), ("dev", 40, 101)):
        texts, labels = sentences(num, seed)
        lines = [f"{text} \t{label}" for text, label in zip(texts, labels, strict=True)]
        (folder / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder


def write_cifar10(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (x_train, y_train), (x_test, y_test) = _images(60), cifar10_test()
    np.savez(folder / "cifar10.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return folder


def cifar10_test() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """20 held-out images of ten classes that differ in brightness."""
    return _images(20)


def _images(num: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    labels = np.arange(num, dtype=np.uint8) % 10
    noise = np.random.default_rng(num).integers(0, 40, (num, 32, 32, 3))
    return (noise + 20 * labels[:, None, None, None]).astype(np.uint8), labels


def write_pictures(folder: Path, *, clients: int = 3, each: int = 6, size: int = 20) -> Path:
    """folder/client/class/number.png: red, green and blue pictures, `each` of a class."""
    for client in range(clients):
        for number, name in enumerate(("blue", "green", "red")):
            place = folder / f"farm-{client}" / name
            place.mkdir(parents=True)
            noise = np.random.default_rng(10 * client + number).integers(
                0, 60, (each, size, size, 3)
            )
            noise[..., 2 - number] += 150
            for at, pixels in enumerate(noise.astype(np.uint8)):
                Image.fromarray(pixels).save(place / f"{at}.png")
    return folder


def reviews(num: int, seed: int) -> list[dict[str, object]]:
    """Rows of three shops, with the columns shop, review and verdict."""
    texts, labels = sentences(num, seed)
    return [
        {"shop": f"shop-{at % 3}", "review": text, "verdict": ("negative", "positive")[label]}
        for at, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def flowers(num: int, seed: int) -> list[dict[str, object]]:
    """Rows of three gardens, with the columns garden, height, width and kind (0, 1 or 2)."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for at in range(num):
        kind = int(random.integers(3))
        height, width = random.normal((100 * kind, -5 * kind), (10, 1))
        garden = f"garden-{at % 3}"
        rows.append({"garden": garden, "height": height, "width": width, "kind": kind})
    return rows


def write_table(file: Path, rows: list[dict[str, object]]) -> Path:
    """By the suffix: CSV, JSON Lines or Parquet; the first two also gzipped."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file)
        return file
    text = io.StringIO(newline="")
    if ".csv" in file.suffixes:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    body = text.getvalue().encode()
    file.write_bytes(gzip.compress(body) if file.suffix == ".gz" else body)
    return file
