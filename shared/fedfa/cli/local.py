"""`fedfa local run` and `fedfa local up`: everything on this machine, nothing to install first."""

import json
import shlex
import signal
import threading
import time
import webbrowser
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfa import connections, spec_files, submission
from fedfa.cli import EXIT_INTERRUPTED, console, control, observe, results, views
from fedfa.cli.control import Assignments, NewId, SpecFile
from fedfa.history import HistoryReader
from fedfa.pools import DEFAULT_POOL
from fedfa.rows import History
from fedfa.simulate import simulation
from fedfa.spec import FederationSpec
from fedfa.store import ObjectStore
from fedfa.summary import Summary, summarize

if TYPE_CHECKING:
    from fedfa.local.stack import LocalStack

app = typer.Typer(
    no_args_is_help=True, help="Run brokers, bucket and services on this machine, without Docker."
)

Trainers = Annotated[int, typer.Option(min=0, help="trainer processes, for each pool of the spec")]
Jobs = Annotated[
    int, typer.Option(min=1, help="jobs that each trainer holds; it computes one at a time")
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="keep the servers' data and all logs in this folder; a temporary one by default",
        show_default=False,
    ),
]

Open = Annotated[
    bool,
    typer.Option("--open", help="open the dashboard in a browser, and leave all up until Ctrl-C"),
]


# Python may lose a KeyboardInterrupt, in an import or a callback: whoever waits asks this too.
_must_end = threading.Event()


@app.command()
def run(
    spec: SpecFile,
    federation: NewId = None,
    trainers: Trainers = 2,
    jobs_per_trainer: Jobs = 4,
    assignments: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(help="where results go; runs/ID by default", show_default=False),
    ] = None,
    data: Data = None,
    pretrained: results.Pretrained = False,
    verify: Annotated[bool, typer.Option("--verify", help="replay and compare it all")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="leave all up until Ctrl-C")] = False,
    open_browser: Open = False,
) -> None:
    """Train a spec with private servers and services, then write report and model.

    A broker or bucket that FEDFA_AMQP_URL or FEDFA_S3_ENDPOINT names is used instead of a
    private one. Ends with 0 when the federation finished or was stopped, with 1 otherwise.
    """
    checked = spec_files.load(spec, assignments=assignments or ())
    control.check_task(checked)
    if federation is None:
        federation = submission.new_id(spec.stem)
    submission.check_id(federation)  # before anything is started
    folder = out or results.default_folder(federation)
    results.make_folder("--out", folder)
    started = time.monotonic()
    try:
        stack = _stack(
            data,
            logs=folder / "logs",
            trainers=trainers,
            pools=dict.fromkeys((DEFAULT_POOL, *checked.pools)),
            jobs_per_trainer=jobs_per_trainer,
            task_allow=",".join(control.allowed_modules(checked)),
        )
        if trainers and not _reads_private_bucket(stack, checked):
            simulation.check(checked, task_allow=control.allowed_modules(checked))
        with stack:
            store = stack.store()
            submitted = submission.submit(store, checked, federation)
            console.say(f"{federation}: {control.describe(checked)}")
            control.warn_of(checked)
            _show_dashboard(stack, federation, open_browser=open_browser)
            control.tell_scheduler(submitted, stack.broker_settings(), "submitted")
            history = observe.follow(
                HistoryReader(store, federation), tend=partial(_supervise, stack)
            )
            with results.writing("--out", folder):
                _write_results(store, history, folder, time.monotonic() - started)
            summary = summarize(history, now=time.time())
            if better := better_version(summary):
                console.say(better, "yellow")
                console.say(
                    _how_to_export(stack, summary, data, stays=keep or open_browser), "yellow"
                )
            code = observe.exit_code(history)
            if verify:
                code = max(code, _verify(store, federation))
            if pretrained and history.has_model:
                to = folder / "pretrained"
                allowed = control.allowed_modules(checked)
                console.say(results.export_pretrained(store, federation, to, allowed))
            if keep or open_browser:
                _stay(stack)
    except KeyboardInterrupt:
        console.error(f"{federation}: interrupted; all processes are stopped")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    raise typer.Exit(code)


