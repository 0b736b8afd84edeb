"""`images`, `text` and `tabular`: a newcomer's own data, by YAML alone."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import torchvision
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
)

from fedfa import modules, training
from fedfa.errors import InvalidData, InvalidSpec
from fedfa.history import HistoryReader
from fedfa.spec import parse
from fedfa.store import DirectoryStore
from fedfa.tasks.base import load
from tests import documented, tiny

CPU = torch.device("cpu")
OPTIONS = {
    "images": {"data": "pictures", "image_size": 32},
    "text": {
        "data": "reviews.csv",
        "client": "shop",
        "text": "review",
        "label": "verdict",
        "model": "bert",
        "max_tokens": 16,
    },
    "tabular": {"data": "flowers.csv", "client": "garden", "label": "kind", "hidden": 8},
}
CLIENTS = {
    "images": {f"farm-{at}": 15 for at in range(3)},  # of 18, a fifth of which is held out
    "text": {f"shop-{at}": 16 for at in range(3)},
    "tabular": {f"garden-{at}": 24 for at in range(3)},
}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A FEDFA_DATA folder with data for each task."""
    monkeypatch.setenv("FEDFA_DATA", str(tmp_path))
    tiny.write_pictures(tmp_path / "pictures")
    tiny.write_table(tmp_path / "reviews.csv", tiny.reviews(60, seed=1))
    tiny.write_table(tmp_path / "flowers.csv", tiny.flowers(90, seed=1))
    tiny.write_bert(tmp_path / "bert")
    return tmp_path


def fields_of(name, **options):
    chosen = {key: value for key, value in (OPTIONS[name] | options).items() if value is not None}
    return {
        "task": {"name": name, "options": chosen},
        "partition": {"kind": "natural"},
        "concurrency": 2,
        "rule": {"name": "fedfa-delta", "window": 2},
        "local": {
            "epochs": 4,
            "batch_size": 8,
            "optimizer": {"name": "adamw", "learning_rate": 0.003 if name == "text" else 0.01},
        },
        "evaluation": {"every_versions": 4},
        "stop": {"updates": 12},
    }


def task_of(name, **options):
    return load(parse(fields_of(name, **options)), allowed=[])


def dealt(name, **options):
    fields = fields_of(name, client=None, **options)
    fields |= {"partition": {"kind": "iid"}, "clients": 5}
    return load(parse(fields), allowed=[])


# -- from the spec to a model that its own library loads ---------------------------------------


