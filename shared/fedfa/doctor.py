"""What `fedfa doctor` looks at: broker, bucket, clock, proxy, tasks. Each finding is one line.

Everything is tried for real, on queues and objects that are deleted again.
"""

import importlib.util
import ipaddress
import re
import secrets
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Literal
from urllib.parse import urlsplit

from fedfa import broker, conformance, topology
from fedfa.broker import trial
from fedfa.errors import FedfaError, InvalidInput
from fedfa.s3 import S3Store
from fedfa.settings import BrokerSettings, StoreSettings
from fedfa.topology import Queue

CONNECT_SECONDS = 5.0
CLOCK_SECONDS = 5.0  # a store's times are whole seconds, and a request takes a moment
TIMEOUT_NOTE = "no delivery is held for longer than 5 minutes, its default of 30 is fine"

# Not needed: without it, what cannot be consumed is tried for ever.
POLICY_NAME = "fedfa"
POLICY_PATTERN = r"^fedfa\.(updates$|jobs\.)"
POLICY = (
    '{"delivery-limit": 1000, "dead-letter-exchange": "fedfa.dead", "dead-letter-routing-key": "", '
    '"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}'
)


@dataclass(frozen=True, slots=True)
class Finding:
    """bad: FedFa does not work like this. warn: it does, with the drawback that text tells."""

    what: str
    status: Literal["ok", "warn", "bad"]
    text: str


def examine(
    broker_settings: BrokerSettings, store_settings: StoreSettings, pools: Sequence[str]
) -> Iterator[Finding]:
    yield from examine_broker(broker_settings, pools)
    yield from examine_bucket(store_settings)
    yield proxy(store_settings.endpoint)
    yield tasks()


def examine_broker(settings: BrokerSettings, pools: Sequence[str]) -> Iterator[Finding]:
    impatient = min(settings.blocked_timeout_seconds, CONNECT_SECONDS)
    settings = settings.model_copy(update={"blocked_timeout_seconds": impatient})
    try:
        version = broker.check(settings, CONNECT_SECONDS)
    except FedfaError as error:
        yield Finding("broker", "bad", str(error))
        return
    yield Finding("broker", "ok", f"RabbitMQ {version} answers; {TIMEOUT_NOTE}")
    yield judge_version(version)
    try:
        num_deliveries = trial.use(settings)
    except FedfaError as error:
        needed = r"needed are configure, write and read on fedfa\..* and amq\.gen-.*"
        yield Finding("broker permissions", "bad", f"{error}; {needed}")
        return
    yield Finding("broker permissions", "ok", "declare, publish, consume and delete")
    yield _delivery_limit(num_deliveries)
    jobs = [topology.jobs_queue(pool) for pool in pools]
    for queue in (topology.UPDATES_QUEUE, topology.EVENTS_QUEUE, topology.DEAD_QUEUE, *jobs):
        yield _queue(settings, queue)


def judge_version(version: str) -> Finding:
    what = "broker version"
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        return Finding(what, "warn", f"cannot read {version!r}; 3.10 to 4.2 are supported")
    number = tuple(int(part or 0) for part in found.groups())
    if number < (3, 10):
        return Finding(what, "bad", f"{version} is too old: upgrade to 3.10 or newer, best to 4.2")
    if (4, 3) <= number < (4, 3, 6):
        reason = "can stop delivering to a single active consumer for ever"
        return Finding(what, "bad", f"{version} {reason}: use 4.2, or 4.3.6 or newer")
    if number >= (4, 3):
        return Finding(what, "warn", f"{version} is newer than what was tested, 3.10 to 4.2")
    return Finding(what, "ok", f"{version} is supported")


def examine_bucket(settings: StoreSettings) -> Iterator[Finding]:
    try:
        store = S3Store(settings)
        offset = _write_read_list_delete(store)
        yield Finding("bucket", "ok", f"write, read, list and delete in {store.name}")
        yield judge_clock(offset)
        conformance.probe(store, now=time.time, afresh=True)
        yield Finding("conditional create", "ok", "exactly one of two writers wins")
    except FedfaError as error:
        yield Finding("bucket", "bad", str(error))


def judge_clock(offset: float) -> Finding:
    """offset: how many seconds the store is ahead of this machine."""
    if abs(offset) <= CLOCK_SECONDS:
        return Finding("clock", "ok", f"within {CLOCK_SECONDS:g} s of the store's")
    direction = "behind" if offset > 0 else "ahead of"
    text = f"this machine is {abs(offset):.0f} s {direction} the store: synchronise both (NTP)"
    return Finding("clock", "warn", f"{text}; at 15 minutes a store refuses every request")


def proxy(endpoint: str | None) -> Finding:
    """Whether requests to a store next door would take a detour through a proxy."""
    url = urlsplit(endpoint or "")
    host = url.hostname or ""
    would_be_used = url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(
        host
    )
    if _is_near(host) and would_be_used:
        variable = f"{url.scheme.upper()}_PROXY"
        text = f"{variable} is set and would carry every object: add {host} to NO_PROXY"
        return Finding("proxy", "warn", text)
    return Finding("proxy", "ok", "none between this machine and the store that should not be")


def tasks() -> Finding:
    """Whether the tasks that are installed here can be imported, where there is torch at all."""
    installed = sorted(entry_points(group="fedfa.tasks"))
    if importlib.util.find_spec("torch") is None:
        return Finding("tasks", "ok", "no torch here, so this is no trainer")
    for task in installed:
        try:
            task.load()
        except (ImportError, AttributeError) as error:
            return Finding("tasks", "bad", f"{task.name} ({task.value}) does not load: {error}")
    return Finding("tasks", "ok", ", ".join(task.name for task in installed))


def policy_command(vhost: str) -> str:
    return (
        f"rabbitmqctl set_policy --vhost '{vhost}' --apply-to queues "
        f"{POLICY_NAME} '{POLICY_PATTERN}' '{POLICY}'"
    )


def _delivery_limit(num_deliveries: int) -> Finding:
    if num_deliveries >= trial.NUM_DELIVERIES:
        return Finding("delivery limit", "ok", "a message may be delivered often")
    text = f"a policy drops a message after {num_deliveries} deliveries: raise its delivery-limit"
    return Finding("delivery limit", "warn", f"{text} (`fedfa doctor --policy`)")


def _queue(settings: BrokerSettings, queue: Queue) -> Finding:
    try:
        trial.declare(settings, queue)
    except FedfaError as error:
        remedy = (
            f"stop the services, settle what is in it, rabbitmqctl delete_queue {queue.name}, "
            "start them again"
        )
        return Finding(queue.name, "bad", f"{error}: {remedy}")
    return Finding(queue.name, "ok", "declared as it should be")


def _write_read_list_delete(store: S3Store) -> float:
    """Returns how far the store's clock is ahead of ours, in seconds."""
    key = f"{conformance.FOLDER}/doctor-{secrets.token_hex(8)}"
    next(store.list(key), None)  # some stores make a missing bucket at the first write
    before = time.time()
    store.put(key, b"doctor")
    after = time.time()
    try:
        if store.get(key) != b"doctor":
            raise InvalidInput(f"{store.name}: {key} reads back as something else")
        modified = [each.modified for each in store.list(key)]
    finally:
        store.delete(key)
    if len(modified) != 1:
        raise InvalidInput(f"{store.name}: {key} was written and is not listed")
    return modified[0] - (before + after) / 2


def _is_near(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal"))
    return address.is_loopback or address.is_private
