"""What FedFa asks of a task, on this task: `make test`."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

from fedfa import modules, spec_files, training
from fedfa.tasks import base

HERE = Path(__file__).parent
SPEC = HERE / "my_task.yaml"


class MyTaskTest(unittest.TestCase):
    def setUp(self) -> None:
        self.spec = spec_files.load(SPEC)
        self.task = base.load(self.spec, allowed=["my_task"])
        self.module = self.task.model()
        self.start = modules.read(self.module, modules.template_of(self.module))

    def test_two_trainers_agree(self) -> None:
        other = base.load(self.spec, allowed=["my_task"])
        same = modules.read(other.model(), self.start.template)
        self.assertTrue((same.floats == self.start.floats).all())
        self.assertEqual(base.clients_of(other), base.clients_of(self.task))

    def test_every_client_has_the_examples_that_it_counts(self) -> None:
        for client, number in base.clients_of(self.task).items():
            self.assertEqual(len(self.task.shard(client)), number)

    def test_training_lowers_the_loss(self) -> None:
        client = next(iter(base.clients_of(self.task)))
        cpu = torch.device("cpu")
        before = training.evaluate(self.task, self.module, self.start, cpu)
        training.local_update(
            self.task,
            self.module,
            self.start,
            client=client,
            spec=self.spec,
            seed=1,
            device=cpu,
            should_stop=lambda: False,
        )
        trained = modules.read(self.module, self.start.template)
        after = training.evaluate(self.task, self.module, trained, cpu)
        self.assertLess(after["loss"], before["loss"])

    def test_a_whole_federation_ends_well(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "fedfa.cli", "simulate", str(SPEC), "--out", folder]
            done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("finished", done.stdout)


if __name__ == "__main__":
    unittest.main()
