import numpy as np
import pytest
import torch
from torch import nn

from fedfa import modules
from fedfa.errors import InvalidTensors
from fedfa.tensor_files import decode, encode
from fedfa.tensors import FlatModel


def convnet():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3, bias=False)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("cache", torch.ones(5), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))


def names(module):
    return [(tensor.name, tensor.kind) for tensor in modules.template_of(module).tensors]


def test_the_template_lists_parameters_then_buffers_then_integers():
    template = modules.template_of(convnet())

    assert [(t.name, t.kind, t.dtype, t.shape) for t in template.tensors] == [
        ("0.weight", "parameter", "F32", (4, 1, 3, 3)),
        ("0.bias", "parameter", "F32", (4,)),
        ("1.weight", "parameter", "F32", (4,)),
        ("1.bias", "parameter", "F32", (4,)),
        ("3.weight", "parameter", "F32", (2, 4)),
        ("3.bias", "parameter", "F32", (2,)),
        ("1.running_mean", "buffer", "F32", (4,)),
        ("1.running_var", "buffer", "F32", (4,)),
        ("1.num_batches_tracked", "integer", "I64", ()),
    ]


def test_a_module_survives_the_round_trip_through_a_file():
    # given a module with statistics, whose tensors are anything but defaults
    source, target = convnet(), convnet()
    for _ in range(3):
        source(torch.randn(8, 1, 3, 3))
    template = modules.template_of(source)

    # when it is read, stored, loaded and written into another one
    body = encode(modules.read(source, template))
    modules.write(target, decode(body, template))

    # then nothing differs
    assert source.state_dict().keys() == target.state_dict().keys()
    for name, tensor in source.state_dict().items():
        other = target.state_dict()[name]
        assert tensor.dtype == other.dtype
        assert torch.equal(tensor, other), name
    assert target[1].num_batches_tracked.item() == 3
    assert target[1].num_batches_tracked.shape == ()


def test_what_was_read_does_not_change_with_the_module():
    module = convnet()
    model = modules.read(module, modules.template_of(module))
    before = model.floats.copy()

    with torch.no_grad():
        module[0].weight.add_(1)

    assert np.array_equal(model.floats, before)


def test_what_was_written_does_not_change_with_the_flat_model():
    module = convnet()
    model = modules.read(module, modules.template_of(module))

    modules.write(module, model)
    model.floats[:] = 7

    assert not (module[0].weight == 7).any()


def test_a_read_only_flat_model_can_be_written():
    module = convnet()
    model = modules.read(module, modules.template_of(module))
    model.floats.flags.writeable = False

    modules.write(module, model)  # without a warning from torch, which would be an error here


def test_writing_keeps_parameters_trainable_and_optimizers_attached():
    module = convnet()
    weight = module[0].weight
    modules.write(module, modules.read(module, modules.template_of(module)))

    assert module[0].weight is weight
    assert weight.requires_grad
    assert weight.is_leaf


def test_channels_last_tensors_are_read_in_logical_order():
    module = convnet()
    template = modules.template_of(module)
    expected = modules.read(module, template).floats

    found = modules.read(module.to(memory_format=torch.channels_last), template).floats

    assert np.array_equal(found, expected)


def test_tied_weights_are_exchanged_once_and_stay_tied():
    module = Tied()
    assert names(module) == [("encoder.weight", "parameter")]

    template = modules.template_of(module)
    modules.write(module, FlatModel(template, np.full(9, 5, np.float32), np.empty(0, np.int64)))

    assert (module.decoder.weight == 5).all()
    assert module.decoder.weight is module.encoder.weight


def test_only_persistent_buffers_are_exchanged():
    assert names(WithBuffers()) == [
        ("weight", "parameter"),
        ("kept", "buffer"),
        ("mask", "integer"),
    ]


def test_frozen_parameters_stay_out_and_untouched():
    module = convnet()
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()

    template = modules.template_of(module)
    model = modules.read(module, template)
    model.floats[:] = 1
    modules.write(module, model)

    assert "0.weight" not in {tensor.name for tensor in template.tensors}
    assert torch.equal(module[0].weight, frozen)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_trainable_parameter_that_is_not_float32_is_refused_with_the_remedy(dtype):
    with pytest.raises(InvalidTensors, match=r"0\.weight.*torch\.float32; call \.float\(\)"):
        modules.template_of(convnet().to(dtype))


def test_a_frozen_parameter_may_have_any_dtype():
    module = convnet()
    module[0].to(torch.bfloat16).requires_grad_(False)

    modules.template_of(module)
    modules.frozen_digest(module)


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module[3].requires_grad_(False),
        lambda module: module.__setitem__(3, nn.Linear(4, 3)),
        lambda module: module.append(nn.Linear(2, 2)),
        lambda module: module.__setitem__(1, nn.Identity()),
    ],
    ids=["frozen", "reshaped", "longer", "without buffers"],
)
def test_a_module_that_differs_from_the_model_is_refused(change):
    module = convnet()
    model = modules.read(module, modules.template_of(module))
    change(module)

    with pytest.raises(InvalidTensors, match="expected"):
        modules.write(module, model)


def frozen_net(seed=0):
    torch.manual_seed(seed)
    module = convnet()
    module[0].requires_grad_(False)
    return module


def test_the_frozen_digest_covers_frozen_parameters_and_nothing_else():
    digest = modules.frozen_digest(frozen_net())
    trained = frozen_net()
    with torch.no_grad():
        trained[3].weight.add_(1)
        trained[1].running_mean.add_(1)

    assert modules.frozen_digest(trained) == digest
    assert modules.frozen_digest(convnet()) == modules.frozen_digest(nn.Linear(1, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module[0].weight.data.view(-1)[0].add_(1e-3),
        lambda module: module[0].to(torch.bfloat16),
        lambda module: setattr(
            module[0], "weight", nn.Parameter(module[0].weight.reshape(4, 9), False)
        ),
        lambda module: module[3].requires_grad_(False),
    ],
    ids=["value", "dtype", "shape", "one more"],
)
def test_the_frozen_digest_shows_any_change_of_frozen_parameters(change):
    module = frozen_net()
    change(module)

    assert modules.frozen_digest(module) != modules.frozen_digest(frozen_net())
