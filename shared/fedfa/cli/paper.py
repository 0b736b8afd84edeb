"""`fedfa paper`: the evaluation of the FedFa paper, from the runs to its tables and figures."""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version as release
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from fedfa.cli import EXIT_INTERRUPTED, console, results, views
from fedfa.errors import InvalidInput
from fedfa.paper import outcomes, profiles, runner, tables
from fedfa.paper.outcomes import Outcome
from fedfa.paper.plan import FIGURES, PARTS, TABLES, FigurePart, Part, Plan, Run, TablePart
from fedfa.paper.profiles import METHODS, Benchmark, Profile, ProfileName, Rates
from fedfa.paper.tables import Outcomes, Table
from fedfa.simulate.workers import processor, usable_cores

DATA = "FEDFA_DATA"
RELEASES = ("torch", "numpy", "scikit-learn")

What = Literal[TablePart, FigurePart, "all", "tune", "sensitivity", "further"]


def paper(
    what: Annotated[
        What,
        typer.Argument(
            help="a table, a figure, all of them, the tuning, FedFa-Delta's sensitivity, or what "
            "could make it faster",
            show_default=False,
        ),
    ],
    profile: Annotated[
        ProfileName, typer.Option(help="full: the paper's settings, for GPUs")
    ] = "cpu",
    seeds: Annotated[
        int, typer.Option(min=1, help="of tables 2 to 4, figures 3, 4, sensitivity and further")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="the results' folder; results/PROFILE by default", show_default=False),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="runs side by side; one per core by default", show_default=False),
    ] = None,
) -> None:
    """Reproduce section 5 of the FedFa paper: runs, tables and figures, in one folder.

    Each run is simulated once and shared; what is there already is not run again, so that an
    interrupted command goes on. The data lies in FEDFA_DATA; where there is none, digits it is.
    """
    folder = out or Path("results") / profile
    results.make_folder("--out", folder)
    chosen = _with_data(profiles.PROFILES[profile], Path(os.environ.get(DATA, "data")))
    rates = Rates() if what == "tune" else profiles.tuned(chosen.name)
    wanted = Plan(chosen, rates, seeds)
    parts: Sequence[Part] = PARTS if what == "all" else [p for p in PARTS if p == what]
    found: dict[str, Outcome] = {}

    def make(runs: Sequence[Run]) -> None:
        _make(folder / "runs", runs, at_once or usable_cores())
        found.update((run.id, outcomes.read(folder / "runs", run)) for run in runs)

    began = time.monotonic()
    try:
        match what:
            case "tune":
                make(wanted.tuning())
                _write_rates(wanted, found, folder)
            case "sensitivity":
                for one in _beside_digits(chosen, profiles.SENSITIVITY):
                    make(_with_target(wanted, one, wanted.sensitivity(one)))
                    _write_one(tables.sensitivity, wanted, one, found, folder)
            case "further":
                for one in _beside_digits(chosen, profiles.FURTHER):
                    make(_with_target(wanted, one, wanted.further(one)))
                    _write_one(tables.further, wanted, one, found, folder)
            case _:
                make(wanted.needed(parts))
                _write(wanted, parts, found, folder)
    except KeyboardInterrupt:
        console.error("interrupted; the same command goes on from here")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    console.say(f"{len(found)} runs, {views.duration(time.monotonic() - began)}: {folder}")


def _with_data(profile: Profile, data: Path) -> Profile:
    """The benchmarks whose data is there; on digits where there is none."""
    there = tuple(
        one for one in profile.benchmarks if all((data / place).exists() for place in one.needs)
    )
    for one in profile.benchmarks:
        lacking = [place for place in one.needs if not (data / place).exists()]
        if lacking and there:
            console.warn(f"{one.name}: left out, {data} has no {' and no '.join(lacking)}")
    if not there:
        console.warn(f"{DATA}: {data} has none of the paper's data; everything runs on digits")
        return replace(profile, benchmarks=profiles.DIGITS, sweep=profiles.DIGITS[1].name)
    if profile.sweep not in {one.name for one in there}:
        profile = replace(profile, sweep=there[0].name)
    return replace(profile, benchmarks=there)


