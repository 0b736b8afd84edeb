"""How long a job takes on the virtual clock. PURE."""

from fedfa.federation import Client
from fedfa.sections import LocalTraining
from fedfa.spec import FederationSpec


def train_seconds(spec: FederationSpec, client: Client, *, step_seconds: float) -> float:
    """What the training itself takes: every step the same, whoever computes it."""
    return num_steps(spec.local, client.num_examples) * step_seconds


def num_steps(local: LocalTraining, num_examples: int) -> int:
    """The optimizer steps of one job, as `fedfa.training` will take them."""
    if local.steps is not None:
        return local.steps
    assert local.epochs is not None
    used = min(num_examples, local.max_examples or num_examples)
    full, rest = divmod(used, local.batch_size)
    if rest == 1 and full > 0:
        rest = 0  # a single example joins the batch before
    return local.epochs * (full + (rest > 0))
