"""`images`: a classification model of torchvision, by its name, on one's own pictures.

A client's data is a folder with one folder for each class, or a table with the columns `image`
(a path from where the table is) and `label`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import Dataset, default_collate

from fedfa.errors import InvalidData, InvalidSpec
from fedfa.spec import FederationSpec
from fedfa.tasks import shards, tables, vision
from fedfa.tasks.base import Batch, options
from fedfa.tasks.classification import Classification
from fedfa.tasks.data import place
from fedfa.tasks.tables import Convert, Rows

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
MEAN, STD = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # ImageNet's, as torchvision's weights want
EVALUATION_BATCH = 64
MAX_KEPT_BYTES = 1 << 30  # of pixels in memory; what is beyond is read from its file each time


class ImagesOptions(shards.ShardOptions):
    image: str = Field(default="image", min_length=1, description="the column with the path")
    model: str = Field(default="resnet18", min_length=1, description="torchvision's name for it")
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="a safetensors file with pre-trained weights: below FEDFA_DATA, or "
        "s3://bucket/prefix; a head for other classes is left out",
    )
    image_size: int = Field(
        default=224, ge=8, description="pixels of a side; pictures are scaled and cut to a square"
    )


class Images(Classification):
    def __init__(self, spec: FederationSpec) -> None:
        self.options = chosen = options(spec, ImagesOptions)
        found = shards.load(spec, chosen, self._read)
        self._classes = found.classes
        kept = Kept(chosen.image_size)

        def pictures(rows: Rows) -> Pictures:
            return Pictures(list(rows.columns[chosen.image]), found.labels(rows).tolist(), kept)

        self._train = {client: pictures(rows) for client, rows in found.train.items()}
        self._test = pictures(found.test)
        super().__init__(spec, {client: len(own) for client, own in self._train.items()})

    def network(self) -> nn.Module:
        chosen = self.options
        model = vision.by_name(chosen.model, len(self._classes), chosen.image_size)
        if chosen.weights is not None:
            _load_weights(model, place(chosen.weights), chosen)
        self._refuse_single_pictures(model)
        return model

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """(batch, 3, size, size) uint8 -> normalised float32"""
        mean, std = (torch.tensor(each, device=examples.device) for each in (MEAN, STD))
        return (examples / 255 - mean[:, None, None]) / std[:, None, None]

    def examples(self, client: str) -> "Pictures":
        return self._train[client]

    def held_out(self) -> Iterable[Batch]:
        for start in range(0, len(self._test), EVALUATION_BATCH):
            end = min(start + EVALUATION_BATCH, len(self._test))
            yield tuple(default_collate([self._test[at] for at in range(start, end)]))

    def save(self, model: nn.Module, folder: Path) -> None:
        """What torchvision's own model of that name loads, and how it was made."""
        chosen = self.options
        save_file(model.state_dict(), folder / "model.safetensors")
        made = {
            "model": chosen.model,
            "arguments": vision.arguments(chosen.model, len(self._classes), chosen.image_size),
            "image_size": chosen.image_size,
            "mean": MEAN,
            "std": STD,
            "classes": self._classes,
        }
        (folder / "config.json").write_text(json.dumps(made, indent=2) + "\n")

    def _refuse_single_pictures(self, model: nn.Module) -> None:
        """Raises where a batch would be one picture, and this model cannot train on one."""
        local, chosen = self.spec.local, self.options
        clients = self.clients()
        fewest = min(clients, key=lambda client: clients[client])
        if min(local.batch_size, local.max_examples or 2) == 1:
            where = "local: a batch of one picture"
            remedy = "take 2 or more for batch_size and max_examples"
        elif clients[fewest] == 1:
            where = f"{chosen.data}: client {fewest} has one picture to train on"
            remedy = "give it more"
        else:
            return
        if not vision.trains_on_one(model, chosen.image_size):
            raise InvalidSpec(
                f"{where}, and {chosen.model} needs two, for its BatchNorm at image_size "
                f"{chosen.image_size}; {remedy}, or take a larger image_size"
            )

    def _read(self, where: Path, more: Mapping[str, Convert]) -> Rows:
        """The paths and labels in a folder or table; every picture's header is looked at."""
        image, label = self.options.image, self.options.label
        if where.is_file() or any(map(tables.is_table, where.rglob("*"))):
            rows = tables.read(where, {image: tables.text, label: tables.name, **more})
            folder = where.parent if where.is_file() else where
            rows.columns[image][:] = [folder / path for path in rows.columns[image]]
        elif more:
            raise InvalidSpec(
                f"task.options.client: {where} has no table, and folders no columns; leave it out"
            )
        else:
            rows = _class_folders(where, image, label)
        for path in rows.columns[image]:
            _opened(path).close()
        return rows


class Kept:
    """Pictures as tensors, from memory while there is room."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._room = MAX_KEPT_BYTES // (3 * size * size)
        self._tensors: dict[Path, torch.Tensor] = {}

    def __getitem__(self, path: Path) -> torch.Tensor:
        """(3, size, size) uint8"""
        kept = self._tensors.get(path)
        if kept is not None:
            return kept
        try:
            with _opened(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
                square = ImageOps.fit(upright, (self._size, self._size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError) as error:
            raise InvalidData(f"{path}: its picture cannot be read: {error}") from error
        tensor = torch.from_numpy(np.asarray(square).transpose(2, 0, 1).copy())
        if len(self._tensors) < self._room:
            self._tensors[path] = tensor
        return tensor


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """(picture, label) of each file."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], kept: Kept) -> None:
        self._paths, self._labels, self._kept = paths, labels, kept

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._kept[self._paths[index]], self._labels[index]


def _class_folders(where: Path, image: str, label: str) -> Rows:
    found = [
        (file, folder.name)
        for folder in sorted(path for path in where.glob("*") if path.is_dir())
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise InvalidData(
            f"{where}: no pictures; there should be a folder for each class with "
            f"{', '.join(SUFFIXES)} in it, or a table with the columns {image} and {label}; "
            "add some, or remove it"
        )
    columns = {image: np.empty(len(found), object), label: np.empty(len(found), object)}
    columns[image][:] = [file for file, _ in found]
    columns[label][:] = [name for _, name in found]
    return Rows(str(where), columns)


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except OSError as error:
        raise InvalidData(f"{path}: no readable picture: {error}; replace or remove it") from error


def _load_weights(model: nn.Module, file: Path, chosen: ImagesOptions) -> None:
    try:
        weights = {
            name: tensor
            for name, tensor in load_file(file).items()
            if not name.lower().startswith("aux")  # helpers of a training, which we leave away
        }
    except (OSError, SafetensorError) as error:
        raise InvalidData(
            f"{file}: cannot be read as task.options.weights: {error}; write it by "
            "safetensors.torch.save_file(model.state_dict(), FILE)"
        ) from error
    ours = model.state_dict()
    head = [name for name in ours if name in weights and ours[name].shape != weights[name].shape]
    last = list(ours)[-1].rpartition(".")[0]  # torchvision's models end with their head
    foreign = sorted({*ours} ^ {*weights}) + [each for each in head if not each.startswith(last)]
    if foreign:
        raise InvalidData(
            f"{file}: made for another model than {chosen.model} at image_size "
            f"{chosen.image_size}: {foreign[0]} does not fit"
        )
    model.load_state_dict({name: weights[name] for name in ours if name not in head}, strict=False)
