"""A flood of the same warning fills no disk, and is told of all the same."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from fedfa.observability import LINES_A_MINUTE, JsonFormatter, Limit


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def written(clock: Clock) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("{message}", style="{"))
    handler.addFilter(Limit(clock=clock))
    logger = logging.getLogger("flood")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)


def lines(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_the_same_warning_is_written_so_often_a_minute_and_then_counted(
    clock: Clock, written: io.StringIO
) -> None:
    logger = logging.getLogger("flood")
    for number in range(LINES_A_MINUTE + 7):
        logger.warning("an outage", extra={"reason": f"try {number}"})
    assert len(lines(written)) == LINES_A_MINUTE
    logger.warning("something else")
    assert lines(written)[-1] == {"message": "something else"}
    clock.now += 60
    for number in range(2):
        logger.warning("an outage", extra={"reason": f"again {number}"})
    assert lines(written)[-2:] == [
        {"message": "an outage", "reason": "again 0", "left_out": 7},
        {"message": "an outage", "reason": "again 1"},
    ]


def test_what_is_no_warning_is_never_left_out(written: io.StringIO) -> None:
    for _ in range(2 * LINES_A_MINUTE):
        logging.getLogger("flood").info("committed")
    assert len(lines(written)) == 2 * LINES_A_MINUTE