def _beside_digits(profile: Profile, names: Sequence[str]) -> list[Benchmark]:
    """digits, then the benchmarks of these names whose data is there."""
    there = {one.name: one for one in profile.benchmarks}
    return [profiles.DIGITS[-1], *(there[name] for name in names if name in there)]


def _make(folder: Path, runs: Sequence[Run], at_once: int) -> None:
    waiting = runner.missing(folder, runs)
    console.say(f"{len(runs)} runs, {len(waiting)} of them to be made, {at_once} at once")
    if not waiting:
        return
    began = time.monotonic()
    with console.progress() as bar:
        task = bar.add_task("client updates", total=1.0)
        for progress in runner.make(folder, waiting, num_at_once=at_once):
            done = progress.updates / progress.total
            bar.update(task, completed=done)
            if progress.finished is not None:
                best = outcomes.read(folder, progress.finished).best
                seconds = time.monotonic() - began
                eta = seconds * (1 - done) / done if done else None
                console.err.print(
                    f"{views.duration(seconds):>6}  {progress.finished.title} seed "
                    f"{progress.finished.seed}: best {best:.4f}; {progress.num_left} to go, eta "
                    f"{views.duration(eta)}",
                    soft_wrap=True,
                )


def _write(wanted: Plan, parts: Sequence[Part], found: dict[str, Outcome], folder: Path) -> None:
    from fedfa.paper import figures  # imports matplotlib

    targets = _targets(wanted, wanted.profile.benchmarks, found)
    page = [_introduction(wanted, targets, found)]
    for name in [each for each in TABLES if each in parts]:
        table = tables.draw(name, wanted, found, targets)
        _write_table(table, _about(wanted, targets), folder)
        page.append(table.markdown)
    for part in [each for each in FIGURES if each in parts]:
        with results.writing("--out", folder):
            (folder / f"{part}.png").write_bytes(figures.draw(part, wanted, found, targets))
        page.append(f"## Figure {part[-1]}\n\n![{part}]({part}.png)\n")
    with results.writing("--out", folder):
        if parts == PARTS:
            page.insert(1, tables.versus(wanted, found, targets).markdown)
            (folder / "runs.csv").write_text(tables.runs(found, targets), "utf-8")
            (folder / "README.md").write_text("\n".join(page), "utf-8")
    _write_specs(found, folder)


def _with_target(
    wanted: Plan, benchmark: Benchmark, rows: Sequence[tuple[str, list[Run]]]
) -> list[Run]:
    """FedAvg's runs, which set the target, and these, seed by seed: cut off, whole seeds remain."""
    runs = [*wanted.seeded(benchmark, "fedavg"), *(run for _, runs in rows for run in runs)]
    return sorted(runs, key=lambda run: run.seed)


def _write_one(
    draw: Callable[[Plan, Benchmark, Outcomes, float], Table],
    wanted: Plan,
    benchmark: Benchmark,
    found: dict[str, Outcome],
    folder: Path,
) -> None:
    """A table that each benchmark has of its own."""
    targets = _targets(wanted, [benchmark], found)
    table = draw(wanted, benchmark, found, targets[benchmark.name])
    _write_table(table, _about(wanted, targets), folder)
    _write_specs(found, folder)


def _targets(
    wanted: Plan, benchmarks: Sequence[Benchmark], found: dict[str, Outcome]
) -> dict[str, float]:
    """The target of each benchmark that FedAvg was run on."""
    targets = {}
    for one in benchmarks:
        fedavg = [run.id for run in wanted.seeded(one, "fedavg")]
        if all(id in found for id in fedavg):
            targets[one.name] = outcomes.target([found[id] for id in fedavg])
    return targets


