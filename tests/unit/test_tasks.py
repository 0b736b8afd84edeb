import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import resnet18

from fedfa import modules
from fedfa.errors import InvalidData, InvalidSpec, UnknownTask
from fedfa.local.seaweedfs import SeaweedFS
from fedfa.spec import load as load_spec
from fedfa.spec import parse
from fedfa.store import from_settings
from fedfa.tasks import cifar10, vision
from fedfa.tasks.base import clients_of, load, task_names
from fedfa.tasks.digits import Digits

HERE = __name__


def spec_for(name="digits", clients=20, seed=0, partition=None, **options):
    partition = partition or {"kind": "dirichlet", "alpha": 0.3}
    return parse(
        {
            "task": {"name": name, "options": options},
            "clients": clients,
            "partition": partition,
            "seed": seed,
        }
    )


# -- finding a task ----------------------------------------------------------------------------


class Lacking:
    def __init__(self, spec):
        self.spec = spec

    def model(self):
        return nn.Linear(1, 1)

    def clients(self):
        return {"client": 1}

    def evaluate(self, model):
        return {"loss": 0.0}


class Complete(Lacking):
    def shard(self, client):
        return torch.utils.data.TensorDataset(torch.zeros(1, 1))

    def loss(self, model, batch):
        return model(batch[0]).mean()


def test_an_installed_task_is_found_by_its_name():
    assert {"cifar10", "digits", "sent140", "sst2"} <= set(task_names())
    assert isinstance(load(spec_for("digits"), allowed=[]), Digits)


def test_a_task_that_is_not_installed_is_refused_with_what_there_is():
    with pytest.raises(UnknownTask, match=r"speech is not installed.*cifar10, digits.*install"):
        load(spec_for("speech"), allowed=["*"])


@pytest.mark.parametrize("allowed", [[HERE], ["*"], ["other.*", HERE[:-3] + "*"]])
def test_a_class_of_an_allowed_module_is_a_task(allowed):
    spec = spec_for(f"{HERE}:Complete")

    task = load(spec, allowed)

    assert isinstance(task, Complete)
    assert task.spec is spec


@pytest.mark.parametrize("allowed", [[], ["other.*"], [HERE + ".*"]])
def test_a_module_that_is_not_allowed_is_not_even_imported(allowed):
    with pytest.raises(UnknownTask, match=r"this is not allowed.*digits.*add it to the trainer"):
        load(spec_for("this:Task"), allowed)

    assert "this" not in sys.modules  # importing it prints a poem


@pytest.mark.parametrize("name", ["no_such_module:Task", f"{HERE}:NoSuchClass"])
def test_an_allowed_module_or_class_that_is_missing_is_an_unknown_task(name):
    with pytest.raises(UnknownTask, match=f"{name} does not load"):
        load(spec_for(name), allowed=["*"])


