"""Why held work stops, and what it tells others about itself."""

from dataclasses import replace
from typing import Any

import pytest

from fedfa.errors import Cancelled, InvalidData
from fedfa.log import Manifest
from fedfa.messages import EvalJob, InitModel, JobStarted, ModelReady, TrainJob
from fedfa.tracebacks import MAX_CHARACTERS, explain
from fedfa_trainer.held import Held, Phase, is_ahead, is_closed
from tests.unit.builders import DIGEST, UID, federation

EARLIER, MINE, LATER = (f"1764495000000-0a1b2c3d-00000{number}" for number in (1, 2, 3))
COMMON: dict[str, Any] = {"federation": "fed", "uid": UID, "attempt": MINE, "lease_ttl_seconds": 8}
TRAIN = TrainJob(
    **COMMON, slot=1, generation=4, client="client-0001", opened_at=3, delay_seconds=10.0
)
EVALUATE = EvalJob(**COMMON, version=5, key="fed/models/5", digest=DIGEST)
INIT = InitModel(**COMMON)


def held(order: TrainJob | EvalJob | InitModel = TRAIN, phase: Phase = "training") -> Held:
    work = Held(order, trainer="me")
    work.enter(phase)
    return work


def model_ready(**fields: Any) -> ModelReady:
    defaults = {"federation": "fed", "uid": UID, "n": 7, "version": 6, "closed": ()}
    return ModelReady(**{"status": "running", **defaults, **fields})


def manifest(version: int, generation: int, **fields: Any) -> Manifest:
    state = federation().state
    slots = (state.slots[0], replace(state.slots[1], generation=generation), state.slots[2])
    return Manifest(
        federation="fed",
        uid=fields.pop("uid", UID),
        n=1,
        previous="",
        writer="test",
        at=0.0,
        decisions=(),
        model=None,
        state=replace(state, version=version, slots=slots, **fields),
    )


@pytest.mark.parametrize(
    ("fields", "is_over"),
    [
        ({"closed": ((1, 4),)}, True),
        ({"closed": ((0, 9), (1, 5))}, True),
        ({"closed": ((1, 3), (4, 1), (0, 4))}, False),
        ({"closed": ((1, 4),), "uid": "f" * 32}, False),
        ({"status": "finished"}, True),
        ({"status": "failed", "uid": "f" * 32}, False),
    ],
)
def test_commit_ends_the_training_that_it_closes(fields: dict[str, Any], is_over: bool) -> None:
    work = held()
    work.hear_model(model_ready(**fields))
    assert work.should_stop() is is_over


def test_commit_ends_an_initialisation_and_no_evaluation() -> None:
    initialisation, evaluation = held(INIT), held(EVALUATE)
    for work in (initialisation, evaluation):
        work.hear_model(model_ready(status="finished"))
    assert initialisation.should_stop()
    assert not evaluation.should_stop()


@pytest.mark.parametrize(
    ("attempt", "trainer", "phase", "is_over"),
    [
        (LATER, "another", "training", True),
        (LATER, "another", "waiting", True),
        (LATER, "another", "delaying", False),
        (LATER, "another", "delivering", False),
        (EARLIER, "another", "training", False),
        (MINE, "another", "training", False),
        (LATER, "me", "training", False),
    ],
)
def test_only_unfinished_work_ends_for_a_greater_attempt_elsewhere(
    attempt: str, trainer: str, phase: Phase, is_over: bool
) -> None:
    work = held(phase=phase)
    started = Held(TRAIN, trainer=trainer).fact(JobStarted)
    work.hear_started(started.model_copy(update={"attempt": attempt}))
    assert work.should_stop() is is_over


def test_greater_attempt_at_another_job_changes_nothing() -> None:
    work = held()
    other = TRAIN.model_copy(update={"slot": 2, "attempt": LATER})
    work.hear_started(Held(other, trainer="another").fact(JobStarted))
    assert not work.should_stop()