@pytest.fixture
def simulated(data, fedfa):
    """Gives the folder that `fedfa export --pretrained` wrote, and the last metrics of the run."""

    def run(name, **options):
        (data / "run.yaml").write_text(json.dumps(fields_of(name, **options)))
        command = ["simulate", "run.yaml", "--out", "runs", "--workers", "1"]
        done = subprocess.run(
            [sys.executable, "-m", "fedfa.cli", *command],
            cwd=data,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        runs = data / "runs"
        ended = fedfa("export", "run", "--in", runs, "--pretrained", FEDFA_DATA=str(data))
        assert ended.code == 0, ended.stderr
        history = HistoryReader(DirectoryStore(runs), "run").refresh()
        first, *_, last = history.evaluations
        assert last.version == history.state.final_version
        assert last.metrics["loss"] < first.metrics["loss"]
        return runs / "run/pretrained", last.metrics

    return run


def accuracy_of(scores, labels):
    return (scores.argmax(1) == torch.tensor(labels)).double().mean().item()


@pytest.mark.timeout(300)
def test_pictures_in_folders_are_learnt_and_torchvision_loads_the_model(data, simulated):
    held_out = tiny.write_pictures(data / "test", clients=1, each=4) / "farm-0"
    out, metrics = simulated("images", model="shufflenet_v2_x0_5", test="test/farm-0")

    made = json.loads((out / "config.json").read_text())
    model = torchvision.models.get_model(made["model"], **made["arguments"])
    model.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    transform = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(made["image_size"]),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize(made["mean"], made["std"]),
        ]
    )
    files = sorted(held_out.rglob("*.png"))
    batch = torch.stack([transform(Image.open(file)) for file in files])
    labels = [made["classes"].index(file.parent.name) for file in files]
    with torch.inference_mode():
        scores = model.eval()(batch)
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).item()
    assert accuracy_of(scores, labels) == metrics["accuracy"]
    assert loss == pytest.approx(metrics["loss"], rel=1e-4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lora_rank", [None, 2])
def test_texts_in_a_table_are_learnt_and_transformers_or_peft_loads_the_model(
    data, simulated, lora_rank
):
    rows = tiny.reviews(30, seed=2)
    tiny.write_table(data / "test.jsonl", rows)
    out, metrics = simulated("text", test="test.jsonl", lora_rank=lora_rank)

    if lora_rank is None:
        model = AutoModelForSequenceClassification.from_pretrained(out)
    else:
        base = AutoModelForSequenceClassification.from_pretrained(data / "bert", num_labels=2)
        model = PeftModel.from_pretrained(base, out)
    inputs = AutoTokenizer.from_pretrained(out)(
        [row["review"] for row in rows], padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        scores = model.eval()(**inputs).logits
    if lora_rank is None:
        names = [model.config.id2label[int(at)] for at in scores.argmax(1)]
        right = [name == row["verdict"] for name, row in zip(names, rows, strict=True)]
        assert sum(right) / len(right) == metrics["accuracy"]
    labels = [("negative", "positive").index(row["verdict"]) for row in rows]
    assert accuracy_of(scores, labels) == metrics["accuracy"]


@pytest.mark.timeout(300)
def test_numbers_in_a_table_are_learnt_and_the_model_carries_their_scale(data, simulated):
    rows = tiny.flowers(40, seed=2)
    tiny.write_table(data / "test.parquet", rows)
    out, metrics = simulated("tabular", test="test.parquet")

    assert metrics["accuracy"] > 0.9
    made = json.loads((out / "config.json").read_text())
    assert made == {"features": ["height", "width"], "classes": ["0", "1", "2"]}
    (block,) = (each for each in documented.blocks() if '"0.mean"' in each.body)
    found = {}
    exec(block.body.replace("runs/ID/pretrained", str(out)), found)
    batch = torch.tensor([[row[name] for name in made["features"]] for row in rows])
    scores = found["scores"](batch.float())
    model = task_of("tabular").network()
    model.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    assert torch.equal(scores, model(batch.float()))
    assert accuracy_of(scores, [row["kind"] for row in rows]) == metrics["accuracy"]


# -- whose examples, in which form -------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_each_client_has_its_own_examples_and_a_part_of_them_is_held_out(name):
    task, again = task_of(name), task_of(name)

    assert task.clients() == CLIENTS[name]
    client = next(iter(CLIENTS[name]))
    indices = torch.arange(len(task.shard(client)))
    batch, same = (training.batch_of(one.shard(client), indices, CPU) for one in (task, again))
    assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
    assert len(batch[-1]) == CLIENTS[name][client]
    with pytest.raises(InvalidData, match="nobody: no such client, there are 3"):
        task.shard("nobody")


@pytest.mark.parametrize(
    "suffix", [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet", "/part.csv"]
)
@pytest.mark.parametrize("name", ["text", "tabular"])
def test_one_file_or_folder_for_each_client_is_the_same_data(data, name, suffix):
    rows = tiny.reviews(60, seed=1) if name == "text" else tiny.flowers(90, seed=1)
    owner = OPTIONS[name]["client"]
    for client in CLIENTS[name]:
        own = [
            {key: value for key, value in row.items() if key != owner}
            for row in rows
            if row[owner] == client
        ]
        tiny.write_table(data / "shards" / f"{client}{suffix}", own)

    task, whole = task_of(name, data="shards", client=None), task_of(name)

    assert task.clients() == whole.clients()
    for client in task.clients():
        ours, theirs = (one.shard(client).tensors for one in (task, whole))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_pictures_may_be_named_in_a_table(data):
    files = sorted((data / "pictures").rglob("*.png"))
    rows = [
        {
            "image": str(file.relative_to(data)),
            "label": file.parent.name,
            "farm": file.parent.parent.name,
        }
        for file in files
    ]
    tiny.write_table(data / "index.csv", rows)

    task = task_of("images", data="index.csv", client="farm")

    assert task.clients() == CLIENTS["images"]
    pixels, label = task.shard("farm-1")[14]
    assert label == 2
    assert pixels.shape == (3, 32, 32)
    assert pixels[0].float().mean() > 140


@pytest.mark.parametrize("name", ["text", "tabular"])
def test_a_table_without_clients_is_dealt_out_by_the_spec(name):
    options = {"features": "height,width"} if name == "tabular" else {}
    task = dealt(name, **options)

    assert sum(task.clients().values()) == sum(CLIENTS[name].values())
    assert len(task.clients()) == 5


def test_labels_that_are_numbers_are_in_their_order(data):
    rows = [row | {"kind": [2, 10, 1][row["kind"]]} for row in tiny.flowers(90, seed=1)]
    tiny.write_table(data / "flowers.csv", rows)

    assert task_of("tabular")._classes == ("1", "2", "10")


# -- errors, before anything is trained --------------------------------------------------------


def rewritten(data, name, change):
    """Change every row of the task's table."""
    rows = tiny.reviews(60, seed=1) if name == "text" else tiny.flowers(90, seed=1)
    tiny.write_table(data / OPTIONS[name]["data"], [change(row) for row in rows])


def append(text):
    def change(data):
        with (data / "flowers.csv").open("a") as file:
            file.write(text)

    return change


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        (
            "text",
            {"text": "words"},
            r"reviews\.csv: no column words; there are: shop, review, verdict; task\.options says",
        ),
        ("text", {"client": "who"}, r"reviews\.csv: no column who; there are: shop, review, verd"),
        ("text", {"classes": 3}, r"reviews\.csv: 2 classes, .*classes says 3: negative, positive"),
        ("text", {"data": "none.csv"}, r"no data at .*none\.csv; put it there.*FEDFA_DATA says"),
        ("text", {"data": "none", "client": None}, r"no data at .*none; put a folder or a table"),
        (
            "text",
            {"client": None},
            r"task\.options\.client: one table .*\(there are: shop, review, verdict\)",
        ),
        ("text", {"data": "bert", "client": None}, r"bert/.*: not a client's data.*\.parquet"),
        ("text", {"lora_layers": "query"}, r"lora_layers: only with lora_rank"),
        ("text", {"lora_rank": 1, "lora_layers": "q"}, r"lora_layers: peft cannot adapt .*bert"),
        ("text", {"words": "review"}, r"words: no such field; there are: data, test"),
        ("tabular", {"features": "height,depth"}, r"no column depth; there are: garden, height"),
        ("tabular", {"client": None}, r"one table has all examples"),
        ("tabular", {"test_share": 0.01}, r"no client has enough examples to hold out 0\.01"),
        ("images", {"model": "resnet19"}, r"resnet19 is not in torchvision; there are: alexnet,"),
        (
            "images",
            {"model": "alexnet"},
            r"image_size: alexnet cannot take 32 x 32 pixels: .*take 64",
        ),
        ("images", {"model": "vit_b_16", "image_size": 30}, r"vit_b_16 cannot take 30 .*take 32"),
        ("images", {"model": "mnasnet0_5"}, r"model: torchvision cannot load mnasnet0_5 from"),
        ("images", {"client": "farm"}, r"client: .*pictures has no table"),
        ("images", {"data": "pictures/farm-0"}, r"farm-0/blue: no pictures; there should be a fol"),
        ("images", {"weights": "none.safetensors"}, r"none\.safetensors: cannot be read as task"),
        ("images", {"test": "pictures/farm-0/red"}, r"farm-0/red: no pictures"),
    ],
)
def test_a_wrong_option_is_answered_with_what_there_is(name, options, complaint):
    with pytest.raises((InvalidData, InvalidSpec), match=complaint):
        task_of(name, **options).model()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("garden-0,1.5,,2\n", r"flowers\.csv: row 91: column width is no number: ''"),
        ("garden-0,high,1,2\n", r"row 91: column height is no number: 'high'"),
        ("garden-0,inf,1,2\n", r"row 91: column height is not finite: 'inf'"),
        ("garden-0,1,2,\n", r"row 91: column kind is no name: ''"),
        ("garden-0,1,2\n", r"flowers\.csv: cannot be read: row 91 has 3 values, the header 4"),
        ('garden-0,"1,2\n', r"flowers\.csv: cannot be read: unexpected end of data"),
    ],
)
def test_a_wrong_row_is_named(data, body, complaint):
    append(body)(data)

    with pytest.raises(InvalidData, match=complaint):
        task_of("tabular")


