"""Rejections are counted by their reason, under labels that no client can add to."""

from prometheus_client import REGISTRY

from fedfa.events import Decision, Job, Rejected
from fedfa_aggregator import metrics
from tests.unit.builders import federation, update


def rejections(reason: str) -> float:
    return REGISTRY.get_sample_value("fedfa_rejected_updates_total", {"reason": reason}) or 0.0


def test_a_rejection_counts_under_the_first_word_of_its_reason_or_as_other() -> None:
    running = federation()
    before = {word: rejections(word) for word in ("norm", "other", "of a client's own")}
    for reason in ("norm: 5 is above 2", "of a client's own: words"):
        event = Rejected(update(running, Job(0, 1)), reason)
        metrics.observe([Decision(event, version=0, staleness=None, opened=())])
    counted = {word: rejections(word) - number for word, number in before.items()}
    assert counted == {"norm": 1, "other": 1, "of a client's own": 0}
