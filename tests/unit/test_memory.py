"""Recycled pages: reused when the last view is gone, never while one is alive."""

import gc
import threading

import numpy as np

from fedfa.memory import KEPT, discard, recycled, waiting_bytes

MIB = 1 << 20


def address(array: np.ndarray) -> int:  # type: ignore[type-arg]
    return array.ctypes.data


def test_the_pages_of_a_dropped_array_are_used_again() -> None:
    first = recycled(3 * MIB + 500)
    where = address(first)
    del first

    second = recycled(3 * MIB + 900)

    assert address(second) == where


def test_pages_stay_as_long_as_any_view_lives() -> None:
    array = recycled(5 * MIB)
    array[:] = 7
    views = [
        array[8:].view(np.float32)[3:].reshape(-1, 1)[:5],
        array.data[16:],
        np.frombuffer(array.data.cast("B")[100:], np.uint8),
    ]
    del array
    while views:
        others = [recycled(5 * MIB) for _ in range(3)]
        for other in others:
            other[:] = 1
        del other, others
        assert all(bytes(memoryview(view).cast("B")[:1]) == b"\x07" for view in views)
        views.pop()


def test_few_dropped_arrays_are_kept() -> None:
    discard(but=0)
    arrays = [recycled(2 * MIB) for _ in range(KEPT + 7)]
    arrays.clear()

    assert waiting_bytes() == KEPT * 2 * MIB


def test_much_larger_pages_are_not_used_for_a_small_array() -> None:
    large = recycled(64 * MIB)
    where = address(large)
    del large

    small = recycled(2 * MIB)

    assert address(small) != where


def test_threads_never_share_pages() -> None:
    faults: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            array = recycled(MIB)
            array[:: 1 << 12] = mark
            if not (array[:: 1 << 12] == mark).all():
                faults.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()

    assert not faults


def test_pages_that_wait_are_counted_and_given_back_unless_they_fit() -> None:
    discard(but=0)
    assert waiting_bytes() == 0
    large, small = recycled(8 * MIB), recycled(2 * MIB)
    del large, small
    assert waiting_bytes() == 10 * MIB

    discard(but=2 * MIB)

    assert waiting_bytes() == 2 * MIB
