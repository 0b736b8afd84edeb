"""sent140 and sst2 with a real BERT, small enough to be made here."""

import gzip
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForPreTraining

from fedfa import modules
from fedfa.canonical import sha256
from fedfa.errors import InvalidData, InvalidInput, InvalidSpec
from fedfa.spec import parse
from fedfa.tasks.base import load
from fedfa.tasks.digits import Digits
from fedfa.tasks.saving import save_pretrained
from fedfa.training import evaluate, local_update
from tests import tiny

CPU = torch.device("cpu")
MODEL = "models/bert"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A FEDFA_DATA folder with both data sets and a model."""
    monkeypatch.setenv("FEDFA_DATA", str(tmp_path))
    tiny.write_bert(tmp_path / MODEL)
    tiny.write_leaf(tmp_path / "sent140")
    tiny.write_sst2(tmp_path / "sst2")
    return tmp_path


def spec_for(name, *, seed=0, steps=30, learning_rate=0.01, **options):
    split = {"partition": {"kind": "natural"}, "concurrency": 2}
    if name == "sst2":
        split = {"partition": {"kind": "dirichlet", "alpha": 1.0}, "clients": 4}
    return parse(
        {
            "task": {"name": name, "options": {"model": MODEL, "max_tokens": 16, **options}},
            "local": {
                "steps": steps,
                "batch_size": 8,
                "optimizer": {"name": "adamw", "learning_rate": learning_rate},
            },
            "seed": seed,
            **split,
        }
    )


def task_of(name, **options):
    return load(spec_for(name, **options), allowed=[])


def flat(module):
    return modules.read(module, modules.template_of(module))


def trained(name, **options):
    """A task, and the model after one client's training."""
    spec = spec_for(name, **options)
    task = load(spec, allowed=[])
    module = task.model()
    base = flat(module)
    client = max(task.clients(), key=task.clients().get)
    result = local_update(
        task,
        module,
        base,
        client=client,
        spec=spec,
        seed=3,
        device=CPU,
        should_stop=lambda: False,
    )
    assert np.any(result.update.floats)
    return task, base, flat(module), result


# -- the users of sent140 ----------------------------------------------------------------------


def test_each_user_is_a_client_with_their_own_sentences(data):
    task = task_of("sent140")
    tokens, num_tokens, labels = task.shard("user-2").tensors

    assert task.clients() == {f"user-{user}": 10 * (user + 1) for user in range(6)}
    texts, expected = tiny.sentences(30, 4)
    words = AutoTokenizer.from_pretrained(data / MODEL)
    assert labels.tolist() == expected
    for row, count, text in zip(tokens, num_tokens, texts, strict=True):
        assert words.decode(row[1 : count - 1]) == text
        assert not row[count:].any()


def test_min_samples_counts_held_out_examples_and_leaves_small_users_out_of_both_parts():
    task = task_of("sent140", min_samples=35)

    assert list(task.clients()) == ["user-2", "user-3", "user-4", "user-5"]
    assert len(task._test.labels) == 4 * 5
    with pytest.raises(InvalidData, match=r"6 users, none of whom has.* at least 1000.*lower"):
        task_of("sent140", min_samples=1000)


def test_leafs_own_rows_are_read_from_its_folders(data):
    # given LEAF's layout: a folder for each part, tweets as rows, and a set that is not wanted
    row = ["1467810369", "Mon Apr 06", "NO_QUERY", "somebody", "the film was great", "training"]
    for part in ("train", "test"):
        leaf = {"user_data": {"somebody": {"x": [row, row], "y": [1, 1]}}}
        file = data / "leaf" / "data" / part / f"all_data_niid_0_keep_2_{part}_9.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(leaf))
    tiny.write_leaf(data / "leaf" / "data", prefix="other_")

    task = task_of("sent140", data="leaf", files="all_data_")

    assert task.clients() == {"somebody": 2}
    assert task._test.texts == ["the film was great"] * 2


