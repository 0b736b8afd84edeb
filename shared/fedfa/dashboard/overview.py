"""Every federation in the bucket, briefly: its newest manifest and a small curve."""

from concurrent.futures import Executor
from typing import Any

from fedfa import manifests
from fedfa.dashboard.evaluations import Evaluations
from fedfa.dashboard.view import brief_metrics
from fedfa.errors import FedfaError, NotFound, Unavailable
from fedfa.log import Manifest
from fedfa.spec import Submission
from fedfa.store import ObjectStore
from fedfa.submission import ID

MOST_BRIEFS = 200
SPARK_POINTS = 40


class Overview:
    """Reads again only what can have changed: ended federations need their spec.json alone."""

    def __init__(self, store: ObjectStore, *, readers: Executor) -> None:
        self._store = store
        self._readers = readers
        self._known: dict[str, _Known] = {}
        self._unreadable: dict[str, str] = {}

    def refresh(self) -> None:
        """Raises Unavailable when the bucket gives no clear answer."""
        folders = [name for name in self._store.folders() if ID.fullmatch(name)]
        for name in self._known.keys() - set(folders):
            del self._known[name]
        self._unreadable = {}
        for name in folders:
            try:
                self._look(name)
            except Unavailable:
                raise
            except NotFound:
                self._known.pop(name, None)  # deleted, or a folder of something else
            except FedfaError as error:
                self._known.pop(name, None)
                self._unreadable[name] = str(error)

    def briefs(self) -> list[dict[str, Any]]:
        """Running ones first, then by time of submission, the newest first."""
        every = [each.brief() for each in self._known.values()]
        every.sort(key=lambda each: (each["status"] in ("running", "waiting"), each["created_at"]))
        unreadable = [
            {"id": name, "status": "unreadable", "reason": reason}
            for name, reason in sorted(self._unreadable.items())
        ]
        return (unreadable + every[::-1])[:MOST_BRIEFS]

    def _look(self, name: str) -> None:
        submission = manifests.read_submission(self._store, name)
        known = self._known.get(name)
        if known is None or known.submission.uid != submission.uid:
            known = self._known[name] = _Known(submission, self._store, self._readers)
        known.look(self._store)


class _Known:
    def __init__(self, submission: Submission, store: ObjectStore, readers: Executor) -> None:
        self.submission = submission
        self._newest: Manifest | None = None
        self._evaluations = Evaluations(
            store,
            submission.federation,
            every_versions=submission.spec.evaluation.every_versions,
            most=SPARK_POINTS,
            readers=readers,
        )
        self._is_complete = False

    def look(self, store: ObjectStore) -> None:
        if self._is_complete:
            return
        known = self._newest.n if self._newest else manifests.FIRST
        found = manifests.newest(store, self.submission.federation, known=known)
        self._newest = found.manifest if found else None
        if self._newest is None:
            return
        state = self._newest.state
        self._evaluations.refresh(state.version)
        latest = self._evaluations.latest
        has_final = latest is not None and latest.version == state.final_version
        self._is_complete = state.status != "running" and (has_final or state.status == "failed")

    def brief(self) -> dict[str, Any]:
        spec, newest = self.submission.spec, self._newest
        state = newest.state if newest else None
        until = newest.at if newest else self.submission.created_at
        return {
            "id": self.submission.federation,
            "status": state.status if state else "waiting",
            "reason": state.reason if state else "",
            "created_at": self.submission.created_at,
            "seconds": round(until - self.submission.created_at, 3),
            "task": spec.task.name,
            "rule": spec.rule.name,
            "concurrency": spec.concurrency,
            "version": state.version if state else 0,
            "merged": state.num_merged if state else 0,
            "refused": state.num_rejected + state.num_abandoned if state else 0,
            **brief_metrics(self._evaluations.values(), spec),
        }
