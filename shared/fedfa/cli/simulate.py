"""`fedfa simulate`: a federation on a virtual clock, in a folder, without broker or bucket."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedfa import bound as bounds
from fedfa import connections, manifests, spec_files
from fedfa.cli import EXIT_INTERRUPTED, console, control, observe, results, views
from fedfa.cli.control import Assignments
from fedfa.cli.observe import Json
from fedfa.errors import InvalidSpec, NotFound
from fedfa.federation import State
from fedfa.history import HistoryReader
from fedfa.replay import Mismatch
from fedfa.sections import Stop
from fedfa.simulate import repetition
from fedfa.simulate.simulation import Simulation, simulation
from fedfa.spec import FederationSpec
from fedfa.store import DirectoryStore
from fedfa.submission import read_submission, slug
from fedfa.summary import Summary, leading_metric, summarize
from fedfa.tracebacks import first_line

LINE_SECONDS = 5.0  # between two lines where there is no terminal
MEASURE = "measure"
NO_TIME = "0"

Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="processes that train side by side; one per core by default", show_default=False
    ),
]
Threads = Annotated[
    int, typer.Option(min=1, help="torch's threads in each worker; the last bits depend on it")
]


def simulate(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="[SPEC]", help="the federation's YAML file", show_default=False),
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option("--id", help="name it; by default after the file", show_default=False),
    ] = None,
    assignments: Assignments = None,
    out: Annotated[Path, typer.Option(help="the folder for runs; this one goes to OUT/ID")] = Path(
        "runs"
    ),
    workers: Workers = None,
    threads: Threads = 1,
    step_seconds: Annotated[
        str,
        typer.Option(
            metavar="SECONDS",
            help=f"what an optimizer step takes on the virtual clock; '{MEASURE}' times one here",
        ),
    ] = NO_TIME,
    bound: Annotated[
        bool,
        typer.Option("--bound", help="measure the gradient too, beside the theorem's rate"),
    ] = False,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="train a recorded run again, a folder's or by its id the bucket's, and compare",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a federation on a virtual clock: same core, tasks and log, no broker, no bucket.

    The same spec gives the same bytes, with any number of workers. Interrupted, the same command
    goes on. The run is a folder: `fedfa report ID --in OUT`, and export, status and verify alike.
    """
    if like is not None:
        if spec is not None or assignments or federation is not None:
            raise InvalidSpec("--like: the run brings its own spec and id; give no others")
        if bound or step_seconds != NO_TIME:
            raise InvalidSpec(
                "--like: the recorded run says when everything happened, and evaluations are not "
                "repeated; give no --step-seconds and no --bound"
            )
        _repeat(like, out, workers=workers, threads=threads, as_json=as_json)
        return
    if spec is None:
        raise InvalidSpec("SPEC: give a spec's file, or --like RUN")
    checked = spec_files.load(spec, assignments=assignments or ())
    control.check_task(checked)
    if federation is None:
        federation = slug(spec.stem)
    results.make_folder("--out", out)
    try:
        with simulation(
            out,
            checked,
            federation,
            num_workers=workers,
            threads=threads,
            step_seconds=_step_seconds(step_seconds),
            with_gradient=bound,
            task_allow=control.allowed_modules(checked),
        ) as running:
            if not as_json:
                console.say(f"{federation}: {control.describe(checked)}, on a virtual clock")
            follow(running, checked, federation)
    except KeyboardInterrupt:
        console.error(f"{federation}: interrupted; the same command goes on from here")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    history = HistoryReader(DirectoryStore(out), federation).refresh()
    compared = bounds.compare(history) if bound else None
    if bound and compared is None:
        console.warn(
            "--bound: fewer than two versions have a measured gradient; evaluate more often"
        )
    summary = summarize(history, now=history.at)
    if as_json:
        rate = {"bound": None if compared is None else asdict(compared)} if bound else {}
        console.print_json(summary.as_json() | rate)
    else:
        _tell(summary, out)
        if compared is not None:
            _tell_bound(compared)
    raise typer.Exit(observe.exit_code(history))


def _step_seconds(text: str) -> float | None:
    if text == MEASURE:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86_400:
        raise InvalidSpec(
            f"--step-seconds: {text!r} is not one; give seconds, as in 0.05, or {MEASURE}"
        )
    return seconds


