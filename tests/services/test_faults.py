"""Real faults of a whole stack: the federation goes on unaided, with one history and no loss.

The broker allows a delivery to stay unacknowledged for a few seconds only, the leases are short,
and the bucket lies on a small disk.
"""

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from fedfa import failpoints, manifests
from fedfa.broker import Publisher
from fedfa.messages import UpdateReady, encode
from fedfa.observability import EXIT_FENCED
from fedfa.settings import BrokerSettings
from fedfa.topology import DEAD_QUEUE, EVENTS, UPDATES, jobs
from fedfa_scheduler.bucket import delivered_update
from tests.proxy import Proxy
from tests.services.driver import wait_for
from tests.services.faults import (
    CONSUMER_TIMEOUT_SECONDS,
    LEASE_SECONDS,
    WIPE,
    World,
    no_tracebacks,
    world,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
]  # each takes 5 to 20 s on two idle cores

TRAINERS = ("trainer-1", "trainer-2")
WAITS = "the work waits for the store"
LONG_DELAY = {"distribution": "pareto", "shape": 100, "unit_seconds": 13.0}  # 13 to 14 seconds


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("stack"), has_small_disk=True) as here:
        yield here
        no_tracebacks(here)


def sent(here: World, name: str, *, start: int = 0) -> list[tuple[int, int]]:
    """The training jobs that the scheduler has handed out, from this byte of its log on."""
    pattern = rf"sent kind=TrainJob federation={name} slot=(\d+) generation=(\d+)"
    found = re.findall(pattern, here.log("scheduler", start=start))
    return [(int(slot), int(generation)) for slot, generation in found]


def undecided(here: World, name: str) -> dict[tuple[int, int], list[str]]:
    """The files of open jobs."""
    manifest = here.newest(name)
    assert manifest is not None
    slots = manifest.state.slots
    return {
        (slot, generation): keys
        for (slot, generation), keys in here.files(name).items()
        if slots[slot].generation == generation
    }


def zombies(here: World, name: str, trainer: str) -> list[object]:
    """What a trainer still holds although it is closed."""
    manifest = here.newest(name)
    assert manifest is not None
    slots = manifest.state.slots
    return [
        held
        for held in here.jobs(trainer)
        if held["federation"] == name
        and held["work"][0] == "train"
        and slots[held["work"][1]].generation > held["work"][2]
    ]


# -- the broker ---------------------------------------------------------------------------------


def test_a_broker_that_lost_everything_costs_no_finished_training(here: World) -> None:
    # given finished updates that no aggregator has seen, and whose messages will be lost
    name = here.running("wiped")
    here.signal("aggregator", signal.SIGSTOP)
    try:
        wait_for(lambda: len(undecided(here, name)) >= 3, seconds=60)
        start, finished = here.log_size("scheduler"), here.files(name)

        # when the broker comes back without its data
        here.rabbit.kill()
        shutil.rmtree(here.rabbit.folder / "data")
        here.rabbit.start()
    finally:
        here.signal("aggregator", signal.SIGCONT)
    here.goes_on(name)

    # then nothing that was finished is handed out or stored again, and all of it is decided
    log = here.stops_and_verifies(name)
    assert not set(sent(here, name, start=start)) & finished.keys()
    files = here.files(name)
    assert all(files[job] == finished[job] for job in finished)
    decided = {
        (decision.event.update.job.slot, decision.event.update.job.generation)
        for manifest in log
        for decision in manifest.decisions
        if decision.event.outcome == "merged"
    }
    assert finished.keys() <= decided


def test_queues_deleted_under_their_consumers_come_back(here: World) -> None:
    name = here.running("no-queues")
    here.rabbit.ctl("eval", WIPE)
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_broker_out_of_reach_for_longer_than_a_lease_costs_no_training(here: World) -> None:
    name = here.running("cut-off", delay={"distribution": "uniform", "unit_seconds": 4.0})
    here.amqp.refuse()
    time.sleep(2 * LEASE_SECONDS)
    here.amqp.heal()
    here.goes_on(name)
    here.stops_and_verifies(name)
    assert all(len(keys) == 1 for keys in here.files(name).values())


def test_a_broker_short_of_memory_only_delays(here: World) -> None:
    name = here.running("memory-alarm")
    here.rabbit.ctl("set_vm_memory_high_watermark", "0.00001")
    time.sleep(2 * LEASE_SECONDS)
    here.rabbit.ctl("set_vm_memory_high_watermark", "0.4")
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_channel_closed_by_the_broker_is_opened_again(here: World) -> None:
    # given an aggregator that holds its deliveries for longer than the broker allows
    name = here.running("slow-aggregator")
    seconds = CONSUMER_TIMEOUT_SECONDS + 5
    here.restart("aggregator", **{failpoints.VARIABLE: f"aggregator.received@2=sleep:{seconds:g}"})
    start = here.log_size("aggregator")
    wait_for(
        lambda: "the broker closed the channel" in here.log("aggregator", start=start), seconds=60
    )
    here.goes_on(name)
    here.stops_and_verifies(name)
    here.restart("aggregator")


