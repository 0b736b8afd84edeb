"""A federation as this aggregator knows it: the view it holds, or what the bucket shows."""

from collections.abc import Callable, Iterable

from fedfa import ledger as ledgers
from fedfa import manifests
from fedfa.errors import FedfaError, InvalidInput, NotFound, StoreUnavailable
from fedfa.ledger import Ledger
from fedfa.log import Birth
from fedfa.spec import Submission
from fedfa.store import ObjectStore, require_answer
from fedfa.tensors import FlatModel
from fedfa_aggregator.births import Undecidable
from fedfa_aggregator.reading import Reader
from fedfa_aggregator.views import Views


class Postponed(FedfaError):
    """Raised where a federation cannot be loaded now: a later message may find that it can."""


class Loader:
    """Raises Undecidable where there is no federation, Postponed for one that cannot be loaded.

    That is one whose models do not fit into the memory, or whose objects are lost or unreadable.

    read_all reads the files of a window; beat is told of each.
    """

    def __init__(
        self,
        store: ObjectStore,
        reader: Reader,
        views: Views,
        *,
        read_all: ledgers.ReadAll,
        beat: Callable[[], None],
    ) -> None:
        self._store, self._reader, self._views = store, reader, views
        self._read_all, self._beat = read_all, beat

    def view(self, federation: str, uid: str) -> Ledger | None:
        """This aggregator's view of a federation, read from the bucket where it has none."""
        ledger = self._views.get(federation)
        if ledger is not None and ledger.submission.uid == uid:
            if ledger.replica is not None:
                model_bytes = ledger.replica.model.floats.nbytes
                self._views.make_room(federation, ledger.submission.spec, model_bytes)
            return ledger
        return self._reload(federation)  # unknown, or deleted and submitted again

    def lags(self, ledger: Ledger) -> bool:
        """Whether the bucket shows more than this view, or another federation of its name."""
        head, submission = ledger.head, ledger.submission
        try:
            if self.submission(submission.federation).uid != submission.uid:
                return True
        except Undecidable:
            return True
        newest = manifests.newest(self._store, submission.federation, known=head.manifest.n)
        return newest is None or newest.digest != head.digest

    def keep(self, ledger: Ledger) -> None:
        self._views.keep(ledger)
        template = None if ledger.replica is None else ledger.replica.model.template
        self._reader.serves(ledger.submission.uid, template)

    def submission(self, federation: str) -> Submission:
        try:
            return manifests.read_submission(self._store, federation)
        except NotFound:
            raise Undecidable(f"federation {federation}: no such spec.json in the bucket") from None
        except InvalidInput as error:
            raise Undecidable(str(error)) from error

    def _reload(self, federation: str) -> Ledger | None:
        self._views.drop(federation)

        def make_room(birth: Birth) -> None:
            model_bytes = birth.template.num_floats * 4
            reason = self._views.make_room(federation, submission.spec, model_bytes)
            if reason is not None:
                raise Postponed(f"{federation}: {reason}")

        def read_all(
            read: Callable[[ledgers.Stored], FlatModel], entries: Iterable[ledgers.Stored]
        ) -> Iterable[FlatModel]:
            def alive(entry: ledgers.Stored) -> FlatModel:
                vector = read(entry)
                self._beat()  # a large window takes longer than a turn may
                return vector

            return self._read_all(alive, entries)

        try:
            submission = self.submission(federation)
            ledger = ledgers.load(
                self._store, submission, read_all=read_all, before_reading=make_room
            )
        except (InvalidInput, NotFound) as error:
            raise Postponed(f"{federation}: cannot be read back: {error}") from error
        except StoreUnavailable as error:
            self._beat()
            require_answer(self._store)
            raise Postponed(str(error)) from error
        if ledger is not None:
            self.keep(ledger)
        return ledger
