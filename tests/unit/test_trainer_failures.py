"""Whether it is the process that fails, or the task, or some clients."""

from fedfa.messages import ModelReady
from fedfa_trainer.failures import BROKEN_AFTER, Failures
from tests.unit.builders import UID

CLIENTS = [f"client-{number}" for number in range(BROKEN_AFTER)]


def model(version: int) -> ModelReady:
    return ModelReady(
        federation="fed", uid=UID, n=version, version=version, status="running", closed=()
    )


def verdicts(failures: Failures, clients: list[str]) -> list[bool]:
    return [failures.failed(UID, client) for client in clients]


def test_a_process_that_worked_and_then_fails_client_after_client_is_broken() -> None:
    failures = Failures()
    failures.delivered(UID)
    assert verdicts(failures, CLIENTS) == [False] * (BROKEN_AFTER - 1) + [True]


def test_a_process_that_fails_while_others_make_versions_is_broken() -> None:
    failures = Failures()
    assert not any(verdicts(failures, CLIENTS[:-1]))
    failures.heard(model(3))
    failures.heard(model(4))
    assert failures.failed(UID, CLIENTS[-1])


def test_a_task_that_fails_everywhere_is_not_the_process() -> None:
    failures = Failures()
    for _ in range(20):
        assert not any(verdicts(failures, CLIENTS))
        failures.heard(model(0))


def test_one_client_that_fails_again_and_again_is_not_the_process() -> None:
    failures = Failures()
    failures.delivered(UID)
    assert not any(verdicts(failures, CLIENTS[:1] * 100))


def test_a_success_in_between_starts_the_count_again() -> None:
    failures = Failures()
    failures.delivered(UID)
    assert not any(verdicts(failures, CLIENTS[:-1]))
    failures.delivered(UID)
    assert not any(verdicts(failures, CLIENTS[1:]))


def test_what_fails_in_one_federation_says_nothing_about_another() -> None:
    failures = Failures()
    failures.delivered("f" * 32)
    assert not any(verdicts(failures, CLIENTS))