def test_a_job_longer_than_the_acknowledgement_limit_is_trained_once(here: World) -> None:
    assert LONG_DELAY["unit_seconds"] > CONSUMER_TIMEOUT_SECONDS + 4  # type: ignore[operator]
    updates = 2
    name = here.begin(
        "long", concurrency=updates, delay=LONG_DELAY, stop={"updates": updates}, clients=4
    )
    assert here.ends(name, seconds=100).state.num_merged == updates
    here.stops_and_verifies(name)
    assert all(len(keys) == 1 for keys in here.files(name).values())
    first = [job for job in sent(here, name) if job[1] == 1]
    assert len(first) == len(set(first)) == updates


def test_poison_goes_to_the_dead_letters_and_harms_nobody(here: World) -> None:
    name = here.running("poisoned")
    publisher = Publisher(BrokerSettings.model_validate({"url": here.rabbit.url}), name="test")
    before, _ = publisher.counts(DEAD_QUEUE.name)
    for poison in (b"", b"\xc1", b"\x81\xa6schema\x02", encode_of_another_schema()):
        for route in (UPDATES, EVENTS, jobs("default")):
            publisher.publish(poison, route, timeout_seconds=20)
    wait_for(lambda: publisher.counts(DEAD_QUEUE.name)[0] == before + 12, seconds=30)
    publisher.close()
    here.goes_on(name)
    here.stops_and_verifies(name)


def encode_of_another_schema() -> bytes:
    update = UpdateReady(
        federation="poisoned",
        uid="0" * 32,
        slot=0,
        generation=0,
        attempt="0000000000000-00000000-000000",
        key="-",
        client="-",
        base_version=0,
        num_examples=1,
        num_steps=1,
        loss=0.0,
        trainer="-",
        started_at=0.0,
        train_seconds=0.0,
        delay_seconds=0.0,
    )
    return encode(update).replace(b"schema\x01", b"schema\x02")


def test_updates_announced_again_late_and_out_of_order_are_merged_once(here: World) -> None:
    # given an aggregator that has a backlog, and everything that was ever finished
    name = here.running("again")
    here.signal("aggregator", signal.SIGSTOP)
    try:
        wait_for(lambda: len(undecided(here, name)) >= 3, seconds=60)
        submitted = manifests.submitted(here.store, name)
        letters = [delivered_update(here.store, submitted, *job) for job in here.files(name)]

        # when all of it is announced twice more, in any order
        again = [letter for letter in letters if letter is not None] * 2
        random.Random(0).shuffle(again)
        here.publish(*again, route=UPDATES)
    finally:
        here.signal("aggregator", signal.SIGCONT)
    here.goes_on(name)
    here.stops_and_verifies(name)


# -- the bucket ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["overload", "stall", "refuse"])
def test_a_bucket_that_gives_no_answer_only_delays(here: World, fault: str) -> None:
    name = here.running(f"s3-{fault}")
    getattr(here.http, fault)()
    time.sleep(2 * LEASE_SECONDS)
    here.http.heal()
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_a_commit_whose_answer_is_lost_is_committed_once(here: World) -> None:
    name = here.running("lost-answer")
    cut = here.http.num_cut
    here.http.cut_responses(5, only=f"PUT /{here.s3.bucket}/{name}/manifests/".encode())
    wait_for(lambda: here.http.num_cut == cut + 5, seconds=60)
    here.goes_on(name)
    assert "fenced" not in here.log("aggregator")
    here.stops_and_verifies(name)


def test_a_full_disk_only_delays(here: World) -> None:
    assert not here.trouble_with_disk, (
        f"a small disk cannot be mounted here ({here.trouble_with_disk}): run the tests as root"
    )
    name = here.running("disk-full")
    filler = here.disk / "filler"
    starts = {trainer: here.log_size(trainer) for trainer in TRAINERS}
    try:
        with filler.open("wb") as file, suppress(OSError):  # until no space is left
            while True:
                file.write(bytes(65_536))
        wait_for(
            lambda: all(WAITS in here.log(trainer, start=starts[trainer]) for trainer in TRAINERS),
            seconds=60,
        )
    finally:
        filler.unlink()
    here.goes_on(name)
    here.stops_and_verifies(name)


# -- processes that stall or are told to end ------------------------------------------------------


