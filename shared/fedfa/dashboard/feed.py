"""What the page is fed with: one thread that reads, and values that requests only hand on.

Nothing is read for nobody: a federation, or the list, is followed while somebody asked for it
within the last seconds. Whoever serves requests never waits for the bucket's log here, and what
is shown is kept as bytes, so that many browsers cost no more than one.
"""

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from fedfa.dashboard.follower import Follower
from fedfa.dashboard.overview import Overview
from fedfa.dashboard.rows import JsonRow
from fedfa.dashboard.view import view_of
from fedfa.errors import FedfaError, NotFound, Unavailable
from fedfa.store import ObjectStore

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.4  # between two looks at the bucket
WATCHED_SECONDS = 20.0  # after the last question
CLOSE_SECONDS = 2.0  # for what is being read
MOST_FOLLOWED = 8  # federations kept in memory

LIVE_FIELDS = ("task", "client", "slot", "generation", "stage", "trainer", "failures", "error")

Live = Callable[[], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request answers. revision rises with every change; 0: nothing was read yet.

    rows: the newest decisions, ascending. trouble: why there is nothing newer, or nothing.
    """

    revision: int = 0
    body: bytes = b""
    rows: tuple[JsonRow, ...] = ()
    trouble: str = ""
    is_missing: bool = False


class Feed:
    """share: of its time that the thread may spend on reading old manifests.

    live: the scheduler's /federations, where there is one.
    """

    def __init__(
        self, store: ObjectStore, *, readers: int, share: float, live: Live | None = None
    ) -> None:
        self.store = store
        self._share = share
        self._live = live
        self._readers = ThreadPoolExecutor(readers, "dashboard-reader")
        self._lock = threading.Lock()
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        self._overview = Overview(store, readers=self._readers)
        self._overview_shown = Shown()
        self._overview_asked_at = float("-inf")
        self._overview_due_at = float("-inf")
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read nothing more. A process that ends while it reads would end with an error."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        self._readers.shutdown(wait=False, cancel_futures=True)

    def overview(self) -> Shown:
        """All federations, as JSON."""
        self._overview_asked_at = time.monotonic()
        if not self._overview_shown.revision:
            self._wake.set()
        return self._overview_shown

    def federation(self, federation: str) -> Shown:
        """One federation's view, as JSON. Follows it from the first question on."""
        with self._lock:
            followed = self._followed.get(federation)
            if followed is None:
                followed = self._followed[federation] = _Followed(federation)
                self._wake.set()
            self._followed.move_to_end(federation)
            followed.asked_at = now = time.monotonic()
            oldest = next(iter(self._followed.values()))
            if len(self._followed) > MOST_FOLLOWED and not oldest.is_watched(now):
                del self._followed[oldest.federation]
        return followed.shown

    def look_again(self) -> None:
        """Something was changed from here: show it soon."""
        self._overview_due_at = float("-inf")
        self._wake.set()

    def _run(self) -> None:
        while not self._is_closed:
            started = time.monotonic()
            watched = self._watched(started)
            for followed in watched:
                self._guarded(followed, self._look)
            if started - self._overview_asked_at < WATCHED_SECONDS:
                self._show_overview(started)
            self._read_older(watched, until=time.monotonic() + LOOK_SECONDS * self._share)
            self._wake.wait(max(0.0, started + LOOK_SECONDS - time.monotonic()))
            self._wake.clear()

    def _watched(self, now: float) -> list["_Followed"]:
        with self._lock:
            every = list(self._followed.values())
        return [each for each in every if each.is_watched(now)]

    def _look(self, followed: "_Followed") -> None:
        if followed.follower is None:
            name = followed.federation
            followed.follower = Follower(self.store, name, readers=self._readers)
        follower = followed.follower
        followed.is_new |= follower.look()
        while True:
            if not follower.is_drawable:
                self._show(followed)  # early: what is known already
            if self._is_closed or not follower.read():
                break
            followed.is_new = True
        self._show(followed)

    def _read_older(self, watched: list["_Followed"], *, until: float) -> None:
        """A chunk for each at least where there is time, or reading would never come to an end."""

        def read(followed: _Followed) -> None:
            follower = followed.follower
            followed.has_older = follower is not None and follower.read_older()
            followed.is_new |= followed.has_older

        while time.monotonic() < until and not self._wake.is_set():
            for followed in watched:
                self._guarded(followed, read)
            if not any(followed.has_older for followed in watched):
                return

    def _guarded(self, followed: "_Followed", do: Callable[["_Followed"], None]) -> None:
        try:
            do(followed)
        except NotFound as error:
            followed.follower = None
            followed.fail(str(error), is_missing=True)
        except Unavailable as error:
            followed.fail(str(error))
        except FedfaError as error:
            followed.follower = None
            followed.fail(str(error))
        except Exception as error:  # a defect in the page's code must not end the thread
            if self._is_closed:
                return
            logger.exception("the dashboard failed", extra={"federation": followed.federation})
            followed.follower = None
            followed.fail(f"{type(error).__name__}: {error}")

    def _show(self, followed: "_Followed") -> None:
        follower, live = followed.follower, self._live_of(followed.federation)
        assert follower is not None
        if followed.is_new or live != followed.live or followed.shown.trouble:
            followed.is_new, followed.live = False, live
            body = _encoded(view_of(follower, live=live, now=time.time()))
            followed.show(body, tuple(follower.rows))

    def _live_of(self, federation: str) -> dict[str, Any] | None:
        """What is shown of the scheduler's entry, so that its ages alone are no change."""
        found = [each for each in self._live() if each["id"] == federation] if self._live else []
        if not found or "jobs" not in found[0]:
            return None
        jobs = [{name: job[name] for name in LIVE_FIELDS} for job in found[0]["jobs"]]
        return {"messages": found[0]["messages"], "jobs": jobs}

    def _show_overview(self, now: float) -> None:
        if now < self._overview_due_at:
            return
        shown, trouble = self._overview_shown, ""
        try:
            self._overview.refresh()
        except FedfaError as error:
            trouble = str(error)
        body = _encoded({"store": self.store.name, "federations": self._overview.briefs()})
        if (body, trouble) != (shown.body, shown.trouble):
            self._overview_shown = Shown(shown.revision + 1, body, trouble=trouble)
        # Many federations take long to look at; they are looked at the less often.
        took = time.monotonic() - now
        self._overview_due_at = now + max(2 * LOOK_SECONDS, took / max(self._share, 0.1))


class _Followed:
    def __init__(self, federation: str) -> None:
        self.federation = federation
        self.follower: Follower | None = None
        self.shown = Shown()
        self.asked_at = 0.0
        self.has_older = False
        self.is_new = True  # read since it was shown
        self.live: dict[str, Any] | None = None

    def is_watched(self, now: float) -> bool:
        return now - self.asked_at < WATCHED_SECONDS

    def show(self, body: bytes, rows: tuple[JsonRow, ...]) -> None:
        shown = self.shown
        if body != shown.body or shown.trouble:
            self.shown = Shown(shown.revision + 1, body, rows)

    def fail(self, trouble: str, *, is_missing: bool = False) -> None:
        shown = self.shown
        if (trouble, is_missing) != (shown.trouble, shown.is_missing):
            self.shown = replace(
                shown, revision=shown.revision + 1, trouble=trouble, is_missing=is_missing
            )


def _encoded(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