def test_a_user_in_two_sets_is_refused_with_the_remedy(data):
    tiny.write_leaf(data / "sent140", prefix="again_")

    with pytest.raises(InvalidData, match=r"user user-0 is in another file.*task\.options\.files"):
        task_of("sent140")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"{", "not LEAF's JSON"),
        (b'{"users": []}', "user_data"),
        (b'{"user_data": {"a": {"x": ["text"], "y": [4]}}}', "less than or equal to 1.*4"),
        (b'{"user_data": {"a": {"x": [["1", "date"]], "y": [1]}}}', "valid string"),
        (b'{"user_data": {"a": {"x": ["text"], "y": [1, 0]}}}', "user a: 1 texts, 2 labels"),
    ],
)
def test_damaged_leaf_files_are_named_with_what_is_wrong(data, body, complaint):
    for part in ("train", "test"):
        (data / "sent140" / f"{part}.json.gz").write_bytes(gzip.compress(body))

    with pytest.raises(InvalidData, match=rf"train\.json\.gz: .*{complaint}"):
        task_of("sent140")


def test_truncated_files_are_unreadable_data(data):
    for file in (data / "sent140").iterdir():
        file.write_bytes(file.read_bytes()[:40])

    with pytest.raises(InvalidData, match="cannot be read"):
        task_of("sent140")


@pytest.mark.parametrize("split", [{"partition": {"kind": "iid"}, "clients": 4}, {"clients": 4}])
def test_users_are_not_dealt_out_again(split):
    fields = spec_for("sent140").model_dump() | split

    with pytest.raises(InvalidSpec, match=r"partition\.kind: the users of sent140"):
        load(parse(fields), allowed=[])


# -- sst2 --------------------------------------------------------------------------------------


def test_sst2_deals_all_its_sentences_out(data):
    task = task_of("sst2")
    texts = [text for client in task.clients() for text in task._train[client].texts]

    assert len(task.clients()) == 4
    assert sorted(texts) == sorted(f"{text} " for text in tiny.sentences(120, 100)[0])
    assert len(task._test.labels) == 40


def test_sst2_takes_only_the_first_sentences_if_told_so(data):
    task = task_of("sst2", train_examples=30)
    texts = [text for client in task.clients() for text in task._train[client].texts]

    assert sorted(texts) == sorted(f"{text} " for text in tiny.sentences(120, 100)[0][:30])
    assert len(task._test.labels) == 40


@pytest.mark.parametrize(
    ("body", "line"),
    [("", 1), ("sentence\tlabel\n", 1), ("a\tb\nfine\t1\n", 1), ("sentence\tlabel\nfine 1\n", 2)],
)
def test_a_wrong_line_of_sst2_is_named(data, body, line):
    (data / "sst2" / "train.tsv").write_text(body)

    with pytest.raises(InvalidData, match=rf"train\.tsv: line {line} is not as expected"):
        task_of("sst2")


def test_only_the_adapter_and_the_head_are_exchanged():
    task = task_of("sst2")
    names = [tensor.name for tensor in modules.template_of(task.model()).tensors]

    assert len([name for name in names if ".lora_A." in name]) == 2 * 2  # query, value; 2 layers
    assert len([name for name in names if ".lora_B." in name]) == 2 * 2
    heads = [name for name in names if "lora" not in name]
    assert all(".classifier.modules_to_save." in name for name in heads)
    assert len(heads) == 2
    template = modules.template_of(task.model())
    assert template.num_floats == template.num_parameters == 8 * 16 + 2 * 16 + 2


def test_a_pooler_that_was_never_trained_belongs_to_the_head(data):
    tiny.write_bert(data / "models/headless", add_pooling_layer=False)

    names = [
        tensor.name
        for tensor in modules.template_of(task_of("sst2", model="models/headless").model()).tensors
    ]

    assert any("pooler.dense.modules_to_save" in name for name in names)


# -- the model ---------------------------------------------------------------------------------