def _tell_bound(compared: bounds.Bound) -> None:
    console.say("mean ||grad f||^2 of the evaluated versions up to T, beside c / sqrt(T Q):")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("T", "observed", "rate"):
        table.add_column(column, justify="right")
    for line in compared.lines:
        table.add_row(str(line.version), f"{line.observed:.4g}", f"{line.rate:.4g}")
    console.out.print(table)
    console.say(
        f"it falls as T^{compared.slope:.2f}, the rate as T^-0.50; staleness mean "
        f"{compared.staleness_mean:.1f}, at most {compared.staleness_max} versions"
    )


def _repeat(like: str, out: Path, *, workers: int | None, threads: int, as_json: bool) -> None:
    source, federation = connections.find_run(like)
    if Path(like).resolve() == (out / federation).resolve():
        raise InvalidSpec(f"--out {out}: that is where the recorded run lies; choose another place")
    results.make_folder("--out", out)
    submission = read_submission(source, federation)
    newest = manifests.newest(source, federation)
    if newest is None:
        raise NotFound(f"{federation}: no manifest 0 yet, nothing to repeat")
    again = repetition.repeat(
        source,
        federation,
        out,
        num_workers=workers,
        threads=threads,
        task_allow=control.allowed_modules(submission.spec),
    )
    n, version, mismatch = -1, 0, None
    try:
        with console.progress() as bar:
            task = bar.add_task(f"{federation} again", total=newest.manifest.n + 1)
            for ledger in again:
                n, version = ledger.head.manifest.n, ledger.state.version
                bar.update(task, completed=n + 1)
    except Mismatch as error:
        mismatch = str(error)
    except KeyboardInterrupt:
        console.error(f"{federation}: interrupted; the same command goes on from here")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        fields = {"federation": federation, "manifests": n + 1, "version": version}
        console.print_json(fields | {"mismatch": mismatch})
    elif mismatch is None:
        console.say(f"repeated: {n + 1} manifests, to version {version}, byte for byte", "green")
    else:
        console.say(f"not repeated after manifest {n}: {mismatch}", "bold red")
    if mismatch is not None:
        raise typer.Exit(results.EXIT_MISMATCH)


def follow(running: Simulation, spec: FederationSpec, federation: str) -> None:
    """Run it, with a bar on a terminal and else a line from time to time, on stderr."""
    began = printed_at = time.monotonic()
    begun_with: float | None = None
    with console.progress() as bar:
        task = bar.add_task(federation, total=1.0)
        for ledger in running.run():
            now, seconds = time.monotonic(), ledger.head.manifest.at - running.created_at
            done = _fraction(spec.stop, ledger.state, seconds)
            begun_with = done if begun_with is None else begun_with
            text = _line(running, ledger.state, seconds)
            bar.update(task, completed=done, description=text)
            if not console.is_screen(console.err) and now > printed_at + LINE_SECONDS:
                printed_at, gained = now, done - begun_with
                eta = (now - began) * (1 - done) / gained if gained > 0 else None
                console.err.print(f"{text}  eta {views.duration(eta)}", soft_wrap=True)


def _line(running: Simulation, state: State, seconds: float) -> str:
    text = f"virtual {views.duration(seconds)}  version {state.version}  updates {state.num_merged}"
    metric = leading_metric(running.stop, running.evaluations.values())
    newest = running.evaluations.get(max(running.evaluations, default=-1))
    if metric is None or newest is None or metric not in newest.metrics:
        return text
    return f"{text}  {metric} {newest.metrics[metric]:.4f}"


def _fraction(stop: Stop, state: State, seconds: float) -> float:
    """How much of it is done, towards the nearest counted condition; a target is not counted."""
    counted = [
        (state.num_merged, stop.updates),
        (state.version, stop.versions),
        (seconds, stop.wall_seconds),
    ]
    return max((min(1.0, done / limit) for done, limit in counted if limit), default=0.0)


def _tell(summary: Summary, out: Path) -> None:
    console.say(f"{summary.status}: {first_line(summary.reason)}", views.STYLES[summary.status])
    if summary.best is not None:
        final = f"{summary.metric} {views.measured(summary.latest)}"
        console.say(f"{final}, best {views.measured(summary.best)}", "bold")
    console.say(
        f"{summary.version} versions from {summary.merged} updates in "
        f"{views.duration(summary.seconds)} of virtual time"
    )
    console.say(f"log, models and evaluations: {out / summary.federation}")
