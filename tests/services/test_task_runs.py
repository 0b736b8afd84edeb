"""Each task of the paper through the real services; what is exported is then used without FedFa.

The examples run as they are but for their size, on data and models that are made here.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import nn
from torchvision.models import resnet18
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests import tiny
from tests.services.commands import fedfa

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


def run(
    environment: dict[str, str], data: Path, example: str, *settings: str, pretrained: bool = True
) -> tuple[Path, float]:
    """The run's folder, and the accuracy of its final version as the services measured it."""
    out = data / "out"
    assignments = [part for setting in (*SMALL, *settings) for part in ("--set", setting)]
    done = fedfa(
        environment | {"FEDFA_DATA": str(data), "FEDFA_TRAINER_TORCH_THREADS": "1"},
        *("local", "run", EXAMPLES / example, "--out", out, "--trainers", 1),
        *(["--pretrained"] if pretrained else []),
        *("--verify", *assignments),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replay bit for bit" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert summary["merged"] == NUM_UPDATES
    assert summary["latest"]["version"] == summary["version"] > 0
    return out, summary["latest"]["value"]


def accuracy_of(scores: torch.Tensor, labels: list[int]) -> float:
    return (scores.argmax(1) == torch.tensor(labels)).double().mean().item()


def score(module: Any, tokenizer: Any, texts: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        scores: torch.Tensor = module.eval()(
            **tokenizer(texts, padding=True, return_tensors="pt")
        ).logits
    return scores


@pytest.mark.timeout(240)
def test_sent140_runs_and_its_model_loads_with_from_pretrained(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # given
    tiny.write_bert(tmp_path / "models/bert-tiny-h128-distilled")
    tiny.write_leaf(tmp_path / "rt_critics", users=12, prefix="leaf_top146_")
    # when
    out, accuracy = run(
        environment, tmp_path, "sent140.yaml", "task.options.max_tokens=16", "concurrency=4"
    )
    # then
    module, found = AutoModelForSequenceClassification.from_pretrained(
        out / "pretrained", output_loading_info=True
    )
    assert not any(found.values())
    exported = load_file(out / "model.safetensors")
    assert module.load_state_dict(exported, strict=True)
    held_out = [tiny.sentences(5, 2 * user + 1) for user in range(12)]
    texts = [text for own, _ in held_out for text in own]
    labels = [label for _, own in held_out for label in own]
    tokenizer = AutoTokenizer.from_pretrained(out / "pretrained")
    assert accuracy_of(score(module, tokenizer, texts), labels) == pytest.approx(accuracy)


@pytest.mark.timeout(240)
def test_sst2_runs_and_its_adapter_loads_with_peft(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # given a base without a pooler, as the example's
    base = tiny.write_bert(tmp_path / "models/minilm-l3-h384-fp16", add_pooling_layer=False)
    tiny.write_sst2(tmp_path / "sst2")
    # when
    out, accuracy = run(
        environment, tmp_path, "sst2.yaml", "task.options.max_tokens=16", "clients=6"
    )
    # then
    fresh = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    module = PeftModel.from_pretrained(fresh, out / "pretrained")
    exported = load_file(out / "model.safetensors")
    found = module.load_state_dict(exported, strict=False)
    assert not found.unexpected_keys
    assert not any("lora" in key or "modules_to_save" in key for key in found.missing_keys)
    texts, labels = tiny.sentences(40, 101)
    tokenizer = AutoTokenizer.from_pretrained(out / "pretrained")
    assert accuracy_of(score(module, tokenizer, texts), labels) == pytest.approx(accuracy)


@pytest.mark.timeout(240)
def test_cifar10_runs_and_its_resnet18_loads_with_torchvision(
    environment: dict[str, str], tmp_path: Path
) -> None:
    # given
    tiny.write_cifar10(tmp_path / "cifar10")
    # when
    out, accuracy = run(
        environment,
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
    module.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    images, labels = tiny.cifar10_test()
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    inputs = ((torch.from_numpy(images) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.inference_mode():
        scores = module.eval()(inputs)
    assert accuracy_of(scores, labels.tolist()) == pytest.approx(accuracy)