def test_adopted_attempt_is_the_one_it_speaks_of_and_never_a_lesser_one() -> None:
    work = held()
    work.adopt(LATER)
    work.adopt(EARLIER)
    assert work.fact(JobStarted).attempt == LATER


def test_wait_ends_at_once_when_the_work_is_closed() -> None:
    work = held(phase="delaying")
    work.close("nobody waits for it")
    with pytest.raises(Cancelled, match="nobody waits"):
        work.wait(60.0)


@pytest.mark.parametrize(
    ("order", "phase", "train_seconds", "least", "most"),
    [
        (TRAIN, "delivering", None, 0.0, 0.0),
        (TRAIN, "delaying", None, 9.0, 10.0),
        (TRAIN, "training", 20.0, 29.0, 30.0),
    ],
)
def test_remaining_time_is_the_rest_of_training_and_delay(
    order: TrainJob, phase: Phase, train_seconds: float | None, least: float, most: float
) -> None:
    remaining = held(order, phase).remaining_seconds(train_seconds=train_seconds)
    assert remaining is not None
    assert least <= remaining <= most


@pytest.mark.parametrize(
    ("order", "phase", "train_seconds"),
    [(TRAIN, "training", None), (TRAIN, "waiting", 1.0), (EVALUATE, "training", 1.0)],
)
def test_remaining_time_of_what_was_never_measured_is_unknown(
    order: TrainJob | EvalJob, phase: Phase, train_seconds: float | None
) -> None:
    assert held(order, phase).remaining_seconds(train_seconds=train_seconds) is None


def test_manifest_says_whether_a_job_is_closed_open_or_still_ahead() -> None:
    assert is_closed(manifest(3, 5), TRAIN)
    assert is_closed(manifest(3, 4, status="stopped"), TRAIN)
    assert is_closed(manifest(3, 4, uid="f" * 32), TRAIN)
    assert not is_closed(manifest(3, 4), TRAIN)
    assert not is_ahead(manifest(3, 4), TRAIN)
    assert is_ahead(manifest(2, 4), TRAIN)
    assert is_ahead(manifest(3, 3), TRAIN)


def test_failure_names_the_error_first_and_then_the_last_frames() -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            raise ValueError("labels " + "x" * 5_000 + "\ud800")
        recurse(depth - 1)

    with pytest.raises(ValueError, match="labels") as caught:
        recurse(50)
    text = explain(caught.value)

    assert text.startswith("ValueError: labels xxx")
    assert len(text) <= MAX_CHARACTERS
    assert "raise ValueError" in text
    text.encode()


def test_failure_that_is_already_explained_has_no_frames() -> None:
    assert explain(InvalidData("client-1: no such client")) == "client-1: no such client"


@pytest.mark.parametrize(
    ("order", "name"),
    [(TRAIN, "job 1-4"), (EVALUATE, "the evaluation of version 5"), (INIT, "the initialisation")],
)
def test_work_is_overdue_only_while_it_computes_for_longer_than_it_may(
    order: TrainJob | EvalJob | InitModel, name: str
) -> None:
    work = held(order)
    now = work.clock()
    with work.limited(None):
        assert work.overdue(now + 1e9) is None
    with work.limited(5.0):
        assert work.overdue(now + 4.9) is None
        assert work.overdue(now + 6.0) == f"{name} took longer than 5 s (limits.job_seconds)"
    assert work.overdue(now + 6.0) is None


def test_overdue_work_has_failed_unless_it_is_finished_or_nobody_waits_for_it() -> None:
    overdue, finished, closed = held(), held(), held()
    for work in (overdue, finished, closed):
        work.expire("too long")
    finished.enter("delaying")
    closed.close("manifest 7 closed it")
    with pytest.raises(Cancelled, match="too long"):
        overdue.check()
    finished.check()
    assert [work.has_failed for work in (overdue, closed)] == [True, False]
    assert closed.should_stop()
