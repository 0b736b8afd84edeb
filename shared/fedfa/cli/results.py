"""`fedfa report`, `fedfa export`, `fedfa verify`: what came of a federation."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from fedfa import connections, exports, manifests, replay
from fedfa.canonical import sha256
from fedfa.cli import console
from fedfa.cli.control import Folder, Id
from fedfa.cli.observe import Json
from fedfa.errors import InvalidInput, Misconfigured, NotFound
from fedfa.events import Merged
from fedfa.exports import Stored
from fedfa.history import HistoryReader
from fedfa.store import ObjectStore
from fedfa.submission import read_submission

EXIT_MISMATCH = 1

Pretrained = Annotated[
    bool,
    typer.Option(
        "--pretrained",
        help="also write a folder `pretrained` that the model's own library loads, such as "
        "from_pretrained of transformers or peft; needs the trainer's packages, and the task's "
        "data and base model on this machine",
    ),
]


def default_folder(federation: str, runs: Path | None = None) -> Path:
    return (runs or Path("runs")) / federation


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Tell a person, in a line, that what an option names cannot be written."""
    try:
        yield
    except OSError as error:
        raise Misconfigured(
            f"{option} {path}: cannot be written: {error.strerror}; name another place"
        ) from error


def make_folder(option: str, folder: Path) -> None:
    with writing(option, folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def report(
    federation: Id,
    out: Annotated[
        Path | None, typer.Option(help="the folder; runs/ID by default", show_default=False)
    ] = None,
    folder: Folder = None,
) -> None:
    """Draw quality, staleness and the trainers' work: PNGs and one HTML page."""
    from fedfa.report import write  # imports matplotlib

    history = HistoryReader(connections.store(folder), federation).refresh()
    place = out or default_folder(federation, folder)
    with writing("--out", place):
        console.say(f"report: {write(history, place)}")


def export(
    federation: Id,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="the final or the newest one by default", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="the file; runs/ID/model.safetensors by default", show_default=False),
    ] = None,
    pretrained: Pretrained = False,
    folder: Folder = None,
) -> None:
    """Write a model as a safetensors file that any framework loads without FedFa."""
    path = out or default_folder(federation, folder) / "model.safetensors"
    stored = exports.stored(connections.store(folder), federation, version)
    console.say(_write_model(stored, path))
    if pretrained:
        console.say(_write_pretrained(stored, path.parent / "pretrained", connections.task_allow()))


def export_model(store: ObjectStore, federation: str, version: int | None, path: Path) -> str:
    """Write one version's model; returns what the file holds, for people."""
    return _write_model(exports.stored(store, federation, version), path)


def export_pretrained(
    store: ObjectStore, federation: str, folder: Path, allowed: Sequence[str]
) -> str:
    """Write the final version as its own library loads it; returns where it is, for people.

    allowed: modules that the spec's "module:Class" may name.
    """
    return _write_pretrained(exports.stored(store, federation, None), folder, allowed)


def _write_model(stored: Stored, path: Path) -> str:
    with writing("--out", path):
        exports.write_model(stored, path)
    template = stored.birth.template
    is_partial = stored.birth.frozen_digest != sha256(b"")
    frozen = "; the task's frozen weights are not in it" if is_partial else ""
    return (
        f"model: {path}: version {stored.reference.version}, {len(template.tensors)} tensors, "
        f"{template.num_parameters:,} trained parameters{frozen}"
    )


def _write_pretrained(stored: Stored, folder: Path, allowed: Sequence[str]) -> str:
    with writing("--pretrained", folder):
        exports.write_pretrained(stored, folder, allowed)
    return f"pretrained: {folder}: as the model's own library loads it"


@dataclass(frozen=True, slots=True)
class Confirmed:
    """How much of a federation was confirmed; mismatch is None if all of it was.

    manifests: whose place in the chain, decisions and state are right. replayed_from: the
    version from which on updates were merged again; None if none was. updates, models: merged
    again, and compared bit for bit. version: the last one confirmed.
    """

    federation: str
    manifests: int
    replayed_from: int | None
    updates: int
    models: int
    version: int
    mismatch: str | None

    @property
    def text(self) -> str:
        done = f"chain of {self.manifests} manifests"
        if self.replayed_from is not None:
            done += (
                f"; from version {self.replayed_from} to version {self.version}, "
                f"{self.updates} updates and {self.models} models replay bit for bit"
            )
        if self.mismatch is None:
            return f"verified: {done}"
        return f"not verified after {done}: {self.mismatch}"


def verify(federation: Id, as_json: Json = False, folder: Folder = None) -> None:
    """Merge a federation's stored updates again and compare every model bit for bit.

    Checks the whole chain of manifests. Where old files were deleted by the federation's
    retention, models are compared from the oldest one that still has all that made it.
    Ends with 1 where something differs.
    """
    confirmed = verify_with_progress(connections.store(folder), federation)
    if as_json:
        console.print_json(asdict(confirmed))
    else:
        console.say(confirmed.text, "green" if confirmed.mismatch is None else "bold red")
    if confirmed.mismatch is not None:
        raise typer.Exit(EXIT_MISMATCH)


def verify_with_progress(store: ObjectStore, federation: str) -> Confirmed:
    read_submission(store, federation)  # a wrong id is no mismatch
    newest = manifests.newest(store, federation)
    if newest is None:
        raise NotFound(f"{federation}: no manifest 0 yet, nothing to verify")
    confirmed = Confirmed(federation, 0, None, 0, 0, 0, None)
    with console.progress(MofNCompleteColumn()) as bar:
        task = bar.add_task("verify manifests", total=newest.manifest.n + 1)
        for confirmed in confirm(store, federation):
            bar.update(task, completed=confirmed.manifests)
    return confirmed


def confirm(store: ObjectStore, federation: str) -> Iterator[Confirmed]:
    """Replay a federation; yields what is confirmed so far, the last one with any mismatch."""
    so_far = Confirmed(federation, 0, None, 0, 0, 0, None)
    try:
        for verified in replay.verify(store, federation):
            manifest = verified.manifest
            start = verified.replayed_from
            if start is None or start != so_far.replayed_from:  # it starts here, or starts later
                so_far = replace(so_far, replayed_from=start, updates=0, models=0)
                merged = 0
            else:
                merged = sum(isinstance(one.event, Merged) for one in manifest.decisions)
            so_far = replace(
                so_far,
                manifests=so_far.manifests + 1,
                updates=so_far.updates + merged,
                models=so_far.models + verified.is_new_model,
                version=manifest.state.version,
            )
            yield so_far
    except (replay.Mismatch, InvalidInput, NotFound) as error:
        # What the log names and the bucket lacks, or holds damaged, is a mismatch too.
        yield replace(so_far, mismatch=str(error))
