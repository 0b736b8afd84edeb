"""What a client does with a job (the paper's Algorithm 2), and how a version is evaluated.

The same base, shard, spec and seed give the same update, bit for bit, on the same machine.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from fedfa import modules
from fedfa.errors import Cancelled, InvalidData, InvalidSpec
from fedfa.federation import Client
from fedfa.gpu import PLAIN, Gpu, resident
from fedfa.log import Birth
from fedfa.merge import rule_of
from fedfa.pools import assign
from fedfa.sections import AdamW, LocalTraining, OptimizerChoice
from fedfa.spec import FederationSpec
from fedfa.tasks.base import Batch, Shard, Task, clients_of
from fedfa.tensors import FlatModel


@dataclass(frozen=True, slots=True)
class LocalResult:
    """A finished job: what travels, and the numbers that go with it.

    num_examples counts distinct examples used; loss is the mean over the last pass.
    """

    update: FlatModel
    num_examples: int
    num_steps: int
    loss: float

    @property
    def divergence(self) -> str | None:
        """Why it is no update, or None: its numbers are not all finite."""
        if math.isfinite(self.loss) and self.update.is_finite:
            return None
        return (
            f"training diverged: loss {self.loss:g} after {self.num_steps} steps; lower the local "
            "learning rate"
        )


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def first_version(spec: FederationSpec, task: Task, module: nn.Module) -> tuple[Birth, FlatModel]:
    """What version 0 fixes, and its weights: those of a module that nobody trained.

    Raises InvalidSpec where the task's clients are malformed, or do not fit the spec's pools.
    """
    template = modules.template_of(module)
    sizes = clients_of(task)
    pools = assign(spec.pools, sizes)
    clients = tuple(Client(name, sizes[name], pools[name]) for name in sizes)
    birth = Birth(clients, template, modules.frozen_digest(module))
    return birth, modules.read(module, template)


def local_update(
    task: Task,
    module: nn.Module,
    base: FlatModel,
    *,
    client: str,
    spec: FederationSpec,
    seed: int,
    device: torch.device,
    should_stop: Callable[[], bool],
    gpu: Gpu = PLAIN,
) -> LocalResult:
    """Train `module` from `base` on one client's shard.

    The module is overwritten. Under a rule of deltas the update's parameters are w_end -
    w_base, else w_end; buffers and integers are always values. Raises Cancelled as soon as
    should_stop() says so, which is asked before each batch.
    """
    shard = resident(task.shard(client), device)
    torch.manual_seed(seed)  # dropout and whatever else the task draws
    generator = torch.Generator().manual_seed(seed)
    examples = _chosen(shard, client, spec.local, generator)
    module.to(device).train()
    modules.write(module, base)
    # Scoped, so that nothing else in the process changes: the fastest kernels differ run by run.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        passes = _passes(examples, spec.local, generator)
        num_steps, loss = _train(task, module, shard, passes, spec.local, device, gpu, should_stop)
    end = modules.read(module, base.template)
    if rule_of(spec).sends == "deltas":
        num_parameters = base.template.num_parameters
        end.floats[:num_parameters] -= base.floats[:num_parameters]
    return LocalResult(end, len(examples), num_steps, loss)


def evaluate(
    task: Task, module: nn.Module, model: FlatModel, device: torch.device
) -> dict[str, float]:
    """The task's metrics of this model; the module is overwritten."""
    module.to(device).eval()
    modules.write(module, model)
    with torch.inference_mode():
        measured: object = task.evaluate(module)
    if not isinstance(measured, Mapping):
        raise InvalidSpec(
            f"task: evaluate() of {type(task).__name__} gave {measured!r:.100}; "
            "give a dict of numbers, 'loss' among them"
        )
    metrics = {str(name): float(value) for name, value in measured.items()}
    if "loss" not in metrics:
        raise InvalidSpec(f"task: evaluate() of {type(task).__name__} gave no 'loss'")
    return metrics


def why_not_finite(version: int, metrics: Mapping[str, float]) -> str | None:
    """Why these metrics of a version cannot be kept, or None."""
    wrong = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    return f"evaluation of version {version}: not finite: {wrong}" if wrong else None


