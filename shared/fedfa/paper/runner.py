"""Makes the runs that are missing, side by side, each with a worker of its own."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from fedfa import keys, manifests
from fedfa.errors import InvalidInput
from fedfa.paper.plan import Run
from fedfa.simulate.simulation import simulation
from fedfa.store import DirectoryStore


@dataclass(frozen=True, slots=True)
class Progress:
    """finished: the run that just ended, if one did. updates: merged so far, of `total`."""

    finished: Run | None
    num_left: int
    updates: int
    total: int


def missing(folder: Path, runs: Sequence[Run]) -> list[Run]:
    store = DirectoryStore(folder)
    return [run for run in runs if not _is_done(store, run)]


def make(folder: Path, runs: Sequence[Run], *, num_at_once: int) -> Iterator[Progress]:
    """Run them all; an interruption loses nothing that was committed. Raises TaskFailed."""
    counts = dict.fromkeys((run.id for run in runs), 0)
    total = sum(run.updates for run in runs)
    stopping = threading.Event()

    def work(run: Run) -> None:
        with simulation(folder, run.spec, run.id, num_workers=1) as running:
            for ledger in running.run():
                counts[run.id] = ledger.state.num_merged
                if stopping.is_set():
                    return
        _forget_updates(DirectoryStore(folder), run.id)
        counts[run.id] = run.updates  # a run that failed is over too

    with ThreadPoolExecutor(num_at_once) as threads:
        running = {threads.submit(work, run): run for run in runs}
        try:
            while running:
                done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    run = running.pop(future)
                    future.result()
                    yield Progress(run, len(running), sum(counts.values()), total)
                yield Progress(None, len(running), sum(counts.values()), total)
        finally:
            stopping.set()
            for future in running:
                future.cancel()


def _is_done(store: DirectoryStore, run: Run) -> bool:
    newest = manifests.newest(store, run.id)
    if newest is None or newest.manifest.state.status == "running":
        return False
    if manifests.read_submission(store, run.id).spec != run.spec:  # a default became another
        raise InvalidInput(f"{run.id} in {store.name} is a run of another spec; delete it")
    final = newest.manifest.state.final_version
    return final is None or store.exists(keys.evaluation(run.id, final))


def _forget_updates(store: DirectoryStore, federation: str) -> None:
    """Hundreds of runs: a finished one keeps its log, its evaluations and its last models."""
    for info in list(store.list(keys.updates(federation))):
        store.delete(info.key)
