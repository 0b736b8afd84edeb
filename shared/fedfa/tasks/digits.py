"""Handwritten digits: scikit-learn's 1,797 images of 8x8, which need no download."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from sklearn.datasets import load_digits
from torch import nn

from fedfa.randomness import prf
from fedfa.sections import Section
from fedfa.spec import FederationSpec
from fedfa.tasks.base import options
from fedfa.tasks.classification import TensorClassification

TRAIN_SHARE = 0.8


class DigitsOptions(Section):
    norm: Literal["none", "batch"] = Field(
        default="none", description="batch: a BatchNorm after each convolution"
    )


class Digits(TensorClassification):
    def __init__(self, spec: FederationSpec) -> None:
        self.norm = options(spec, DigitsOptions).norm
        data = load_digits()
        images = torch.from_numpy(data.images.astype(np.float32) / 16).unsqueeze(1)  # (n, 1, 8, 8)
        labels = torch.from_numpy(data.target.astype(np.int64))
        # The same held-out images for every spec, so that federations compare.
        split = np.random.Generator(np.random.PCG64(prf(0, "digits"))).permutation(len(labels))
        train, test = np.split(split, [int(TRAIN_SHARE * len(labels))])
        super().__init__(
            spec, train=(images[train], labels[train]), test=(images[test], labels[test])
        )

    def network(self) -> nn.Module:
        def norm(channels: int) -> nn.Module:
            return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.Identity()

        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            norm(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            norm(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