def test_an_empty_client_is_named(data):
    rows = [{key: row[key] for key in ("review", "verdict")} for row in tiny.reviews(20, 1)]
    tiny.write_table(data / "shards/full.csv", rows)
    (data / "shards/idle.csv").write_text("review,verdict\n")

    with pytest.raises(InvalidData, match=r"idle\.csv: client idle has no examples; add some"):
        task_of("text", data="shards", client=None)


def test_a_client_with_two_files_is_named(data):
    rows = [{key: row[key] for key in ("review", "verdict")} for row in tiny.reviews(20, 1)]
    for suffix in (".csv", ".jsonl"):
        tiny.write_table(data / f"shards/twice{suffix}", rows)

    with pytest.raises(InvalidData, match=r"twice\.jsonl: twice\.csv is client twice too"):
        task_of("text", data="shards", client=None)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"review": "fine"', "line 61: Expecting"),
        ("[1]", "line 61 is no object"),
        ('{"shop": "a", "review": 5, "verdict": 1}', "row 61: column review is no text: 5"),
        ('{"shop": "a", "review": "fine"}', "row 61: column verdict is no name: None"),
    ],
)
def test_a_wrong_line_of_json_is_named(data, line, complaint):
    file = tiny.write_table(data / "reviews.jsonl", tiny.reviews(60, seed=1))
    file.write_text(file.read_text() + line)

    with pytest.raises(InvalidData, match=rf"reviews\.jsonl: .*{complaint}"):
        task_of("text", data="reviews.jsonl")


