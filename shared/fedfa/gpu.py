"""How a GPU trains: what may be switched on, and how its batches get there.

Where the device is no GPU nothing here acts: a CPU's training is the same bit for bit.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedfa.tasks.base import Shard

RESIDENT_SHARE = 0.25  # of the free memory, for a shard; the rest is the training's


@dataclass(frozen=True, slots=True)
class Gpu:
    """What changes a GPU's roundings, and so the numbers, a little; off unless asked for.

    bf16: the loss is computed under bfloat16 autocast; weights and updates stay float32.
    channels_last: images and convolutions in the order that tensor cores like.
    compile: torch.compile, which costs a minute at a federation's first job.
    """

    bf16: bool = False
    channels_last: bool = False
    compile: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        if device.type == "cuda" and self.bf16:
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def prepare(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module itself, once, before its first job."""
        if device.type == "cuda":
            module.to(device)
            if self.channels_last:
                module.to(memory_format=torch.channels_last)
            if self.compile:
                module.compile()
        return module

    def move(self, column: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A batch's column on the device, without waiting for the copy."""
        if device.type != "cuda":
            return column.to(device)
        if column.device.type == "cpu":
            column = column.pin_memory().to(device, non_blocking=True)
        if self.channels_last and column.dim() == 4:
            column = column.contiguous(memory_format=torch.channels_last)
        return column


PLAIN = Gpu()


def resident(shard: Shard, device: torch.device) -> Shard:
    """The shard in the GPU's own memory, where it is tensors that fit; else as it is."""
    if device.type != "cuda" or not isinstance(shard, TensorDataset):
        return shard
    num_bytes = sum(column.numel() * column.element_size() for column in shard.tensors)
    free, _ = torch.cuda.mem_get_info(device)
    if num_bytes > RESIDENT_SHARE * free:
        return shard
    return TensorDataset(*(column.to(device) for column in shard.tensors))
