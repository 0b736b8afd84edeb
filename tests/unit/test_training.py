import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from fedfa import modules, training
from fedfa.errors import Cancelled, InvalidData, InvalidSpec
from fedfa.gpu import PLAIN, Gpu
from fedfa.spec import parse
from fedfa.training import batch_of, local_update

CPU = torch.device("cpu")
NUM_EXAMPLES = 21


class AsItems(Dataset):
    """A map-style data set that is no TensorDataset."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)


class Regression:
    """One client with noise-free linear data, and a model with dropout and BatchNorm if asked."""

    def __init__(self, spec, *, shard=TensorDataset, batch_norm=False):
        self.spec, self.batch_norm, self.batches = spec, batch_norm, []
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(NUM_EXAMPLES, 3, generator=generator)
        targets = inputs @ torch.tensor([[1.0], [2.0], [3.0]])
        self.shards = {"client": shard(inputs, targets), "empty": shard(inputs[:0], targets[:0])}

    def model(self):
        torch.manual_seed(self.spec.seed)
        if self.batch_norm:
            return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        return nn.Linear(3, 1)

    def clients(self):
        return {"client": NUM_EXAMPLES}

    def shard(self, client):
        return self.shards[client]

    def loss(self, model, batch):
        self.batches.append(batch)
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def evaluate(self, model):
        assert not model.training
        assert torch.is_inference_mode_enabled()
        inputs, targets = self.shards["client"].tensors
        return {"loss": nn.functional.mse_loss(model(inputs), targets).item()}


def spec_with(rule="fedfa-delta", **local):
    local = {"epochs": 1, "batch_size": 8, **local}
    if "steps" in local:
        del local["epochs"]
    return parse({"clients": 4, "rule": {"name": rule}, "local": local})


def run(spec, task=None, client="client", seed=5, should_stop=lambda: False, gpu=PLAIN):
    task = task or Regression(spec)
    module = gpu.prepare(task.model(), CPU)
    base = modules.read(module, modules.template_of(module))
    return base, local_update(
        task,
        module,
        base,
        client=client,
        spec=spec,
        seed=seed,
        device=CPU,
        should_stop=should_stop,
        gpu=gpu,
    )


def test_one_full_batch_of_sgd_is_one_gradient_step():
    # given one step on the whole shard
    spec = spec_with(batch_size=100, optimizer={"name": "sgd", "learning_rate": 0.1})
    task = Regression(spec)
    model = task.model()
    task.loss(model, task.shard("client").tensors).backward()
    gradient = torch.cat([model.weight.grad.reshape(-1), model.bias.grad]).numpy()

    # when a client trains
    _, result = run(spec)

    # then the delta is -learning_rate * gradient
    assert np.allclose(result.update.floats, -0.1 * gradient, atol=1e-6)
    assert (result.num_examples, result.num_steps) == (NUM_EXAMPLES, 1)


def test_fedprox_adds_the_gradient_of_a_squared_penalty_anchored_to_the_jobs_base():
    # given three steps on the whole shard, and autograd on the penalty as the paper writes it
    mu, rate = 0.7, 0.05
    spec = spec_with(
        steps=3, batch_size=100, proximal=mu, optimizer={"name": "sgd", "learning_rate": rate}
    )
    task = Regression(spec)
    model = task.model()
    start = [tensor.detach().clone() for tensor in model.parameters()]
    for _ in range(3):
        loss = task.loss(model, task.shard("client").tensors)
        pairs = zip(model.parameters(), start, strict=True)
        penalty = sum(((tensor - anchor) ** 2).sum() for tensor, anchor in pairs)
        gradients = torch.autograd.grad(loss + mu / 2 * penalty, list(model.parameters()))
        with torch.no_grad():
            for tensor, gradient in zip(model.parameters(), gradients, strict=True):
                tensor -= rate * gradient
    pairs = zip(model.parameters(), start, strict=True)
    expected = torch.cat([(tensor - anchor).reshape(-1) for tensor, anchor in pairs])

    # when
    _, result = run(spec)

    # then the deltas agree, and a longer pull leaves a smaller one
    assert np.allclose(result.update.floats, expected.detach().numpy(), rtol=1e-5, atol=1e-7)
    _, free = run(
        spec.model_copy(update={"local": spec.local.model_copy(update={"proximal": 0.0})})
    )
    assert np.linalg.norm(result.update.floats) < np.linalg.norm(free.update.floats)


def test_fedfa_param_sends_where_fedfa_delta_sends_the_difference():
    base, delta = run(spec_with("fedfa-delta"))
    same_base, param = run(spec_with("fedfa-param"))

    assert np.array_equal(base.floats, same_base.floats)
    assert np.abs(delta.update.floats).max() > 0
    assert np.array_equal(param.update.floats - base.floats, delta.update.floats)


@pytest.mark.parametrize("rule", ["fedfa-delta", "fedfa-param"])
def test_buffers_and_integers_are_sent_as_values(rule):
    spec = spec_with(rule, epochs=2)
    task = Regression(spec, batch_norm=True)
    base, result = run(spec, task)
    module = task.model()
    modules.write(module, base)

    named = {tensor.name: array for tensor, array in result.update.named()}

    assert named["1.num_batches_tracked"] == 2 * 3  # base 0, 21 examples in batches of 8
    assert (named["1.running_var"] > 0).all()


@pytest.mark.parametrize("shard", [TensorDataset, AsItems])
def test_the_same_seed_gives_the_same_bits(shard):
    spec = spec_with(epochs=3, max_examples=17)

    _, first = run(spec, Regression(spec, shard=shard, batch_norm=True))
    torch.rand(3)  # whatever else the process draws
    _, again = run(spec, Regression(spec, shard=shard, batch_norm=True))
    _, other = run(spec, Regression(spec, shard=shard, batch_norm=True), seed=6)

    assert np.array_equal(first.update.floats, again.update.floats)
    assert first.loss == again.loss
    assert not np.array_equal(first.update.floats, other.update.floats)


def test_the_options_of_a_gpu_change_no_bit_where_there_is_none():
    spec = spec_with(epochs=2)

    _, plain = run(spec, Regression(spec, batch_norm=True))
    _, asked = run(
        spec,
        Regression(spec, batch_norm=True),
        gpu=Gpu(bf16=True, channels_last=True, compile=True),
    )

    assert np.array_equal(plain.update.floats, asked.update.floats)
    assert plain.loss == asked.loss


def test_a_used_module_leaves_no_trace_in_the_next_job():
    spec = spec_with(epochs=2, optimizer={"name": "sgd", "momentum": 0.9})
    task = Regression(spec, batch_norm=True)
    module = task.model()
    base = modules.read(module, modules.template_of(module))
    arguments = {"spec": spec, "device": CPU, "should_stop": lambda: False, "client": "client"}

    first = local_update(task, module, base, seed=1, **arguments)
    local_update(task, module, base, seed=2, **arguments)
    again = local_update(task, module, base, seed=1, **arguments)

    assert np.array_equal(first.update.floats, again.update.floats)
    assert np.array_equal(first.update.integers, again.update.integers)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_every_epoch_shows_every_example_once_in_a_new_order():
    spec = spec_with(epochs=2, batch_size=7)
    task = Regression(spec)
    run(spec, task)

    epochs = [torch.cat([inputs for inputs, _ in task.batches[at : at + 3]]) for at in (0, 3)]

    everything = task.shard("client").tensors[0]
    for epoch in epochs:
        assert torch.equal(epoch.sort(0).values, everything.sort(0).values)
    assert not torch.equal(*epochs)


@pytest.mark.parametrize(("steps", "sizes"), [(2, [8, 8]), (5, [8, 8, 5, 8, 8])])
def test_steps_count_batches_across_passes(steps, sizes):
    spec = spec_with(steps=steps)
    task = Regression(spec)

    _, result = run(spec, task)

    assert [len(inputs) for inputs, _ in task.batches] == sizes
    assert result.num_steps == steps


def test_max_examples_uses_one_subset_chosen_by_the_seed():
    spec = spec_with(epochs=3, max_examples=6)
    task = Regression(spec)

    _, result = run(spec, task, seed=1)
    run(spec, task, seed=2)

    subsets = [inputs.sort(0).values for inputs, _ in task.batches]
    assert result.num_examples == 6
    assert torch.equal(subsets[0], subsets[1])
    assert torch.equal(subsets[0], subsets[2])
    assert not torch.equal(subsets[0], subsets[3])


def test_a_lone_last_example_joins_the_batch_before_it():
    # BatchNorm raises on a batch of one, and such a client could never finish a job
    spec = spec_with(batch_size=10)
    task = Regression(spec, batch_norm=True)

    run(spec, task)

    assert [len(inputs) for inputs, _ in task.batches] == [10, 11]


def test_the_loss_is_the_mean_over_the_last_epoch():
    spec = spec_with(epochs=4, batch_size=9)
    task = Regression(spec)
    losses = []
    measure = task.loss
    task.loss = lambda model, batch: losses.append(measure(model, batch)) or losses[-1]

    _, result = run(spec, task)

    last = [loss.item() for loss in losses[-3:]]  # of 9, 9 and 3 examples
    assert len(losses) == 12
    assert result.loss == pytest.approx((9 * last[0] + 9 * last[1] + 3 * last[2]) / 21)


def test_adamw_trains_too():
    spec = spec_with(epochs=200, optimizer={"name": "adamw", "learning_rate": 0.1})

    _, result = run(spec)

    assert result.loss < 0.05


def test_frozen_parameters_do_not_move():
    spec = spec_with(optimizer={"name": "sgd", "learning_rate": 0.1, "weight_decay": 0.1})
    task = Regression(spec, batch_norm=True)
    module = task.model()
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    base = modules.read(module, modules.template_of(module))

    local_update(
        task,
        module,
        base,
        client="client",
        spec=spec,
        seed=0,
        device=CPU,
        should_stop=lambda: False,
    )

    assert torch.equal(module[0].weight, frozen)


def test_training_ends_at_the_first_batch_after_it_is_told_to_stop():
    spec = spec_with(epochs=10)
    task = Regression(spec)

    with pytest.raises(Cancelled):
        run(spec, task, should_stop=lambda: len(task.batches) == 4)

    assert len(task.batches) == 4


def test_a_client_without_examples_is_an_error_that_names_it():
    with pytest.raises(InvalidData, match="empty: its shard has no examples"):
        run(spec_with(), client="empty")


def test_items_are_collated_to_the_same_batch_as_tensors():
    columns = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    indices = torch.tensor([4, 0, 2])

    whole = batch_of(TensorDataset(*columns), indices, CPU)
    items = batch_of(AsItems(*columns), indices, CPU)

    assert len(whole) == len(items) == 2
    assert all(torch.equal(left, right) for left, right in zip(whole, items, strict=True))


def test_evaluation_measures_the_given_model_and_not_the_modules_own():
    spec = spec_with()
    task = Regression(spec)
    module = task.model()
    model = modules.read(module, modules.template_of(module))
    model.floats[:] = [1, 2, 3, 0]  # the truth

    metrics = training.evaluate(task, module, model, CPU)

    assert metrics == {"loss": pytest.approx(0, abs=1e-9)}


def test_an_evaluation_without_a_loss_is_refused():
    spec = spec_with()
    task = Regression(spec)
    task.evaluate = lambda model: {"accuracy": 1.0}
    module = task.model()

    with pytest.raises(InvalidSpec, match="no 'loss'"):
        training.evaluate(task, module, modules.read(module, modules.template_of(module)), CPU)


def test_an_evaluation_that_is_no_dict_is_refused():
    spec = spec_with()
    task = Regression(spec)
    task.evaluate = lambda model: None
    module = task.model()

    with pytest.raises(InvalidSpec, match="gave None; give a dict of numbers"):
        training.evaluate(task, module, modules.read(module, modules.template_of(module)), CPU)