def test_without_their_torchvision_tasks_are_unknown_and_say_what_they_need(tmp_path):
    """torchvision built for another torch raises RuntimeError when it is imported."""
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "torchvision.py").write_text(broken)
    load_all = """
from fedfa.errors import UnknownTask
from fedfa.spec import parse
from fedfa.tasks.base import load
fields = {"clients": 4, "partition": {"kind": "iid"}}
load(parse({"task": {"name": "digits"}, **fields}), [])
for task in {"name": "cifar10"}, {"name": "images", "options": {"data": "mine"}}:
    try:
        load(parse({"task": task, **fields}), [])
    except UnknownTask as error:
        print(error)
"""

    done = subprocess.run(
        [sys.executable, "-c", load_all],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stderr
    for line, task in zip(done.stdout.splitlines(), ("cifar10", "images"), strict=True):
        assert f"{task} is installed but does not load: pictures need the torchvision" in line
        assert f"torch {torch.__version__} (operator torchvision::nms" in line


@pytest.mark.parametrize(
    "clients", [None, ["a"], {0: 5}, {"a": "5"}, {"a": -1}, {"": 1}, {"a": 1.5}]
)
def test_clients_that_are_not_names_and_counts_are_refused(clients):
    task = load(spec_for("digits"), allowed=[])
    task.clients = lambda: clients

    with pytest.raises(InvalidSpec, match=r"clients\(\) "):
        clients_of(task)


def test_clients_are_sorted_by_name():
    task = load(spec_for("digits"), allowed=[])
    task.clients = lambda: {"b": 1, "a": 2}

    assert list(clients_of(task).items()) == [("a", 2), ("b", 1)]


def test_a_class_that_lacks_methods_is_refused_with_their_names():
    with pytest.raises(InvalidSpec, match="Lacking is not a task, it lacks shard, loss"):
        load(spec_for(f"{HERE}:Lacking"), allowed=["*"])


def test_unknown_options_are_refused_with_those_there_are():
    with pytest.raises(InvalidSpec, match=r"options of digits: nrom: no such field.*norm"):
        load(spec_for("digits", nrom="batch"), allowed=[])


# -- digits ------------------------------------------------------------------------------------


def test_digits_deals_all_training_images_and_holds_out_the_rest():
    task = load(spec_for(), allowed=[])
    clients = task.clients()

    images = torch.cat([task.shard(client).tensors[0] for client in clients])

    assert list(clients)[:2] == ["client-0000", "client-0001"]
    assert len(clients) == 20
    assert {client: len(task.shard(client)) for client in clients} == clients
    assert images.shape == (1437, 1, 8, 8)  # 80 % of 1,797
    assert (images.min(), images.max()) == (0, 1)
    assert {image.numpy().tobytes() for image in images}.isdisjoint(
        image.numpy().tobytes() for image in task._test[0]
    )


def test_the_held_out_images_are_the_same_for_every_spec():
    first = load(spec_for(seed=0), allowed=[])
    other = load(spec_for(seed=1, clients=5, partition={"kind": "iid"}), allowed=[])

    assert torch.equal(first._test[0], other._test[0])


def test_initial_weights_depend_on_the_seed_and_on_nothing_else():
    def weights(seed):
        module = load(spec_for(seed=seed), allowed=[]).model()
        return modules.read(module, modules.template_of(module)).floats

    torch.manual_seed(1)
    first, state = weights(0), torch.get_rng_state()
    torch.manual_seed(2)
    assert np.array_equal(weights(0), first)
    assert not np.array_equal(weights(1), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # and the process's generator is left alone


def test_digits_with_batch_norm_exchanges_buffers_and_counters():
    template = modules.template_of(load(spec_for(norm="batch"), allowed=[]).model())

    assert template.num_integers == 2
    assert template.num_floats - template.num_parameters == 2 * (16 + 32)


def test_evaluation_reports_loss_and_accuracy_of_all_held_out_images():
    task = load(spec_for(), allowed=[])
    model = task.model().eval()
    with torch.inference_mode():
        metrics = task.evaluate(model)
        images, labels = task._test
        scores = model(images)

    assert len(labels) == 360
    assert metrics["accuracy"] == int((scores.argmax(1) == labels).sum()) / 360
    assert metrics["loss"] == pytest.approx(nn.functional.cross_entropy(scores, labels).item())


def test_an_unknown_client_is_named():
    with pytest.raises(InvalidData, match="client-9999: no such client, there are 20"):
        load(spec_for(), allowed=[]).shard("client-9999")


# -- cifar10: each form of the data, made here and read back -----------------------------------

RANDOM = np.random.default_rng(0)
IMAGES = {
    part: RANDOM.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for part in ("train", "test")
}
LABELS = {"train": RANDOM.permutation(np.arange(20) % 10), "test": np.arange(20) % 10}


def write_arrays(folder):
    arrays = {f"x_{part}": IMAGES[part] for part in IMAGES}
    np.savez(folder / "cifar.npz", **arrays, **{f"y_{p}": LABELS[p][:, None] for p in LABELS})


def write_binary(folder):
    for name, part, chosen in (
        ("data_batch_1.bin", "train", slice(0, 10)),
        ("data_batch_2.bin", "train", slice(10, 20)),
        ("test_batch.bin", "test", slice(0, 20)),
    ):
        planes = IMAGES[part][chosen].transpose(0, 3, 1, 2).reshape(-1, 3072)
        labels = LABELS[part][chosen, None].astype(np.uint8)
        (folder / name).write_bytes(np.hstack([labels, planes]).tobytes())


def write_class_folders(folder):
    for part in IMAGES:
        for number, (image, label) in enumerate(zip(IMAGES[part], LABELS[part], strict=True)):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number}.png")


def in_any_order(images, labels):
    return sorted(
        (image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)
    )


@pytest.mark.parametrize("write", [write_arrays, write_binary, write_class_folders])
@pytest.mark.parametrize("inside", ["", "some/folder"], ids=["itself", "below"])
def test_cifar10_reads_back_what_was_stored(tmp_path, write, inside):
    folder = tmp_path / inside
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)

    train, test = cifar10.read(str(folder.parent if inside else folder))

    assert in_any_order(*train) == in_any_order(IMAGES["train"], LABELS["train"])
    assert in_any_order(*test) == in_any_order(IMAGES["test"], LABELS["test"])