def test_a_frozen_aggregator_is_fenced_and_ends_at_its_second_loss(here: World) -> None:
    # given an aggregator that freezes before each commit, and another that takes over
    name = here.running("frozen-aggregator")
    here.restart("aggregator", **{failpoints.VARIABLE: "commit.before_manifest=stop"})
    wait_for(lambda: here.is_frozen("aggregator"), seconds=60)
    second = here.stack.add_standby("aggregator")
    try:
        here.goes_on(name, by=3)

        # when it wakes up, then it is fenced and goes on as the standby
        start = here.log_size("aggregator")
        here.signal("aggregator", signal.SIGCONT)
        wait_for(lambda: "fenced" in here.log("aggregator", start=start), seconds=30)
        wait_for(lambda: "broker connected" in here.log("aggregator", start=start), seconds=30)
        assert here.process("aggregator").is_running

        # when it leads and freezes again within the minute, then the next loss ends it
        here.process(second).kill()
        wait_for(lambda: here.is_frozen("aggregator"), seconds=30)
        here.restart(second)
        here.goes_on(name, by=3)
        here.signal("aggregator", signal.SIGCONT)
        wait_for(lambda: not here.process("aggregator").is_running, seconds=30)
        assert here.process("aggregator").exit_code == EXIT_FENCED
        here.restart("aggregator")
        here.goes_on(name)
    finally:
        here.stack.processes.pop(second).stop()
    here.stops_and_verifies(name)


@pytest.mark.parametrize("how", ["frozen", "unreachable"])
def test_a_trainer_that_falls_silent_loses_its_jobs_and_drops_them(here: World, how: str) -> None:
    with ExitStack() as cleanup:
        # given a trainer with a connection of its own
        network = cleanup.enter_context(Proxy(here.rabbit.port))
        url = f"amqp://guest:guest@127.0.0.1:{network.port}/"
        here.restart("trainer-1", FEDFA_AMQP_URL=url)
        cleanup.callback(here.restart, "trainer-1")
        name = here.running(f"silent-{how}", delay={"distribution": "uniform", "unit_seconds": 3.0})
        wait_for(lambda: len(here.jobs("trainer-1")) == 3, seconds=60)

        # when it is not heard for longer than a lease
        start = here.log_size("scheduler")
        if how == "frozen":
            here.signal("trainer-1", signal.SIGSTOP)
        else:
            network.refuse()
        wait_for(
            lambda: here.log("scheduler", start=start).count("a lease expired") >= 2, seconds=60
        )
        here.goes_on(name, by=6)

        # then it drops, once it is back, what others have done meanwhile
        if how == "frozen":
            here.signal("trainer-1", signal.SIGCONT)
        else:
            network.heal()
        began = time.monotonic()
        wait_for(lambda: not zombies(here, name, "trainer-1"), seconds=30)
        print(f"\nno zombie {time.monotonic() - began:.2f} s after the trainer is back")
        here.goes_on(name)
        here.stops_and_verifies(name)


def test_a_trainer_told_to_end_hands_back_what_does_not_fit(here: World) -> None:
    name = here.begin("told-to-end", delay=LONG_DELAY, concurrency=4)

    def held(trainer: str) -> set[tuple[int, int]]:
        works = [job["work"] for job in here.jobs(trainer) if job["phase"] == "delaying"]
        return {(slot, generation) for task, slot, generation in works if task == "train"}

    busy = wait_for(lambda: [each for each in TRAINERS if len(held(each)) >= 2], seconds=60)[0]
    mine = held(busy)
    start, began = here.log_size("scheduler"), time.monotonic()
    here.signal(busy, signal.SIGTERM)
    wait_for(lambda: mine <= set(sent(here, name, start=start)), seconds=15)
    print(f"\nhanded out again {time.monotonic() - began:.2f} s after SIGTERM")
    wait_for(lambda: not here.process(busy).is_running, seconds=15)
    assert here.process(busy).exit_code == 0
    here.restart(busy)
    here.stops_and_verifies(name)


def test_an_aggregator_told_to_end_finishes_its_commit(here: World) -> None:
    name = here.running("told-to-end-too")
    here.restart("aggregator", **{failpoints.VARIABLE: "commit.before_manifest=sleep:1"})
    here.goes_on(name, by=1)
    number = here.number(name)
    here.signal("aggregator", signal.SIGTERM)
    wait_for(lambda: not here.process("aggregator").is_running, seconds=30)
    assert here.process("aggregator").exit_code == 0
    assert here.number(name) > number
    here.restart("aggregator")
    here.goes_on(name)
    here.stops_and_verifies(name)


def test_every_confirmed_update_is_decided_exactly_once(here: World) -> None:
    """Over everything that happened to this stack."""
    confirmed = {
        (each["uid"], each["slot"], each["generation"]) for each in here.journalled("confirmed")
    }
    put = {each["key"] for each in here.journalled("putting")}
    decided: Counter[tuple[str, int, int]] = Counter()
    still_open: set[tuple[str, int, int]] = set()
    for name in here.store.folders():
        if name.startswith("_"):
            continue
        log = [entry.manifest for entry in manifests.log(here.store, name)]
        uid = log[0].uid
        for manifest in log:
            for decision in manifest.decisions:
                if decision.event.outcome == "merged":
                    update = decision.event.update
                    assert update.key in put
                    decided[uid, update.job.slot, update.job.generation] += 1
        before_the_end = log[-2].state.slots
        still_open |= {(uid, at, slot.generation) for at, slot in enumerate(before_the_end)}
    assert set(decided.values()) == {1}
    assert confirmed - decided.keys() <= still_open