def _write_table(table: Table, about: str, folder: Path) -> None:
    with results.writing("--out", folder):
        (folder / f"{table.name}.md").write_text(f"{table.markdown}\n{about}\n", "utf-8")
        (folder / f"{table.name}.csv").write_text(table.csv, "utf-8")


def _write_specs(found: dict[str, Outcome], folder: Path) -> None:
    with results.writing("--out", folder):
        specs = _written_specs(folder / "specs.json")  # of the other parts, made before
        specs |= {run: one.run.spec.model_dump(mode="json") for run, one in found.items()}
        lines = [f"{json.dumps(run)}: {json.dumps(spec)}" for run, spec in sorted(specs.items())]
        (folder / "specs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _written_specs(path: Path) -> dict[str, object]:
    try:
        specs = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON ({error}); delete it") from error
    if not isinstance(specs, dict):
        raise InvalidInput(f"{path}: expected the specs by run; delete it")
    return specs


def _about(wanted: Plan, targets: dict[str, float]) -> str:
    """What a table of one folder needs to be told from one of other seeds, data or releases."""
    goals = ", ".join(f"{name} {goal:g}" for name, goal in targets.items()) or "none"
    return (
        f"Profile {wanted.profile.name}; targets: {goals}; seeds: {wanted.seeds} where the table "
        f"has several (from 0 up). Made with {_made_with()}."
    )


def _made_with() -> str:
    releases = ", ".join(f"{name} {release(name)}" for name in ("fedfa", *RELEASES))
    return f"{releases}, Python {platform.python_version()}, on {processor()}"


def _introduction(wanted: Plan, targets: dict[str, float], found: dict[str, Outcome]) -> str:
    profile = wanted.profile
    lines = [
        f"# The paper's evaluation, profile {profile.name}",
        "",
        f"```bash\nfedfa paper all --profile {profile.name} --seeds {wanted.seeds}\n```",
        "",
        f"Made with {_made_with()}. `specs.json` has the spec of every run. Clients' delays are "
        "long-tailed (Pareto 1.5, one draw for each client); training itself takes no "
        f"virtual time. A benchmark's target is {profiles.TARGET_SHARE:.0%} of the best accuracy "
        "that FedAvg reaches within the budget.",
        "",
        "| benchmark | clients' updates | Mc | K | target | learning rates |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for one in profile.benchmarks:
        rates = {name: wanted.rates.of(one, name) for name in (m.name for m in METHODS)}
        is_tuned = all(wanted.rates.is_tuned(one, name) for name in rates)
        if len(set(rates.values())) == 1:
            shown = f"{rates[METHODS[0].name]:g}"
        else:
            shown = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        goal = f"{targets[one.name]:g}" if one.name in targets else "-"
        lines.append(
            f"| {one.title} | {one.updates} | {one.concurrency} | {one.window} | {goal} | "
            f"{shown} ({'tuned' if is_tuned else 'not tuned'}) |"
        )
    ended = [
        f"- {one.run.title} seed {one.run.seed}: {one.reason}"
        for one in found.values()
        if one.reason
    ]
    if ended:
        lines += ["", "Runs that ended early:", "", *ended]
    return "\n".join(lines) + "\n"


def _write_rates(wanted: Plan, found: dict[str, Outcome], folder: Path) -> None:
    """The best rate by the mean accuracy over a run, and every figure that it was chosen by."""
    best: dict[str, dict[str, float]] = {}
    measured: dict[str, dict[str, dict[float, float]]] = {}
    for one in found.values():
        family, method = one.run.benchmark.family, one.run.method
        measured.setdefault(family, {}).setdefault(method, {})[one.run.rate] = round(one.mean, 4)
    for family, methods in measured.items():
        for method, scores in methods.items():
            best.setdefault(family, {})[method] = max(scores, key=lambda rate: scores[rate])
    text = yaml.safe_dump({wanted.profile.name: best}, sort_keys=False)
    with results.writing("--out", folder):
        (folder / "tuned.yaml").write_text(text, "utf-8")
        (folder / "tuning.json").write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    console.say(text)