def test_cifar10_reads_sheets_in_the_order_of_their_labels(tmp_path):
    # given two training sheets of 1,000 images, whose first pixel tells image and sheet
    number = np.arange(2000)
    images = np.zeros((2000, 32, 32, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = number // 1000, number % 250
    labels = (number * 7 % 10).reshape(2, 1000).astype(np.uint8)
    for sheet in range(2):
        tiles = images[sheet * 1000 :][:1000].reshape(40, 25, 32, 32, 3).transpose(0, 2, 1, 3, 4)
        picture = Image.fromarray(tiles.reshape(1280, 800, 3))
        picture.save(tmp_path / f"train_{sheet:02d}.webp", lossless=True)
    picture.save(tmp_path / "test_00.webp", lossless=True)
    np.save(tmp_path / "train_labels.npy", labels)
    np.save(tmp_path / "test_labels.npy", labels[1:])

    train, test = cifar10.read(str(tmp_path), train_examples=1500)

    assert np.array_equal(train[0], images[:1500])
    assert np.array_equal(train[1], labels.reshape(-1)[:1500])
    assert np.array_equal(test[0], images[1000:])


def test_cifar10_reads_jpeg_files_end_to_end(tmp_path):
    arrays = {}
    for part in IMAGES:
        files = []
        for label in LABELS[part]:
            file = io.BytesIO()
            Image.new("RGB", (32, 32), (int(label) * 20, 0, 0)).save(file, "JPEG")
            files.append(file.getvalue())
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{part}_labels"] = LABELS[part].astype(np.uint8)
    np.savez(tmp_path / "cifar.npz", **arrays)

    for limit in (None, 7):
        (images, labels), _ = cifar10.read(str(tmp_path / "cifar.npz"), train_examples=limit)

        assert len(images) == len(labels) == (limit or 20)
        assert np.abs(images[:, 16, 16, 0] - 20.0 * labels).max() < 5


def test_cifar10_caps_show_every_class_of_sorted_folders(tmp_path):
    write_class_folders(tmp_path)

    (images, labels), (_, test_labels) = cifar10.read(str(tmp_path), 12, 5)

    assert (len(images), len(test_labels)) == (12, 5)
    assert len(set(labels)) > 6  # sorted by class, 12 images would show only 6


def test_missing_cifar10_data_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFA_DATA", str(tmp_path))

    with pytest.raises(InvalidData) as raised:
        load(spec_for("cifar10"), allowed=[])

    for part in (str(tmp_path / "cifar10"), "task.options.data", "FEDFA_DATA"):
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cifar.npz", b"not a zip file"),
        ("test_batch.bin", b"too short"),
        ("train/0/1.png", b"not an image"),
    ],
)
def test_unreadable_cifar10_data_names_its_place(tmp_path, file, content):
    write_binary(tmp_path)
    if file.endswith(".png"):
        for other in tmp_path.glob("*.bin"):
            other.unlink()
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(content)

    with pytest.raises(InvalidData, match=f"{tmp_path}: unreadable"):
        cifar10.read(str(tmp_path))


def test_pickled_arrays_are_never_loaded(tmp_path):
    arrays = {f"{name}_{part}": np.array([{}]) for name in "xy" for part in ("train", "test")}
    np.savez(tmp_path / "cifar.npz", **arrays)

    with pytest.raises(InvalidData, match="allow_pickle=False"):
        cifar10.read(str(tmp_path))


def test_images_of_another_size_or_label_are_refused(tmp_path):
    arrays = {f"x_{part}": IMAGES[part] for part in IMAGES}
    np.savez(tmp_path / "cifar.npz", **arrays, y_train=LABELS["train"] + 5, y_test=LABELS["test"])

    with pytest.raises(InvalidData, match="labels from 0 to 9"):
        cifar10.read(str(tmp_path))