def test_all_of_bert_is_trained_and_nothing_else_travels():
    module = task_of("sent140").model()
    template = modules.template_of(module)

    assert template.num_parameters == sum(tensor.numel() for tensor in module.parameters())
    assert template.num_floats == template.num_parameters
    assert template.num_integers == 0
    assert modules.frozen_digest(module) == sha256(b"")


def test_a_checkpoint_of_pre_training_loads_without_its_old_heads(data):
    folder = tiny.write_pretraining_bert(data / "models/pretraining")
    old = BertForPreTraining.from_pretrained(folder).bert.encoder.layer[1].output.dense.weight

    module = task_of("sent140", model="models/pretraining").model()

    assert torch.equal(module.bert.encoder.layer[1].output.dense.weight, old)


def change_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def drop_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.0.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (shutil.rmtree, r"no model at .*models/bert; put config\.json.*task\.options\.model"),
        (lambda folder: (folder / "config.json").write_text("{}"), "does not load|cannot load"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot load it: .*no file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"junk"), "cannot load it"),
        (drop_tensor, r"lacks 1 tensors, first bert\.encoder\.layer\.0\.output\.dense\.weight"),
        (lambda folder: change_config(folder, num_hidden_layers=1), "does not know 16 tensors"),
        (lambda folder: change_config(folder, num_hidden_layers=3), "lacks 16 tensors"),
        (lambda folder: change_config(folder, intermediate_size=8), "reshapes 6 tensors"),
        (lambda folder: (folder / "vocab.txt").unlink(), "tokenizer has 5 tokens and its model 25"),
    ],
)
def test_a_model_that_is_not_exactly_what_it_says_is_refused(data, damage, complaint):
    damage(data / MODEL)

    with pytest.raises(InvalidData, match=complaint):
        task_of("sent140").model()


def test_more_tokens_than_the_model_has_positions_are_refused():
    with pytest.raises(InvalidSpec, match=r"max_tokens: 33; the model reads at most 32"):
        task_of("sent140", max_tokens=33).model()


@pytest.mark.parametrize("name", ["sent140", "sst2"])
def test_missing_data_says_what_where_and_what_to_do(data, name):
    shutil.rmtree(data / name)

    with pytest.raises(InvalidData) as raised:
        task_of(name)

    for part in (str(data / name), "put", "task.options.data", "FEDFA_DATA"):
        assert part in str(raised.value)


OFFLINE = """
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event}: {arguments}")
sys.addaudithook(refuse)
from tests.unit.test_text_tasks import digests
print(digests())
"""


def digests():
    """What two trainers must agree on, for both tasks."""
    found = []
    for name in ("sent140", "sst2"):
        module = task_of(name).model()
        found += [sha256(flat(module).floats.tobytes()), modules.frozen_digest(module)]
    return found


def test_another_process_makes_the_same_model_without_a_network():
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    environment.pop("HF_HUB_OFFLINE", None)

    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(digests())


def test_initial_weights_depend_on_the_seed():
    first, again, other = (flat(task_of("sst2", seed=seed).model()).floats for seed in (0, 0, 1))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


# -- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sent140", "sst2"])
def test_training_learns_and_is_repeated_bit_for_bit(name):
    task, base, model, result = trained(name, steps=150)
    _, _, again, _ = trained(name, steps=150)

    before, after = (evaluate(task, task.model(), one, CPU) for one in (base, model))

    assert np.array_equal(model.floats, again.floats)
    assert np.isfinite(result.loss)
    assert after["accuracy"] > before["accuracy"] + 0.1
    assert after["loss"] < before["loss"]


def test_sentences_become_tokens_once():
    task = task_of("sent140")

    assert task.shard("user-1") is task.shard("user-1")
    with pytest.raises(InvalidData, match="nobody: no such client, there are 6"):
        task.shard("nobody")


