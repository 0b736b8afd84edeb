"""Big arrays on pages that were used before.

The kernel hands out fresh pages at about 1.3 GB/s: a model's worth of them costs more than its
merge or its download. So the pages of a dropped model wait here, a few of them, for the next.
"""

import ctypes
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview
Pages = npt.NDArray[np.uint8]

RECYCLED_FROM_BYTES = 1 << 20  # smaller arrays are the allocator's own business
KEPT = 3  # a model, an update and one read ahead
ROUNDED_TO_BYTES = 1 << 16  # files of one federation differ by a few bytes of header

_free: deque[Pages] = deque(maxlen=KEPT)  # appends and pops are atomic; no lock in a finalizer


def recycled(num_bytes: int) -> Pages:
    """An array of uint8 (num_bytes,) with arbitrary content, on used pages where there are some.

    Its pages come back here by themselves, once neither it nor any view of it is alive.
    """
    if num_bytes < RECYCLED_FROM_BYTES:
        return np.empty(num_bytes, np.uint8)
    rounded = -(-num_bytes // ROUNDED_TO_BYTES) * ROUNDED_TO_BYTES
    pages = _fitting(rounded)
    if pages is None:
        pages = np.empty(rounded, np.uint8)
    # numpy lets every view of a view hold its first exporter: this object, and not `pages`.
    lease = (ctypes.c_uint8 * rounded).from_buffer(pages.data)
    weakref.finalize(lease, _free.append, pages).atexit = False
    return np.frombuffer(memoryview(lease), np.uint8, num_bytes)


def waiting_bytes() -> int:
    """What waits here for its next use: memory of this process that nobody has."""
    return sum(pages.size for pages in tuple(_free))


def discard(*, but: int) -> None:
    """Give back what waits here, except what an array of `but` bytes would be put on."""
    for _ in range(len(_free)):
        try:
            pages = _free.popleft()
        except IndexError:  # another thread was faster
            return
        if _fits(pages, but):
            _free.append(pages)


def _fitting(num_bytes: int) -> Pages | None:
    for _ in range(len(_free)):
        try:
            pages = _free.popleft()
        except IndexError:  # another thread was faster
            return None
        if _fits(pages, num_bytes):
            return pages
        _free.append(pages)
    return None


def _fits(pages: Pages, num_bytes: int) -> bool:
    return num_bytes <= pages.size <= num_bytes + num_bytes // 8