@pytest.mark.parametrize("suffix", ["csv.gz", "jsonl.gz", "parquet"])
def test_a_truncated_table_is_unreadable_data(data, suffix):
    file = tiny.write_table(data / f"cut.{suffix}", tiny.reviews(60, seed=1))
    file.write_bytes(file.read_bytes()[:50])

    with pytest.raises(InvalidData, match=rf"cut\.{suffix}: cannot be read"):
        task_of("text", data=f"cut.{suffix}")


def test_an_option_that_is_missing_is_named(data):
    fields = fields_of("text")
    del fields["task"]["options"]["data"]

    with pytest.raises(InvalidSpec, match=r"task\.options of text: data: is missing"):
        load(parse(fields), allowed=[])


def test_a_label_that_only_the_test_has_is_named(data):
    tiny.write_table(data / "test.csv", [row | {"verdict": "odd"} for row in tiny.reviews(3, 1)])

    with pytest.raises(
        InvalidData, match=r"test\.csv: label odd is not in the training.*neg.*task\.options\.test"
    ):
        task_of("text", test="test.csv")


def test_one_class_is_nothing_to_learn(data):
    rewritten(data, "tabular", lambda row: row | {"kind": "weed"})

    with pytest.raises(InvalidData, match=r"flowers\.csv: one class alone, weed"):
        task_of("tabular")


def test_clients_are_not_counted_in_the_spec_too():
    fields = fields_of("tabular") | {"clients": 3}

    with pytest.raises(InvalidSpec, match="clients: with a natural partition the data says"):
        load(parse(fields), allowed=[])


