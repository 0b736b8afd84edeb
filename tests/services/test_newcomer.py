"""What a newcomer does first: own data by YAML, a notebook, a task that fails, on real services."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nbformat
import pytest
import torch
import torchvision
from nbclient import NotebookClient
from safetensors.torch import load_file

from fedfa.local.stack import LocalStack
from fedfa.s3 import S3Store
from fedfa.settings import StoreSettings
from tests import tiny
from tests.services.commands import fedfa

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(300)
def test_pictures_in_a_bucket_are_trained_on_and_torchvision_loads_the_model(
    environment: dict[str, str], store: S3Store, store_settings: StoreSettings, tmp_path: Path
) -> None:
    # given a prefix with a client's pictures below each of its folders
    pictures = tiny.write_pictures(tmp_path / "pictures", each=4)
    for file in pictures.rglob("*.png"):
        store.put(f"shards/{file.relative_to(pictures).as_posix()}", file.read_bytes())
    spec = tmp_path / "farms.yaml"
    options = {
        "data": f"s3://{store_settings.bucket}/shards",
        "model": "shufflenet_v2_x0_5",
        "image_size": 32,
        "classes": 3,
        "test_share": 0.25,
    }
    fields = {
        "task": {"name": "images", "options": options},
        "partition": {"kind": "natural"},
        "concurrency": 2,
        "rule": {"name": "fedfa-delta", "window": 2},
        "local": {"steps": 3, "optimizer": {"name": "adamw", "learning_rate": 0.001}},
        "evaluation": {"every_versions": 2},
        "stop": {"updates": 6},
    }
    spec.write_text(json.dumps(fields))
    # when
    done = fedfa(
        environment | {"TMPDIR": str(tmp_path), "FEDFA_TRAINER_TORCH_THREADS": "1"},
        *("local", "run", spec, "--out", tmp_path / "out", "--trainers", 1, "--pretrained"),
    )
    # then
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "out/pretrained/config.json").read_text())
    assert made["classes"] == ["blue", "green", "red"]
    model = torchvision.models.get_model(made["model"], **made["arguments"])
    model.load_state_dict(load_file(tmp_path / "out/pretrained/model.safetensors"), strict=True)
    assert model.eval()(torch.zeros(1, 3, 32, 32)).isfinite().all()


@pytest.fixture
def stack(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalStack]:
    """Three services on this module's broker and bucket, which this process's environment names."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with LocalStack(tmp_path / "stack", trainers=1, task_allow="tests.services.tasks") as stack:
        yield stack


@pytest.mark.timeout(300)
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    stack: LocalStack, tmp_path: Path
) -> None:
    # when
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    notebook = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    # then
    shown = json.dumps(notebook)
    assert "finished merged 40 updates" in shown
    assert "stopped" in shown
    assert "image/png" in shown
    assert list(tmp_path.glob("runs/*/model.safetensors"))


@pytest.mark.timeout(300)
def test_an_error_in_a_task_is_shown_by_status_and_dashboard_with_its_lines_the_client_and_the_job(
    stack: LocalStack, tmp_path: Path
) -> None:
    # given a task whose loss raises
    spec = tmp_path / "hopeless.yaml"
    fields = {
        "task": {"name": "tests.services.tasks:Hopeless"},
        "clients": 4,
        "concurrency": 1,
        "limits": {"max_attempts": 1, "max_consecutive_rejections": 2},
    }
    spec.write_text(json.dumps(fields))
    assert fedfa({}, "submit", spec, "--id", "hopeless").returncode == 0
    assert fedfa({}, "watch", "hopeless").returncode == 1
    # when
    told, shown = fedfa({}, "status", "hopeless", "--json"), fedfa({}, "status", "hopeless")
    # then
    summary = json.loads(told.stdout)
    assert summary["status"] == "failed"
    assert summary["refused"].startswith("client-000")
    assert summary["refused"].endswith(", job 0-2")
    where = f"{summary['refused']}: failed once, at last: ValueError: the labels are upside down"
    assert where in shown.stdout
    assert shown.stdout.count("ValueError: the labels are upside down") == 1
    assert "tests/services/tasks.py" in shown.stdout
    assert 'raise ValueError("the labels are upside down")' in shown.stdout
    assert os.path.join("fedfa", "training.py") not in shown.stdout
    # and the page draws it from the same log
    port, view = stack.http_ports["scheduler"], dict[str, Any]()
    while view.get("coverage") != 1.0:  # it is read bit by bit
        with urlopen(f"http://127.0.0.1:{port}/api/federations/hopeless", timeout=20) as answer:
            view = json.load(answer)
    given_up = next(row for row in view["notable"] if row["outcome"] == "abandoned")
    job = f"job {given_up['slot']}-{given_up['generation']}"
    assert f"{given_up['client']}, {job}" == summary["refused"]
    assert 'raise ValueError("the labels are upside down")' in given_up["reason"]