def test_padding_and_the_order_of_evaluation_change_no_score():
    task, _, _, _ = trained("sent140")
    module = task.model().eval()
    columns = task.shard("user-5").tensors
    with torch.inference_mode():
        together = task.loss(module, columns)
        alone = [
            task.loss(module, [column[row : row + 1] for column in columns]) for row in range(60)
        ]
        metrics = task.evaluate(module)

    assert together.item() == pytest.approx(torch.stack(alone).mean().item(), rel=1e-5)
    inputs = task._tokenizer(task._test.texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        scores = module(**inputs).logits
    truth = torch.tensor(task._test.labels)
    assert metrics["loss"] == pytest.approx(nn.functional.cross_entropy(scores, truth).item())
    assert metrics["accuracy"] == (scores.argmax(1) == truth).double().mean().item()


# -- saving: the libraries themselves load it, and nothing is missing ----------------------------


def accuracy_of(module, task, tokenizer):
    """By transformers alone."""
    inputs = tokenizer(
        task._test.texts, truncation=True, max_length=16, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        scores = module.eval()(**inputs).logits
    return (scores.argmax(1) == torch.tensor(task._test.labels)).double().mean().item()


def test_a_full_fine_tune_loads_with_from_pretrained(tmp_path):
    task, _, model, _ = trained("sent140")
    out = tmp_path / "out"

    save_pretrained(task.spec, model, sha256(b""), out, allowed=[])

    module, found = AutoModelForSequenceClassification.from_pretrained(
        out, output_loading_info=True
    )
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert np.array_equal(flat(module).floats, model.floats)
    assert module.config.id2label == {0: "negative", 1: "positive"}
    expected = evaluate(task, task.model(), model, CPU)["accuracy"]
    assert accuracy_of(module, task, AutoTokenizer.from_pretrained(out)) == expected


@pytest.mark.parametrize("has_pooler", [True, False])
def test_an_adapter_loads_with_peft_on_its_base(data, has_pooler):
    if not has_pooler:
        tiny.write_bert(data / MODEL, add_pooling_layer=False)
    task, _, model, _ = trained("sst2")
    out = data / "out"

    save_pretrained(task.spec, model, modules.frozen_digest(task.model()), out, allowed=[])

    torch.manual_seed(99)  # whatever the base lacks is drawn anew
    base = AutoModelForSequenceClassification.from_pretrained(data / MODEL, num_labels=2)
    module = PeftModel.from_pretrained(base, out)
    # what is trained lies below the same names
    state = module.state_dict()
    for tensor, array in model.named():
        assert np.array_equal(state[tensor.name].numpy(), array), tensor.name
    assert len(load_file(out / "adapter_model.safetensors")) == len(model.template.tensors)
    expected = evaluate(task, task.model(), model, CPU)["accuracy"]
    assert accuracy_of(module, task, AutoTokenizer.from_pretrained(out)) == expected


def test_an_adapter_is_not_saved_for_another_base(data):
    task, _, model, _ = trained("sst2")
    digest = modules.frozen_digest(task.model())
    weights = load_file(data / MODEL / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 1e-3
    save_file(weights, data / MODEL / "model.safetensors", {"format": "pt"})

    with pytest.raises(InvalidInput, match=r"frozen weights.*use the same pre-trained weights"):
        save_pretrained(task.spec, model, digest, data / "out", allowed=[])


class Forgetful(Digits):
    def save(self, model, folder):
        folder.mkdir()
        tensors = model.state_dict()
        tensors.popitem()
        save_file(tensors, folder / "model.safetensors")


def test_a_task_that_saves_less_than_the_model_is_caught(tmp_path):
    name = f"{__name__}:Forgetful"
    spec = parse({"task": {"name": name}, "clients": 4})
    model = flat(Forgetful(spec).model())

    with pytest.raises(InvalidInput, match="1 of the model's tensors are not in what"):
        save_pretrained(spec, model, sha256(b""), tmp_path / "out", allowed=[__name__])


def test_a_task_without_a_form_of_its_own_says_so(tmp_path):
    spec = parse({"task": {"name": "digits"}, "clients": 4})
    model = flat(Digits(spec).model())

    with pytest.raises(InvalidSpec, match=r"digits has no save\(\).*leave out --pretrained"):
        save_pretrained(spec, model, sha256(b""), tmp_path, allowed=[])