def test_an_unreadable_picture_is_named_with_its_path(data):
    file = data / "pictures/farm-1/red/3.png"
    whole = file.read_bytes()
    file.write_bytes(b"GIF of a cat")
    with pytest.raises(InvalidData, match=r"farm-1/red/3\.png: no readable picture"):
        task_of("images")

    file.write_bytes(whole[: len(whole) // 2])  # its header is fine
    task = task_of("images", test="pictures/farm-0")
    with pytest.raises(InvalidData, match=r"farm-1/red/3\.png: its picture cannot be read"):
        training.batch_of(task.shard("farm-1"), torch.arange(18), CPU)


def test_a_client_with_one_picture_is_refused_where_the_model_cannot_train_on_it(data):
    for file in sorted((data / "pictures/farm-1").rglob("*.png"))[1:]:
        file.unlink()
    complaint = r"pictures: client farm-1 has one picture .*shufflenet.*needs two.*size 32;"
    with pytest.raises(InvalidSpec, match=complaint):
        task_of("images", model="shufflenet_v2_x0_5").model()
    task_of("images", model="squeezenet1_1").model()  # which has no BatchNorm


def test_a_batch_of_one_picture_is_refused_where_the_model_cannot_train_on_it():
    def batches_of_one(model):
        fields = fields_of("images", model=model)
        fields["local"]["batch_size"] = 1
        return load(parse(fields), allowed=[])

    complaint = r"local: a batch of one .*take 2 or more for batch_size"
    with pytest.raises(InvalidSpec, match=complaint):
        batches_of_one("shufflenet_v2_x0_5").model()
    batches_of_one("squeezenet1_1").model()


def test_a_network_that_torchvision_builds_otherwise_is_loaded_by_its_saved_arguments(tmp_path):
    task = task_of("images", model="googlenet")  # which has two more heads if none says otherwise
    module = task.model()

    task.save(module, tmp_path)

    made = json.loads((tmp_path / "config.json").read_text())
    model = torchvision.models.get_model(made["model"], **made["arguments"])
    model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    picture = torch.rand(2, 3, 32, 32)
    assert torch.equal(model.eval()(picture), module.eval()(picture))


# -- pre-trained weights -----------------------------------------------------------------------


def test_weights_of_another_head_are_taken_but_for_the_head(data):
    trained = torchvision.models.resnet18(num_classes=7)
    save_file(trained.state_dict(), data / "resnet18.safetensors")

    ours = task_of("images", weights="resnet18.safetensors").model()

    assert torch.equal(ours.layer3[0].conv1.weight, trained.layer3[0].conv1.weight)
    assert ours.fc.weight.shape == (3, 512)
    with pytest.raises(InvalidData, match="made for another model than resnet34 at image_size 32"):
        task_of("images", weights="resnet18.safetensors", model="resnet34").model()


@pytest.mark.parametrize(
    ("form", "config"),
    [
        (DistilBertModel, {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2}),
        (GPT2Model, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}),
    ],
)
@pytest.mark.parametrize("lora_rank", [None, 1])
def test_other_architectures_than_bert_learn_too(data, form, config, lora_rank):
    # peft knows the layers of GPT-2 and not those of DistilBERT
    layers = "q_lin, v_lin" if lora_rank and form is DistilBertModel else None
    folder = data / "other"
    torch.manual_seed(3)
    kind = {DistilBertModel: DistilBertConfig, GPT2Model: GPT2Config}[form]
    form(kind(vocab_size=25, bos_token_id=2, eos_token_id=3, **config)).save_pretrained(folder)
    for file in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(data / "bert" / file, folder)
    task = task_of("text", model="other", lora_rank=lora_rank, lora_layers=layers)
    module = task.model()
    base = modules.read(module, modules.template_of(module))

    result = training.local_update(
        task,
        module,
        base,
        client="shop-0",
        spec=task.spec,
        seed=1,
        device=CPU,
        should_stop=lambda: False,
    )

    assert np.isfinite(result.loss)
    assert np.any(result.update.floats)
    assert np.isfinite(task.evaluate(module.eval())["loss"])


def test_a_classifier_of_other_classes_is_refused_with_both_numbers(data):
    model = AutoModelForSequenceClassification.from_pretrained(data / "bert", num_labels=5)
    model.save_pretrained(data / "bert")

    with pytest.raises(
        InvalidData, match=r"is made for 5 classes, and the data has 2: negative, positive"
    ):
        task_of("text").model()
