"""Real faults of broker and bucket: the federation goes on unaided, with one history and no loss.

The broker allows a delivery to stay unacknowledged for a few seconds only, the leases are short,
and the bucket lies on a small disk.
"""

import random
import shutil
import signal
import time
from datetime import datetime, timedelta

import pytest

from fedfa import failpoints, manifests
from fedfa.broker import Publisher
from fedfa.messages import encode
from fedfa.topology import DEAD_QUEUE, EVENTS, UPDATES, jobs
from fedfa_scheduler.bucket import delivered_update
from tests.services.faults import (
    CONSUMER_TIMEOUT_SECONDS,
    LEASE_SECONDS,
    LONG_DELAY,
    TRAINERS,
    WIPE,
    World,
)
from tests.unit.builders import update_ready
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
]  # each takes 5 to 20 s on two idle cores

WAITS = "the work waits for the store"


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
    assert not set(here.sent(name, start=start)) & finished.keys()
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


def test_a_broker_out_of_reach_for_longer_than_a_lease_expires_none(here: World) -> None:
    name = here.running("cut-off", delay={"distribution": "uniform", "unit_seconds": 4.0})
    start = here.log_size("scheduler")
    with here.until_told("no broker connection", "aggregator", "scheduler", *TRAINERS):
        here.amqp.refuse()
    here.stands_still(name)
    here.amqp.heal()
    here.goes_on(name)
    here.stops_and_verifies(name)
    # A trainer may be slow to come back, but each has a whole lease to be heard.
    acting_at: datetime | None = None
    for line in here.log("scheduler", start=start).splitlines():
        if " INFO acting " in line:
            acting_at = logged_at(line)
        elif "a lease expired" in line:
            assert acting_at is not None, line
            assert logged_at(line) >= acting_at + timedelta(seconds=LEASE_SECONDS), line
    assert acting_at is not None


def logged_at(line: str) -> datetime:
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")  # both are local


def test_a_broker_short_of_memory_only_delays(here: World) -> None:
    name = here.running("memory-alarm")
    with here.until_told("no heartbeat", *TRAINERS):
        here.rabbit.ctl("set_vm_memory_high_watermark", "0.00001")
    time.sleep(LEASE_SECONDS)  # not all stands still: the first message of a connection passes
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
    first = [job for job in here.sent(name) if job[1] == 1]
    assert len(first) == len(set(first)) == updates


def test_poison_goes_to_the_dead_letters_and_harms_nobody(here: World) -> None:
    name = here.running("poisoned")
    publisher = Publisher(here.broker_settings(), name="test")
    before, _ = publisher.counts(DEAD_QUEUE.name)
    for poison in (b"", b"\xc1", b"\x81\xa6schema\x02", encode_of_another_schema()):
        for route in (UPDATES, EVENTS, jobs("default")):
            publisher.publish(poison, route, timeout_seconds=20)
    wait_for(lambda: publisher.counts(DEAD_QUEUE.name)[0] == before + 12, seconds=30)
    publisher.close()
    here.goes_on(name)
    here.stops_and_verifies(name)


def encode_of_another_schema() -> bytes:
    update = update_ready(federation="poisoned")
    return encode(update).replace(b"schema\x01", b"schema\x02")


def test_updates_announced_again_late_and_out_of_order_are_merged_once(here: World) -> None:
    # given an aggregator that has a backlog, and everything that was ever finished
    name = here.running("again")
    here.signal("aggregator", signal.SIGSTOP)
    try:
        wait_for(lambda: len(undecided(here, name)) >= 3, seconds=60)
        submitted = manifests.read_submission(here.store, name)
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
    with here.until_told(WAITS, *TRAINERS):
        getattr(here.http, fault)()
    here.stands_still(name)
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
    here.must_have_small_disk()
    name = here.running("disk-full")
    with here.until_told(WAITS, *TRAINERS):
        here.fill_disk()
    here.free_disk()
    here.goes_on(name, seconds=180)  # the server looks for space now and then only
    here.stops_and_verifies(name)
