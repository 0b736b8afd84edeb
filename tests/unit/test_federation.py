"""The core decides everything: jobs once, Mc open slots, warm-up, set-aside clients, stops."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfa.events import (
    Abandoned,
    Decision,
    Event,
    Job,
    Merged,
    Opened,
    PoolChanged,
    Rejected,
    Stopped,
)
from fedfa.federation import (
    Client,
    Federation,
    excess_norm,
    found,
    is_evaluation_due,
    sample,
    step,
)
from fedfa.stops import due_stop
from tests.unit.builders import clients, federation, spec, update


def merged(value: Federation, job: Job, *, step_norm: float | None = 1.0) -> Merged:
    return Merged(update(value, job), norm=1.0, step_norm=step_norm)


def open_job(value: Federation, slot: int = 0) -> Job:
    return Job(slot, value.state.slots[slot].generation)


def run(value: Federation, events: int, *, slot: int = 0) -> Federation:
    for _ in range(events):
        value, _ = step(value, merged(value, open_job(value, slot)))
    return value


def test_a_newborn_federation_has_mc_open_slots_for_different_clients() -> None:
    value = federation(8, concurrency=5)
    names = [slot.client for slot in value.state.slots]
    assert len(names) == len(set(names)) == 5
    assert [slot.generation for slot in value.state.slots] == [1] * 5


def test_a_merged_update_closes_its_job_and_opens_the_next_generation() -> None:
    value = federation()
    job = open_job(value, 1)
    after, decision = step(value, merged(value, job))
    assert after.standing(job) == "late"
    assert after.standing(Job(1, 2)) == "open"
    assert decision.opened == (Opened(Job(1, 2), after.state.slots[1].client),)


def test_the_version_stays_while_the_window_fills_and_then_rises_at_every_update() -> None:
    value = federation(rule={"name": "fedfa-delta", "window": 3})
    versions = []
    for _ in range(5):
        value, decision = step(value, merged(value, open_job(value)))
        versions.append(decision.version)
    assert versions == [0, 0, 1, 2, 3]
    assert len(value.state.window) == 3


def test_staleness_counts_versions_between_base_and_merge() -> None:
    value = federation(rule={"name": "fedfa-delta", "window": 1})
    old = update(value, open_job(value, 2))
    value = run(value, 4)
    _, decision = step(value, Merged(old, 1.0, 1.0))
    assert decision.staleness == 4


def test_a_job_above_the_open_generation_is_ahead_of_this_view() -> None:
    value = federation(concurrency=3)
    assert value.standing(Job(0, 2)) == "ahead"
    assert value.standing(Job(7, 1)) == "ahead"


def test_a_rejected_update_changes_no_model_state_and_reopens_its_slot() -> None:
    value = run(federation(), 2)
    job = open_job(value)
    after, decision = step(value, Rejected(update(value, job), "norm"))
    assert (after.state.version, after.state.window) == (value.state.version, value.state.window)
    assert len(decision.opened) == 1
    assert after.state.num_rejected == 1


def test_a_client_with_rejections_in_a_row_is_set_aside_for_a_number_of_decisions() -> None:
    value = federation(4, concurrency=1, limits={"set_aside_after": 2, "set_aside_decisions": 5})
    bad = value.state.slots[0].client
    aside_at = None
    for _ in range(200):
        event: Event
        job = open_job(value)
        if value.state.slots[0].client == bad:
            event = Rejected(update(value, job), "norm")
        else:
            event = merged(value, job)
        if aside_at is not None and value.state.num_decisions < aside_at + 5:
            assert value.state.slots[0].client != bad
        value, _ = step(value, event)
        if aside_at is None and bad in value.state.set_aside:
            aside_at = value.state.num_decisions
    assert aside_at is not None


def test_one_good_update_forgets_a_clients_trouble() -> None:
    value = federation(1, concurrency=1, limits={"set_aside_after": 2})
    for _ in range(3):
        value, _ = step(value, Rejected(update(value, open_job(value)), "norm"))
        value, _ = step(value, merged(value, open_job(value)))
    assert not value.state.set_aside


def test_with_everybody_set_aside_the_least_recently_set_aside_is_taken() -> None:
    value = federation(3, concurrency=1, limits={"set_aside_after": 1, "set_aside_decisions": 50})
    order = []
    for _ in range(3):
        order.append(value.state.slots[0].client)
        value, _ = step(value, Rejected(update(value, open_job(value)), "norm"))
    assert value.state.slots[0].client == order[0]


def test_rejections_in_a_row_end_the_federation_as_failed() -> None:
    value = federation(limits={"max_consecutive_rejections": 3, "set_aside_after": 99})
    for _ in range(3):
        abandoned = Abandoned(open_job(value), "CUDA out of memory")
        assert due_stop(value, abandoned) is None
        value, _ = step(value, abandoned)
    stop = due_stop(value, abandoned)
    assert stop is not None
    assert stop.status == "failed"
    assert "CUDA out of memory" in stop.reason


def test_clients_of_a_pool_that_is_down_are_sampled_only_when_nobody_else_is_idle() -> None:
    mixed = (*clients(3), *(Client(f"silo-{at}", 10, "silo") for at in range(3)))
    value = found(spec(clients=6, concurrency=2), mixed)
    value, _ = step(value, PoolChanged("default", 1, "pool_down"))
    for generation in range(1, 50):
        assert sample(value, Job(0, generation)).startswith(("silo", value.state.slots[0].client))
    value, _ = step(value, PoolChanged("silo", 1, "pool_down"))
    assert sample(value, Job(0, 99))


def test_an_abandonment_in_a_pool_that_is_down_counts_against_nobody() -> None:
    value = federation(limits={"set_aside_after": 1, "max_consecutive_rejections": 1})
    value, _ = step(value, PoolChanged("default", 1, "pool_down"))
    abandoned = Abandoned(open_job(value), "pool default is down")
    value, decision = step(value, abandoned)
    assert len(decision.opened) == 1
    assert (value.state.num_abandoned, value.state.failures_in_a_row) == (1, 0)
    assert (value.state.trouble, value.state.set_aside) == ({}, {})
    assert due_stop(value, abandoned) is None


def test_a_stop_closes_every_slot_and_makes_later_updates_late() -> None:
    value = run(federation(), 7)
    job = open_job(value)
    value, decision = step(value, Stopped("stopped", "enough", 3))
    assert value.state.slots == ()
    assert value.state.final_version == 3
    assert value.standing(job) == "late"
    assert decision.opened == ()


@pytest.mark.parametrize(("stop", "updates"), [({"updates": 7}, 7), ({"versions": 3}, 7)])
def test_counted_stops_are_due_exactly_when_reached(stop: dict[str, int], updates: int) -> None:
    value = federation(rule={"name": "fedfa-delta", "window": 5}, stop=stop)
    last = merged(value, open_job(value))
    assert due_stop(run(value, updates - 1), last) is None
    reached = due_stop(run(value, updates), last)
    assert reached is not None
    assert reached.status == "finished"


def test_the_cadence_and_the_final_version_are_due_for_evaluation() -> None:
    value = federation(evaluation={"every_versions": 10})
    assert [v for v in range(21) if is_evaluation_due(value.spec, value.state, v)] == [0, 10, 20]
    ended = value.having(replace(value.state, final_version=13))
    assert is_evaluation_due(ended.spec, ended.state, 13)


def test_a_norm_is_judged_only_against_a_long_enough_history() -> None:
    assert excess_norm((1.0,) * 9, 1e9, 10) is None
    assert excess_norm((1.0,) * 10, 11, 10) == 10
    assert excess_norm((1.0,) * 10, 9, 10) is None


events = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["merge", "reject", "abandon", "replay"])),
    max_size=60,
)


@given(events=events, seed=st.integers(0, 1000))
def test_whatever_happens_mc_slots_are_open_for_distinct_clients(
    events: list[tuple[int, str]], seed: int
) -> None:
    value = federation(6, concurrency=4, seed=seed, limits={"set_aside_after": 2})
    decided: set[Job] = set()
    for slot, kind in events:
        job = open_job(value, slot)
        assert job not in decided
        decided.add(job)
        event: Event
        if kind == "merge":
            event = merged(value, job)
        elif kind == "reject":
            event = Rejected(update(value, job), "x")
        else:
            event = Abandoned(job, "x")
        value, _ = step(value, event)
        holders = [slot.client for slot in value.state.slots]
        assert len(holders) == len(set(holders)) == 4


@given(events=events, seed=st.integers(0, 1000))
def test_the_same_events_give_the_same_federation_and_decisions(
    events: list[tuple[int, str]], seed: int
) -> None:
    def play() -> tuple[Federation, list[Decision]]:
        value, decisions = federation(6, concurrency=4, seed=seed), []
        for slot, kind in events:
            job = open_job(value, slot)
            event = merged(value, job) if kind == "merge" else Abandoned(job, kind)
            value, decision = step(value, event)
            decisions.append(decision)
        return value, decisions

    assert play() == play()


@given(n=st.integers(1, 40), busy=st.integers(0, 39), seed=st.integers(0, 99))
def test_the_sampled_client_is_the_nth_idle_one_in_name_order(n: int, busy: int, seed: int) -> None:
    from fedfa.randomness import prf

    concurrency = min(busy + 1, n)
    value = federation(n, concurrency=concurrency, seed=seed)
    for slot in range(concurrency):
        others = {s.client for at, s in enumerate(value.state.slots) if at != slot}
        idle = sorted(c.name for c in value.clients.ordered if c.name not in others)
        expected = idle[prf(seed, "client", slot, 77) % len(idle)]
        assert sample(value, Job(slot, 77)) == expected