def batch_of(shard: Shard, indices: torch.Tensor, device: torch.device, gpu: Gpu = PLAIN) -> Batch:
    """These examples as one batch of tensors; in-memory tensors are indexed all at once."""
    if isinstance(shard, TensorDataset):
        columns = [column[indices] for column in shard.tensors]
    else:
        columns = default_collate([shard[index] for index in indices.tolist()])
    return tuple(gpu.move(column, device) for column in columns)


def _train(
    task: Task,
    module: nn.Module,
    shard: Shard,
    passes: Iterator[list[torch.Tensor]],
    local: LocalTraining,
    device: torch.device,
    gpu: Gpu,
    should_stop: Callable[[], bool],
) -> tuple[int, float]:
    """Run the optimizer over the passes; returns steps taken and the last pass's mean loss.

    With FedProx's mu each batch's loss has the penalty mu/2 * ||w - w_base||^2, which is not in
    the loss returned. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
    arXiv:1812.06127, equation 2, with the job's own base for the server's model.
    """
    trained = [tensor for tensor in module.parameters() if tensor.requires_grad]
    optimizer = _optimizer(trained, local.optimizer)
    mu = local.proximal
    base = [tensor.detach().clone() for tensor in trained] if mu else []
    num_steps = 0
    for batches in passes:
        total = torch.zeros((), device=device)  # summed there: no wait for the GPU at each step
        for indices in batches:
            if should_stop():
                raise Cancelled("training: the job is closed or has a newer attempt")
            optimizer.zero_grad()
            with gpu.autocast(device):
                loss = task.loss(module, batch_of(shard, indices, device, gpu))
            loss.backward()  # type: ignore[no-untyped-call]
            if mu:
                _pull(trained, base, mu)
            optimizer.step()
            total += loss.detach() * len(indices)
            num_steps += 1
    optimizer.zero_grad()  # gradients would outlive the job and double its memory
    return num_steps, total.item() / sum(len(indices) for indices in batches)


def _chosen(
    shard: Shard, client: str, local: LocalTraining, generator: torch.Generator
) -> torch.Tensor:
    """The examples that this job uses: all, or max_examples of them chosen by the seed."""
    num_examples = len(shard)
    if num_examples == 0:
        raise InvalidData(f"{client}: its shard has no examples; leave it out of clients()")
    if local.max_examples is None or num_examples <= local.max_examples:
        return torch.arange(num_examples)
    return torch.randperm(num_examples, generator=generator)[: local.max_examples]


def _passes(
    examples: torch.Tensor, local: LocalTraining, generator: torch.Generator
) -> Iterator[list[torch.Tensor]]:
    """Shuffled passes over the examples, as batches; with `steps` the last pass may be cut."""
    left = local.steps
    for epoch in itertools.count():
        if epoch == local.epochs or left == 0:
            return
        order = torch.randperm(len(examples), generator=generator)
        batches = list(torch.split(examples[order], local.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # BatchNorm cannot train on a single example: it joins the batch before
            batches[-2:] = [torch.cat(batches[-2:])]
        if left is not None:
            batches = batches[:left]
            left -= len(batches)
        yield batches


@torch.no_grad()
def _pull(trained: list[nn.Parameter], base: list[torch.Tensor], mu: float) -> None:
    """Add the proximal penalty's gradient, mu * (w - w_base)."""
    for tensor, start in zip(trained, base, strict=True):
        if tensor.grad is not None:  # a tensor that the loss does not reach has not moved
            tensor.grad.add_(tensor - start, alpha=mu)


def _optimizer(trained: list[nn.Parameter], choice: OptimizerChoice) -> torch.optim.Optimizer:
    if isinstance(choice, AdamW):
        return torch.optim.AdamW(
            trained,
            lr=choice.learning_rate,
            weight_decay=choice.weight_decay,
            fused=True,  # one pass over memory: the others' steps are slower than small BERTs
        )
    return torch.optim.SGD(
        trained,
        lr=choice.learning_rate,
        momentum=choice.momentum,
        weight_decay=choice.weight_decay,
    )
