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
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch

from fedfa import keys, ledger, manifests, modules, training, update_files
from fedfa.canonical import sha256
from fedfa.errors import InvalidInput
from fedfa.events import Update
from fedfa.log import Birth, ModelRef
from fedfa.messages import UpdateReady
from fedfa.randomness import prf
from fedfa.simulate.orders import (
    Check,
    Evaluate,
    Evaluated,
    Failed,
    Initialise,
    Measure,
    NotFinite,
    Train,
    Trained,
)
from fedfa.store import DirectoryStore
from fedfa.tasks import base as tasks
from fedfa.tensor_files import encode
from fedfa.tensors import FlatModel, Template
from fedfa.tracebacks import explain

GRADIENT_BATCH = 500

AnyOrder = Check | Initialise | Measure | Train | Evaluate


class Worker:
    """One federation's task and module, kept for the next order."""

    def __init__(self, store: DirectoryStore, federation: str, task_allow: Sequence[str]) -> None:
        self._store = store
        self._submission = manifests.read_submission(store, federation)
        self._task = tasks.load(self._submission.spec, task_allow)
        self._module = self._task.model()
        self._device = training.best_device()
        self._birth: Birth | None = None
        self._base: tuple[str, FlatModel] | None = None  # the last one read, by digest

    def carry_out(self, order: AnyOrder) -> object:
        """Its answer, as the order says."""
        match order:
            case Check():
                self._check()
                return None
            case Initialise():
                return self._initialise()
            case Measure():
                return self._measure()
            case Train():
                return self._train(order)
            case Evaluate():
                return self._evaluate(order)

    def _check(self) -> None:
        """A task and a model were built already."""
        birth, _ = training.first_version(self._submission.spec, self._task, self._module)
        if (reason := ledger.why_unborn(self._submission, birth)) is not None:
            raise InvalidInput(reason)

    def _initialise(self) -> ModelRef:
        """Version 0, as a trainer makes it."""
        module = self._task.model()  # this worker's own may have been trained
        birth, model = training.first_version(self._submission.spec, self._task, module)
        body = encode(model, ledger.birth_metadata(birth))
        digest = sha256(body)
        key = keys.model(self._submission.federation, 0, digest)
        self._store.put(key, body)
        return ModelRef(0, key, digest)

    def _measure(self) -> float:
        """Seconds of one optimizer step: of the largest shard's training, the second time."""
        clients = tasks.clients_of(self._task)
        client = max(clients, key=lambda name: clients[name])
        model = modules.read(self._module, modules.template_of(self._module))
        for _ in range(2):  # the first one also warms up
            began = time.perf_counter()
            result = self._local_update(model, client, seed=0)
            seconds = time.perf_counter() - began
        return seconds / result.num_steps

    def _train(self, order: Train) -> Trained:
        spec, wanted = self._submission.spec, order.update
        seed = prf(spec.seed, "training", wanted.job.slot, wanted.job.generation)
        result = self._local_update(self._model(order.base), wanted.client, seed=seed)
        if (reason := result.divergence) is not None:
            return NotFinite(reason)
        draft = UpdateReady(
            federation=self._submission.federation,
            uid=self._submission.uid,
            slot=wanted.job.slot,
            generation=wanted.job.generation,
            attempt=wanted.attempt,
            key=update_files.UNNAMED,
            client=wanted.client,
            base_version=wanted.base_version,
            num_examples=result.num_examples,
            num_steps=result.num_steps,
            loss=result.loss,
            trainer=wanted.trainer,
            started_at=wanted.started_at,
            train_seconds=wanted.train_seconds,
            delay_seconds=wanted.delay_seconds,
        )
        ready, parts, digest = update_files.finished(draft, result.update, spec)
        self._store.upload(ready.key, parts, digest=digest)
        return replace(
            wanted,
            key=ready.key,
            digest=digest,
            num_examples=result.num_examples,
            num_steps=result.num_steps,
            loss=result.loss,
        )

    def _evaluate(self, order: Evaluate) -> Evaluated:
        model = self._model(order.model)
        metrics = training.evaluate(self._task, self._module, model, self._device)
        if order.with_gradient:
            metrics["squared_gradient_norm"] = self._squared_gradient_norm(model)
        reason = training.why_not_finite(order.model.version, metrics)
        return metrics if reason is None else NotFinite(reason)

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
            modules.require_frozen(self._module, birth.frozen_digest)
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
            answer = Failed(f"{_whose(order)}{explain(error)}")
        channel.send(answer)


def _whose(order: AnyOrder) -> str:
    """What a failed order was about, for people."""
    match order:
        case Train(update=Update(job=job, client=client)):
            return f"{client}, job {job.slot}-{job.generation}: "
        case Evaluate(model=model):
            return f"evaluation of version {model.version}: "
    return ""


def _orders(channel: Connection) -> "SimpleQueue[AnyOrder]":
    """What the channel brings. Its end ends this process, whatever it is doing."""
    orders: SimpleQueue[AnyOrder] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                orders.put(channel.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return orders
