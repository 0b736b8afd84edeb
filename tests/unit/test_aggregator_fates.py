"""What becomes of messages that one damaged object, or a forged fact, could hold up for ever."""

from pathlib import Path

import pytest

from fedfa.errors import StoreUnavailable
from fedfa.events import Rejected
from fedfa.messages import ModelReady
from fedfa.replay import verify
from fedfa.store import Download
from tests.unit.sample_run import born
from tests.unit.test_aggregator_memory import RULE, Harness


def test_an_update_from_a_version_that_nobody_made_is_rejected_and_its_slot_goes_on(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path)
    born(harness.store, "fed", rule=RULE)
    forged = harness.update(1, slot=0, base_version=7)
    harness.serve(harness.update(0, slot=1), forged)
    manifest = harness.newest()
    event = manifest.decisions[-1].event
    assert isinstance(event, Rejected)
    assert event.reason.startswith("base_version: 7")
    assert manifest.state.slots[0].generation == 2
    closed = [each.closed for each in harness.published if isinstance(each, ModelReady)]
    assert ((0, 1),) in closed
    assert harness.num_acked == 2
    assert len(list(verify(harness.store, "fed"))) == 3


def test_one_unreadable_object_holds_up_its_own_federation_alone(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for name in ("damaged", "fed"):
        born(harness.store, name, rule=RULE)
    lost, good = harness.update(0, slot=0, name="damaged"), harness.update(0, slot=0)
    download = harness.store.download

    def broken(key: str, *, max_bytes: int | None = None) -> Download:
        if key == lost.key:
            raise StoreUnavailable(key)
        return download(key, max_bytes=max_bytes)

    harness.store.download = broken  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        harness.serve(lost, good)
    assert harness.newest().n == 1
    assert harness.newest("damaged").n == 0
    assert harness.num_acked == 1
