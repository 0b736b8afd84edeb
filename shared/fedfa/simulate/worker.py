"""A worker process of the simulator: trains and evaluates as a trainer does, order by order.

One order in, one answer out. Bases come from the folder and updates go into it, as files like a
trainer's. Its answers are a function of the order alone: that is what makes the number of workers
irrelevant.
"""

import math
import os
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from fedfa import keys, ledger, manifests, modules, training
from fedfa.canonical import sha256
from fedfa.errors import InvalidInput
from fedfa.manifests import Birth, ModelRef
from fedfa.messages import UpdateReady
from fedfa.randomness import prf
from fedfa.store import DirectoryStore
from fedfa.tasks import base as tasks
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, Template
from fedfa.tracebacks import explain

GRADIENT_BATCH = 500

Answer = dict[str, Any]


class Worker:
    """One federation's task and module, kept for the next order."""

    def __init__(self, store: DirectoryStore, federation: str, task_allow: Sequence[str]) -> None:
        self._store = store
        self._submission = manifests.submitted(store, federation)
        self._task = tasks.load(self._submission.spec, task_allow)
        self._module = self._task.model()
        self._device = training.best_device()
        self._birth: Birth | None = None
        self._base: tuple[str, FlatModel] | None = None  # the last one read, by digest

    def carry_out(self, order: Answer) -> Answer:
        match order:
            case {"do": "check"}:
                return self._check()
            case {"do": "initialise"}:
                return self._initialise()
            case {"do": "measure"}:
                return self._measure()
            case {"do": "train"}:
                return self._train(order)
            case {"do": "evaluate"}:
                return self._evaluate(ModelRef(**order["model"]), order["with_gradient"])
        raise ValueError(f"unknown order {order}")

    def _check(self) -> Answer:
        """Whether a federation can begin: its task and model were built already."""
        birth, _ = training.first_version(self._submission.spec, self._task, self._module)
        if (reason := ledger.why_unborn(self._submission, birth)) is not None:
            raise InvalidInput(reason)
        return {}

    def _initialise(self) -> Answer:
        """Version 0, as a trainer makes it."""
        module = self._task.model()  # this worker's own may have been trained
        birth, model = training.first_version(self._submission.spec, self._task, module)
        body = encode(model, ledger.birth_metadata(birth))
        key = keys.model(self._submission.federation, 0, sha256(body))
        self._store.put(key, body)
        return {"key": key, "digest": sha256(body)}

    def _measure(self) -> Answer:
        """Seconds of one optimizer step: of the largest shard's training, the second time."""
        clients = tasks.clients_of(self._task)
        client = max(clients, key=lambda name: clients[name])
        model = modules.read(self._module, modules.template_of(self._module))
        for _ in range(2):  # the first one also warms up
            began = time.perf_counter()
            result = self._local_update(model, client, seed=0)
            seconds = time.perf_counter() - began
        return {"step_seconds": seconds / result.num_steps}

    def _train(self, order: Answer) -> Answer:
        spec = self._submission.spec
        fields = order["update"]
        base = self._model(ModelRef(**order["base"]))
        seed = prf(spec.seed, "training", fields["slot"], fields["generation"])
        result = self._local_update(base, fields["client"], seed=seed)
        if not (math.isfinite(result.loss) and result.update.is_finite):
            return {
                "diverged": f"training diverged: loss {result.loss:g} after {result.num_steps} "
                "steps; lower the local learning rate"
            }
        draft = UpdateReady(
            federation=self._submission.federation,
            uid=self._submission.uid,
            key="-",  # named by the file's content, which holds all fields but key and digest
            num_examples=result.num_examples,
            num_steps=result.num_steps,
            loss=result.loss,
            **fields,
        )
        parts = training.update_parts(
            result.update,
            draft.metadata(),
            spec=spec,
            slot=draft.slot,
            generation=draft.generation,
        )
        digest = sha256(*parts)
        key = keys.update(draft.federation, draft.slot, draft.generation, draft.attempt, digest)
        self._store.upload(key, parts, digest=digest)
        return {
            "key": key,
            "digest": digest,
            "num_examples": result.num_examples,
            "num_steps": result.num_steps,
            "loss": result.loss,
        }

    def _evaluate(self, reference: ModelRef, with_gradient: bool) -> Answer:
        model = self._model(reference)
        metrics = training.evaluate(self._task, self._module, model, self._device)
        if with_gradient:
            metrics["squared_gradient_norm"] = self._squared_gradient_norm(model)
        wrong = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if wrong:
            error = f"evaluation of version {reference.version}: not finite: {wrong}"
            return {"result": {"metrics": {}, "error": error}}
        return {"result": {"metrics": metrics}}

    def _squared_gradient_norm(self, model: FlatModel) -> float:
        """||grad f||^2 of f = (1/m) sum_k F_k, F_k the mean loss on client k's whole shard."""
        self._module.to(self._device).eval()
        modules.write(self._module, model)
        self._module.zero_grad()
        clients = tasks.clients_of(self._task)
        for client, num_examples in clients.items():
            shard = self._task.shard(client)
            for indices in torch.split(torch.arange(num_examples), GRADIENT_BATCH):
                batch = training.batch_of(shard, indices, self._device)
                share = len(indices) / (num_examples * len(clients))
                loss = self._task.loss(self._module, batch) * share
                loss.backward()  # type: ignore[no-untyped-call]
        squares = [
            tensor.grad.double().square().sum().item()
            for tensor in self._module.parameters()
            if tensor.grad is not None
        ]
        self._module.zero_grad()
        return math.fsum(squares)

    def _local_update(self, base: FlatModel, client: str, *, seed: int) -> training.LocalResult:
        return training.local_update(
            self._task,
            self._module,
            base,
            client=client,
            spec=self._submission.spec,
            seed=seed,
            device=self._device,
            should_stop=lambda: False,
        )

    def _model(self, reference: ModelRef) -> FlatModel:
        if self._base is None or self._base[0] != reference.digest:
            model = ledger.read_model(self._store, reference, self._template())
            self._base = (reference.digest, model)
        return self._base[1]

    def _template(self) -> Template:
        if self._birth is None:
            birth = manifests.birth_of(self._store, self._submission.federation)
            ours = modules.frozen_digest(self._module)
            if ours != birth.frozen_digest:
                raise InvalidInput(
                    f"frozen weights: they hash to {ours}, and to {birth.frozen_digest} where "
                    "version 0 was made; use the same task code and the same pretrained weights"
                )
            self._birth = birth
        return self._birth.template


def main(
    channel: Connection,
    root: Path,
    federation: str,
    threads: int,
    task_allow: Sequence[str],
    index: int,
) -> None:
    """Carry out what the channel orders. index: among the workers, which share out the GPUs."""
    orders = _orders(channel)
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())
    worker: Worker | None = None
    while True:
        order = orders.get()
        try:
            if worker is None:
                worker = Worker(DirectoryStore(root), federation, task_allow)
            answer = worker.carry_out(order)
        except (Exception, SystemExit) as error:  # the task's code may raise anything
            answer = {"error": f"{_whose(order)}{explain(error)}"}
        channel.send(answer)


def _whose(order: Answer) -> str:
    """What a failed order was about, for people."""
    match order:
        case {"do": "train", "update": update}:
            return f"{update['client']}, job {update['slot']}-{update['generation']}: "
        case {"do": "evaluate", "model": model}:
            return f"evaluation of version {model['version']}: "
    return ""


def _orders(channel: Connection) -> "SimpleQueue[Answer]":
    """What the channel brings. Its end ends this process, whatever it is doing."""
    orders: SimpleQueue[Answer] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                orders.put(channel.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return orders
