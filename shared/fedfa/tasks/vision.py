"""Networks for images: torchvision's by name, its ResNet18 for small images, and LEAF's CNN."""

from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from fedfa.complaints import did_you_mean
from fedfa.errors import InvalidSpec

try:
    from torchvision import models
    from torchvision.models import ResNet, resnet18
    from torchvision.models.resnet import BasicBlock
except (ImportError, RuntimeError) as error:  # the second: it was built for another torch
    raise ImportError(
        f"pictures need the torchvision that belongs to torch {torch.__version__} ({error}); "
        "install both with one command from one index, both for CPU or both for CUDA"
    ) from error

SIZES = (32, 64, 96, 128)  # that an error proposes, for small pictures


def by_name(name: str, num_classes: int, image_size: int) -> nn.Module:
    """torchvision's classification model of this name, untrained.

    Raises InvalidSpec where there is none, or none for images of image_size x image_size.
    """
    names = models.list_models(module=models)
    if name not in names:
        raise InvalidSpec(
            f"task.options.model: {name} is not in torchvision{did_you_mean(name, names)}; "
            f"there are: {', '.join(names)}"
        )
    if name.startswith("mnasnet"):  # its load_state_dict wants a version, which no safetensors has
        raise InvalidSpec(
            f"task.options.model: torchvision cannot load {name} from safetensors; "
            "take mobilenet_v2 or another of its size"
        )
    try:
        model: nn.Module = models.get_model(name, **arguments(name, num_classes, image_size))
        _show(model.eval(), image_size)
    except (AssertionError, RuntimeError, ValueError) as error:
        because = " ".join(str(error).split())  # some are of several lines
        raise InvalidSpec(
            f"task.options.image_size: {name} cannot take {image_size} x {image_size} pixels: "
            f"{because}; take {_sizes_for(name)}"
        ) from error
    return model.train()


def arguments(name: str, num_classes: int, image_size: int) -> dict[str, Any]:
    """What torchvision.models.get_model takes to build the same network; fit for JSON."""
    chosen: dict[str, Any] = {"num_classes": num_classes}
    if name in ("googlenet", "inception_v3"):
        # Without the heads that only help its training. Its pre-trained weights want pixels scaled
        # otherwise than the other models' do: transform_input does that.
        chosen |= {"aux_logits": False, "init_weights": True, "transform_input": True}
    elif name.startswith("vit_"):
        chosen["image_size"] = image_size
    elif name.startswith("maxvit_"):
        chosen["input_size"] = [image_size, image_size]
    return chosen


def trains_on_one(model: nn.Module, image_size: int) -> bool:
    """Whether a batch may be a single picture: BatchNorm needs two where it sees one pixel."""
    try:
        _show(model.train(), image_size)
    except ValueError:
        return False
    return True


def _show(model: nn.Module, image_size: int) -> None:
    """Raises what torch does where the model takes no such picture. Computes nothing."""
    shapes = {at: tensor.to("meta") for at, tensor in model.state_dict().items()}
    picture = torch.empty(1, 3, image_size, image_size, device="meta")
    functional_call(model, shapes, (picture,))


def _sizes_for(name: str) -> str:
    """The least of SIZES that this model takes, and the one that torchvision trained it for."""
    usual = models.get_model_weights(name).DEFAULT.transforms.keywords["crop_size"]
    for size in SIZES:
        with suppress(AssertionError, RuntimeError, ValueError), torch.device("meta"):
            _show(models.get_model(name, **arguments(name, 2, size)).eval(), size)
            return f"{size}, or {usual}, which it is made for"
    return f"{usual}, which it is made for"


def small_resnet18(width: int, num_classes: int) -> ResNet:
    """torchvision's ResNet18 with the stem for 32x32 images: 3x3 convolution, no pooling.

    Another width than 64 scales every layer, as in wide and narrow ResNets.
    """
    model: ResNet = resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    if width != 64:
        _resize(model, width)
    return model


def _resize(model: ResNet, width: int) -> None:
    """torchvision fixes the basic block's widths: build the four stages again, as it does."""
    model.bn1 = nn.BatchNorm2d(width)
    model.inplanes = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        layer = model._make_layer(BasicBlock, width << stage, 2, stride=stride)
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        setattr(model, f"layer{stage + 1}", layer)
    model.fc = nn.Linear(width << 3, model.fc.out_features)


def cnn(width: int, num_classes: int) -> nn.Sequential:
    """The CNN of LEAF (Caldas et al. 2018, arXiv:1812.01097) for its images, on 32x32x3.

    Two 5x5 convolutions of `width` and 2 `width` channels, each pooled, and 64 `width` units.
    """
    return nn.Sequential(
        nn.Conv2d(3, width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 8 * 8, 64 * width),
        nn.ReLU(),
        nn.Linear(64 * width, num_classes),
    )