def test_cifar10_is_the_papers_resnet18_on_normalised_images(tmp_path):
    write_arrays(tmp_path)
    spec = spec_for(
        "cifar10", clients=4, partition={"kind": "iid"}, data=str(tmp_path), test_examples=8
    )
    task = load(spec, allowed=[])
    model = task.model()
    template = modules.template_of(model)
    batch = task.shard("client-0000")[:4]  # four examples as one batch

    assert template.num_parameters == 11_173_962  # the CIFAR form of ResNet18
    assert task.inputs(batch[0]).shape == (4, 3, 32, 32)
    assert task.inputs(torch.full((1, 32, 32, 3), 128, dtype=torch.uint8)).abs().max() < 0.6
    assert torch.isfinite(task.loss(model, batch))
    with torch.inference_mode():
        assert task.evaluate(model.eval())["loss"] > 0


def test_the_export_of_resnet18_loads_with_torchvision():
    ours = vision.small_resnet18(64, 10)
    theirs = resnet18(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)

    assert theirs.load_state_dict(ours.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("options", "num_parameters"),
    [
        # half the width: a quarter of a 3x3 convolution's weights, half of a norm's
        ({"width": 32}, 2_797_610),
        ({"width": 16}, 701_466),
        # 5x5 convolutions of 3, 32 and 64 channels, 8 x 8 x 64 values into 2,048 units
        ({"model": "cnn"}, 2_432 + 51_264 + 8_390_656 + 20_490),
        ({"model": "cnn", "width": 16}, 1_216 + 12_832 + 2_098_176 + 10_250),
    ],
)
def test_cifar10_has_models_for_a_cpu(tmp_path, options, num_parameters):
    write_arrays(tmp_path)
    task = load(spec_for("cifar10", clients=4, data=str(tmp_path), **options), allowed=[])
    model = task.model()

    assert modules.template_of(model).num_parameters == num_parameters
    assert torch.isfinite(task.loss(model, task.shard("client-0000")[:4]))


def test_a_narrow_resnet_starts_with_the_spread_of_the_wide_one():
    wide, narrow = vision.small_resnet18(64, 10), vision.small_resnet18(16, 10)
    for name, module in wide.named_modules():
        if isinstance(module, nn.Conv2d) and name != "conv1":  # the stem is ours in both
            fan = module.out_channels * module.kernel_size[0] ** 2
            other = narrow.get_submodule(name)
            other_fan = other.out_channels * other.kernel_size[0] ** 2
            spread = module.weight.std().item() * fan**0.5
            assert other.weight.std().item() * other_fan**0.5 == pytest.approx(spread, rel=0.2), (
                name
            )


@pytest.mark.services
def test_cifar10_data_in_a_bucket_is_fetched_once(tmp_path, monkeypatch):
    # given a bucket with the data, and a sibling folder whose name starts alike
    server = SeaweedFS(tmp_path / "server")
    server.start()
    try:
        settings = server.settings()
        for name in ("endpoint", "access_key", "secret_key"):
            value = getattr(settings, name)
            if value is not None:
                text = value if isinstance(value, str) else value.get_secret_value()
                monkeypatch.setenv(f"FEDFA_S3_{name.upper()}", text)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        source = from_settings(settings)
        source.ensure_bucket()
        write_class_folders(tmp_path / "data")
        for file in (tmp_path / "data").rglob("*.png"):
            source.put(f"sets/cifar/{file.relative_to(tmp_path / 'data')}", file.read_bytes())
        source.put("sets/cifar-other/train/0/1.png", b"not an image")

        # when it is read twice
        location = f"s3://{settings.bucket}/sets/cifar/"
        train, _ = cifar10.read(location)
        copies = {
            file: file.stat().st_mtime_ns for file in (tmp_path / "fedfa-data").rglob("*.png")
        }
        cifar10.read(location)

        # then the images are there, and the second time nothing was written
        assert in_any_order(*train) == in_any_order(IMAGES["train"], LABELS["train"])
        assert len(copies) == 40
        assert copies == {file: file.stat().st_mtime_ns for file in copies}
    finally:
        server.stop()


@pytest.mark.parametrize("location", ["s3://bucket", "s3://bucket/", "s3://Not_a_bucket/x"])
def test_a_bucket_location_without_bucket_or_prefix_is_refused(location):
    with pytest.raises(InvalidData, match="expected s3://bucket/prefix"):
        cifar10.read(location)


@pytest.mark.parametrize(
    "example", ["digits", "digits-param", "cifar10", "cifar10-resnet18", "sent140", "sst2"]
)
def test_the_examples_are_valid_specs(example):
    path = Path(__file__).parents[2] / "examples" / f"{example}.yaml"

    assert load_spec(path).task.name in task_names()
