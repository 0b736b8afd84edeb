"""Each task of the paper through the real services; what is exported is then used without FedFa.

The examples run as they are but for their size, on data and models that are made here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from torchvision.models import resnet18
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import fedfa
from fedfa.local.stack import LocalStack
from fedfa.replay import verify
from fedfa.s3 import S3Store
from tests import tiny
from tests.services.commands import fedfa as command

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("stack")]

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_UPDATES = 6
SMALL = (
    f"stop.updates={NUM_UPDATES}",
    "evaluation.every_versions=2",
    "local.epochs=null",
    "local.steps=6",
    "local.batch_size=8",
    "local.optimizer.learning_rate=0.01",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def stack(
    servers: None, store: S3Store, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Three services, whose tasks find their data in a folder that each test adds to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDFA_DATA", str(data))
        patch.setenv("FEDFA_TRAINER_TORCH_THREADS", "1")
        with LocalStack(tmp_path_factory.mktemp("stack"), trainers=1):
            yield


def run(store: S3Store, out: Path, example: str, *settings: str, pretrained: bool = True) -> float:
    """Export what became of an example; returns its accuracy as the services measured it."""
    assignments = [part for setting in (*SMALL, *settings) for part in ("--set", setting)]
    submitted = command({}, "submit", EXAMPLES / example, *assignments)
    assert submitted.returncode == 0, submitted.stderr
    federation = fedfa.Federation(submitted.stdout.strip())
    summary = federation.result(timeout_seconds=200)
    assert summary.merged == NUM_UPDATES
    assert summary.latest is not None
    assert summary.latest.version == summary.version > 0
    *_, last = verify(store, federation.id)
    assert last.manifest.state.version == summary.version
    folder = out / "pretrained" if pretrained else None
    federation.export(out / "model.safetensors", pretrained=folder)
    return summary.latest.value


def accuracy_of(scores: torch.Tensor, labels: list[int]) -> float:
    return (scores.argmax(1) == torch.tensor(labels)).double().mean().item()


def score(module: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        scores: torch.Tensor = module.eval()(
            **tokenizer(texts, padding=True, return_tensors="pt")
        ).logits
    return scores


def test_sent140_runs_and_its_model_loads_with_from_pretrained(
    store: S3Store, data: Path, tmp_path: Path
) -> None:
    # given
    tiny.write_bert(data / "models/bert-tiny-h128-distilled")
    tiny.write_leaf(data / "rt_critics", users=12, prefix="leaf_top146_")
    # when
    accuracy = run(store, tmp_path, "sent140.yaml", "task.options.max_tokens=16", "concurrency=4")
    # then
    module, found = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "pretrained", output_loading_info=True
    )
    assert not any(found.values())
    exported = load_file(tmp_path / "model.safetensors")
    assert module.load_state_dict(exported, strict=True)
    held_out = [tiny.sentences(5, 2 * user + 1) for user in range(12)]
    texts = [text for own, _ in held_out for text in own]
    labels = [label for _, own in held_out for label in own]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pretrained")
    assert accuracy_of(score(module, tokenizer, texts), labels) == pytest.approx(accuracy)


def test_sst2_runs_and_its_adapter_loads_with_peft(
    store: S3Store, data: Path, tmp_path: Path
) -> None:
    # given a base without a pooler, as the example's
    base = tiny.write_bert(data / "models/minilm-l3-h384-fp16", add_pooling_layer=False)
    tiny.write_sst2(data / "sst2")
    # when
    accuracy = run(store, tmp_path, "sst2.yaml", "task.options.max_tokens=16", "clients=6")
    # then
    fresh = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    module = PeftModel.from_pretrained(fresh, tmp_path / "pretrained")
    exported = load_file(tmp_path / "model.safetensors")
    found = module.load_state_dict(exported, strict=False)
    assert not found.unexpected_keys
    assert not any("lora" in key or "modules_to_save" in key for key in found.missing_keys)
    texts, labels = tiny.sentences(40, 101)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pretrained")
    assert accuracy_of(score(module, tokenizer, texts), labels) == pytest.approx(accuracy)


def test_cifar10_runs_and_its_resnet18_loads_with_torchvision(
    store: S3Store, data: Path, tmp_path: Path
) -> None:
    # given
    tiny.write_cifar10(data / "cifar10")
    # when
    accuracy = run(
        store,
        tmp_path,
        "cifar10.yaml",
        "task.options.model=resnet18",
        "task.options.width=null",
        "local.steps=2",
        "clients=6",
        pretrained=False,
    )
    # then
    module = resnet18(num_classes=10)
    module.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    module.maxpool = nn.Identity()
    module.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    images, labels = tiny.cifar10_test()
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    inputs = ((torch.from_numpy(images) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        scores = module.eval()(inputs)
    assert accuracy_of(scores, labels.tolist()) == pytest.approx(accuracy)
