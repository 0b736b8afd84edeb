"""Networks for images: torchvision's by name, its ResNet18 for small images, and LEAF's CNN."""

import torch
from torch import nn
from torch.func import functional_call

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

WITH_HELPERS = ("googlenet", "inception_v3")  # whose training has losses of its own


def by_name(name: str, num_classes: int, image_size: int) -> nn.Module:
    """torchvision's classification model of this name, untrained.

    Raises InvalidSpec where there is none, or none for images of image_size x image_size.
    """
    names = models.list_models(module=models)
    if name not in names:
        raise InvalidSpec(
            f"task.options.model: {name} is not in torchvision; there are: {', '.join(names)}"
        )
    choice: dict[str, object] = {"num_classes": num_classes}
    if name in WITH_HELPERS:
        choice |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        choice["image_size"] = image_size
    elif name.startswith("maxvit_"):
        choice["input_size"] = (image_size, image_size)
    try:
        model: nn.Module = models.get_model(name, weights=None, **choice)
        shapes = {at: tensor.to("meta") for at, tensor in model.state_dict().items()}
        picture = torch.empty(1, 3, image_size, image_size, device="meta")  # nothing is computed
        functional_call(model.eval(), shapes, (picture,))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise InvalidSpec(
            f"task.options.image_size: {name} cannot take {image_size} x {image_size} pixels: "
            f"{error}; most models are made for 224"
        ) from error
    return model.train()


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
