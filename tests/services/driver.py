"""Plays scheduler and trainers towards a real aggregator, with real files and real messages."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfa import keys, ledger, manifests
from fedfa.broker import Consumer, Publisher
from fedfa.canonical import sha256
from fedfa.federation import State
from fedfa.local.processes import ServerProcess
from fedfa.messages import InitReady, ModelReady, UpdateReady
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.tensor_files import encode
from fedfa.topology import BROADCAST_QUEUE, DEAD_QUEUE, UPDATES
from tests.servers import variables
from tests.unit.builders import (
    ATTEMPT,
    UID,
    birth,
    put_update,
    submitted,
    update_ready,
    vector,
)
from tests.waiting import wait_for


def start_aggregator(
    broker: BrokerSettings, store: StoreSettings, log: Path, name: str = "aggregator"
) -> ServerProcess:
    return ServerProcess(
        name,
        [sys.executable, "-m", "fedfa_aggregator"],
        log=log / f"{name}.log",
        env=os.environ | variables(store, broker),
    )


@dataclass
class Driver:
    """Plays scheduler and trainers towards a real aggregator: writes files, sends messages."""

    store: S3Store
    publisher: Publisher
    broadcast: Consumer
    dead: Consumer
    name: str = "fed"
    heard: list[ModelReady] = field(default_factory=list)

    def begin(self, name: str) -> None:
        """Go on with another federation."""
        self.name = name
        self.heard.clear()

    def submit(self, **fields: Any) -> None:
        submission = submitted(self.name, **fields)
        self.store.create(keys.spec(self.name), submission.model_dump_json(by_alias=True).encode())

    def bear(self, **fields: Any) -> None:
        self.submit(**fields)
        body = encode(vector(0), ledger.birth_metadata(birth()))
        key = keys.model(self.name, 0, sha256(body))
        self.store.put(key, body)
        self.send(
            InitReady(federation=self.name, uid=UID, attempt=ATTEMPT, key=key, digest=sha256(body))
        )
        wait_for(lambda: manifests.newest(self.store, self.name))

    def state(self) -> State:
        newest = manifests.newest(self.store, self.name)
        assert newest is not None
        return newest.manifest.state

    def last_event(self) -> Any:
        newest = manifests.newest(self.store, self.name)
        assert newest is not None
        return newest.manifest.decisions[-1].event

    def send(self, message: Any) -> None:
        self.publisher.publish(message, UPDATES, timeout_seconds=20)

    def finish_job(
        self,
        seed: int,
        *,
        slot: int = 0,
        body_of: Callable[[dict[str, Any]], bytes] | None = None,
        **changes: Any,
    ) -> UpdateReady:
        """Write a job's update file; returns the message that announces it (not sent)."""
        state = self.state()
        where: dict[str, Any] = {
            "federation": self.name,
            "slot": slot,
            "generation": state.slots[slot].generation,
            "client": state.slots[slot].client,
            "base_version": state.version,
        }
        ready = update_ready(**(where | changes))
        metadata = ready.metadata()
        body = body_of(metadata) if body_of else encode(vector(seed, scale=0.1), metadata)
        return put_update(self.store, ready, body)

    def hear(self, predicate: Callable[[ModelReady], bool]) -> ModelReady:
        def listen() -> ModelReady | None:
            for delivery in self.broadcast.ready():
                message = delivery.message()
                delivery.ack()
                if isinstance(message, ModelReady) and message.federation == self.name:
                    self.heard.append(message)
            return next((message for message in self.heard if predicate(message)), None)

        found: ModelReady = wait_for(listen)
        self.heard.clear()
        return found

    def dead_letter(self) -> str:
        """The reason of the next dead letter."""
        delivery = wait_for(self.dead.ready)[0]
        delivery.ack()
        return str(delivery.headers["fedfa-reason"])


@contextmanager
def driving(broker_settings: BrokerSettings, store: S3Store) -> Iterator[Driver]:
    publisher = Publisher(broker_settings, name="driver")
    broadcast = Consumer(broker_settings, [(BROADCAST_QUEUE, 100)], name="driver")
    dead = Consumer(broker_settings, [(DEAD_QUEUE, 10)], name="driver-dead")
    wait_for(lambda: broadcast.is_consuming and dead.is_consuming)
    yield Driver(store, publisher, broadcast, dead)
    for closing in (broadcast, dead, publisher):
        closing.close()