@app.command()
def up(
    trainers: Trainers = 2,
    jobs_per_trainer: Jobs = 4,
    data: Data = None,
    open_browser: Open = False,
) -> None:
    """Start servers and services and print how to point `fedfa` at them; Ctrl-C ends all."""
    stack = _stack(
        data,
        trainers=trainers,
        jobs_per_trainer=jobs_per_trainer,
        task_allow=",".join(connections.task_allow()),
    )
    with stack:
        _show_dashboard(stack, open_browser=open_browser)
        _stay(stack)


def _show_dashboard(stack: "LocalStack", federation: str = "", *, open_browser: bool) -> None:
    url = stack.dashboard_url(federation)
    console.say(f"dashboard: {url}")
    if open_browser:
        webbrowser.open(url)


def _stack(data: Path | None, **options: Any) -> "LocalStack":
    from fedfa.local.stack import LocalStack  # imports boto3

    if data is not None:
        results.make_folder("--data", data)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # or a temporary folder stays
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup ignores SIGHUP: so do we
            signal.signal(ending, _end)
    stack = LocalStack(data, **options)
    console.say(f"starting {stack.description} ...")
    return stack


def _reads_private_bucket(stack: "LocalStack", spec: FederationSpec) -> bool:
    """Whether the task's data lies in the bucket that is still to be started."""
    places = map(str, spec.task.options.values())
    return stack.needs_bucket and any(place.startswith("s3://") for place in places)


def _end(number: int, frame: FrameType | None) -> None:
    _must_end.set()
    raise KeyboardInterrupt


def _supervise(stack: "LocalStack") -> list[str]:
    if _must_end.is_set():
        raise KeyboardInterrupt
    return stack.supervise()


def _stay(stack: "LocalStack") -> None:
    """Keep everything running until Ctrl-C."""
    console.say("everything is up until Ctrl-C; to use it from another terminal:\n")
    for name, value in stack.servers_environment.items():
        console.say(f"export {name}={value}")
    console.say(f"\nlogs: {stack.logs}")
    try:
        while True:
            for line in _supervise(stack):
                console.say(line, "yellow")
            time.sleep(observe.LOOK_SECONDS)
    except KeyboardInterrupt:
        console.say("stopping")


def _write_results(
    store: ObjectStore, history: History, folder: Path, total_seconds: float
) -> None:
    from fedfa.report import write  # imports matplotlib

    summary = summarize(history, now=time.time())
    observe.say_end(summary)
    if summary.best is not None:
        final = f"{summary.metric} {views.measured(summary.latest)}"
        console.say(f"{final}, best {views.measured(summary.best)}", "bold")
    console.say(
        f"{summary.version} versions from {summary.merged} updates in "
        f"{views.duration(summary.seconds)} ({views.duration(total_seconds)} with the start)"
    )
    console.say(f"report: {write(history, folder)}")
    if history.has_model:
        federation = history.submission.federation
        console.say(results.export_model(store, federation, None, folder / "model.safetensors"))
    (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n")
    console.say(f"logs: {folder / 'logs'}")


def better_version(summary: Summary) -> str | None:
    """A hint if an evaluated version is better than the exported one, else None."""
    best, latest, final = summary.best, summary.latest, summary.final_version
    if best is None or latest is None or best.version == final or best.value == latest.value:
        return None
    return (
        f"version {final} was exported; version {best.version} has the best {summary.metric}, "
        f"{best.value:.4f}"
    )


def _how_to_export(stack: "LocalStack", summary: Summary, data: Path | None, *, stays: bool) -> str:
    """The best version's model, after this command."""
    assert summary.best is not None
    export = f"fedfa export {summary.federation} --version {summary.best.version}"
    if stack.seaweedfs is None or stays:
        return export
    if data is not None:
        return f"fedfa local up --data {shlex.quote(str(data))}, and meanwhile {export}"
    return "to export that one too, run with --data FOLDER, which keeps the bucket"


def _verify(store: ObjectStore, federation: str) -> int:
    confirmed = results.verify_with_progress(store, federation)
    console.say(confirmed.text, "green" if confirmed.mismatch is None else "bold red")
    return 0 if confirmed.mismatch is None else results.EXIT_MISMATCH
