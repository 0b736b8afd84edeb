"""CIFAR-10 with the paper's ResNet18 or a small CNN, from whatever form the data has.

`data` names a folder or an .npz file below FEDFA_DATA, or either in a bucket
(s3://bucket/prefix). Understood, in a folder or in the folders right inside it:

    *.npz            x_train, y_train, x_test, y_test (uint8, n x 32 x 32 x 3), or JPEG files end
                     to end: {train,test}_jpeg, _offsets (n + 1), _labels
    data_batch_*.bin, test_batch.bin        the official binary version (the Python version is
                                            pickle, which FedFa never reads)
    {train,test}_NN.webp, _labels.npy       sheets of 40 x 25 images, labels one row per sheet
    {train,test}/<class>/*.png              or .jpg, .webp: one folder per class
"""

import io
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import Field
from torch import nn

from fedfa.errors import InvalidData
from fedfa.randomness import prf
from fedfa.sections import Section
from fedfa.spec import FederationSpec
from fedfa.tasks.base import options
from fedfa.tasks.classification import TensorClassification
from fedfa.tasks.data import place as placed
from fedfa.tasks.vision import cnn, small_resnet18

NUM_CLASSES = 10
MEAN = (0.4914, 0.4822, 0.4465)  # of the training set, in 0..1
STD = (0.2470, 0.2435, 0.2616)
SHEET_ROWS, SHEET_COLUMNS = 40, 25

Part = Literal["train", "test"]
Examples = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # images (n, 32, 32, 3) uint8, labels (n,)


class Cifar10Options(Section):
    data: str = Field(
        default="cifar10",
        min_length=1,
        description="where the images are: below FEDFA_DATA, or s3://bucket/prefix",
    )
    model: Literal["resnet18", "cnn"] = Field(
        default="resnet18", description="the paper's, or a small one for CPUs"
    )
    width: int | None = Field(
        default=None,
        ge=1,
        description="channels of the first layer, the others in proportion; 64 for resnet18, "
        "32 for cnn if not given",
    )
    train_examples: int | None = Field(default=None, ge=1, description="use only the first ones")
    test_examples: int | None = Field(default=None, ge=1, description="use only the first ones")


class Cifar10(TensorClassification):
    def __init__(self, spec: FederationSpec) -> None:
        self.options = chosen = options(spec, Cifar10Options)
        train, test = read(chosen.data, chosen.train_examples, chosen.test_examples)
        super().__init__(spec, train=_tensors(train), test=_tensors(test))

    def network(self) -> nn.Module:
        make, width = (cnn, 32) if self.options.model == "cnn" else (small_resnet18, 64)
        return make(self.options.width or width, NUM_CLASSES)

    def inputs(self, examples: torch.Tensor) -> torch.Tensor:
        """(batch, 32, 32, 3) uint8 -> (batch, 3, 32, 32) normalised, channels last in memory."""
        mean = torch.tensor(MEAN, device=examples.device)
        std = torch.tensor(STD, device=examples.device)
        return ((examples / 255 - mean) / std).permute(0, 3, 1, 2)


def read(
    location: str, train_examples: int | None = None, test_examples: int | None = None
) -> tuple[Examples, Examples]:
    """The training and test images at a location, at most so many of each."""
    root = placed(location)
    folders = sorted(path for path in root.glob("*") if path.is_dir())
    for place in [root, *folders]:
        for reader in (_npz, _binary, _sheets, _class_folders):
            try:
                train = reader(place, "train", train_examples)
                test = reader(place, "test", test_examples)
            except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
                raise InvalidData(f"{place}: unreadable CIFAR-10 data: {error}") from error
            if train and test:
                return _checked(train, place), _checked(test, place)
    raise InvalidData(
        f"no CIFAR-10 data at {root}; put it there, or name its folder, .npz file or s3:// prefix "
        "in the spec as task.options.data; FEDFA_DATA says where names begin"
    )


def _tensors(examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = examples
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _checked(examples: Examples, place: Path) -> Examples:
    images, labels = examples
    good = images.dtype == np.uint8 and images.shape == (len(labels), 32, 32, 3)
    if not good or len(labels) == 0 or labels.min() < 0 or labels.max() >= NUM_CLASSES:
        raise InvalidData(
            f"{place}: {images.dtype} images {list(images.shape)} with {len(labels)} labels; "
            "expected uint8 [n, 32, 32, 3] and n labels from 0 to 9"
        )
    return images, labels


# -- the forms; each reader returns None where its files are not -------------------------------


def _npz(place: Path, part: Part, limit: int | None) -> Examples | None:
    files = [place] if place.suffix == ".npz" and place.is_file() else sorted(place.glob("*.npz"))
    for file in files:
        with np.load(file) as arrays:  # refuses pickled arrays
            if f"x_{part}" in arrays:
                return arrays[f"x_{part}"][:limit], arrays[f"y_{part}"].reshape(-1)[:limit]
            if f"{part}_jpeg" in arrays:
                labels = arrays[f"{part}_labels"][:limit]
                data, ends = arrays[f"{part}_jpeg"], arrays[f"{part}_offsets"]
                jpegs = np.split(data, ends[1 : len(labels) + 1])[: len(labels)]
                return np.stack([_decoded(io.BytesIO(jpeg.tobytes())) for jpeg in jpegs]), labels
    return None


def _binary(place: Path, part: Part, limit: int | None) -> Examples | None:
    files = sorted(place.glob("data_batch_*.bin" if part == "train" else "test_batch.bin"))
    if not files:
        return None
    rows = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, 1 + 3072)
    images = rows[:limit, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:limit, 0]


def _sheets(place: Path, part: Part, limit: int | None) -> Examples | None:
    per_sheet = SHEET_ROWS * SHEET_COLUMNS
    files = sorted(place.glob(f"{part}_[0-9]*.webp"))
    if not files:
        return None
    files = files[: None if limit is None else -(-limit // per_sheet)]
    grid = (SHEET_ROWS, 32, SHEET_COLUMNS, 32, 3)
    sheets = [
        _decoded(file).reshape(grid).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
        for file in files
    ]
    numbers = [int(file.stem.removeprefix(f"{part}_")) for file in files]
    labels = np.load(place / f"{part}_labels.npy")[numbers].reshape(-1)
    return np.concatenate(sheets)[:limit], labels[:limit]


def _class_folders(place: Path, part: Part, limit: int | None) -> Examples | None:
    classes = sorted(path for path in (place / part).glob("*") if path.is_dir())
    files = [
        (file, label)
        for label, folder in enumerate(classes)
        for file in sorted(folder.iterdir())
        if file.suffix in {".png", ".jpg", ".jpeg", ".webp"}
    ]
    if not files:
        return None
    # shuffled, always in the same way: the first few examples should show every class
    order = np.random.Generator(np.random.PCG64(prf(0, "cifar10"))).permutation(len(files))
    chosen = [files[index] for index in order[:limit]]
    return np.stack([_decoded(file) for file, _ in chosen]), np.array([k for _, k in chosen])


def _decoded(file: Path | io.BytesIO) -> npt.NDArray[np.uint8]:
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
