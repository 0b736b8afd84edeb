"""The paper's evaluation: its plan, what it reads out of logs, and a small one made for real."""

import csv
import io
import json
import shutil
import statistics
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from fedfa import manifests
from fedfa.cli import paper
from fedfa.cli.paper import What
from fedfa.errors import InvalidInput
from fedfa.history import HistoryReader
from fedfa.paper import figures, outcomes, plan, profiles, runner, tables
from fedfa.paper.outcomes import Outcome, Point
from fedfa.paper.plan import PARTS, Plan, Run
from fedfa.paper.profiles import CPU, DIGITS, FULL, METHODS, Profile, Rates
from fedfa.simulate.workers import processor
from fedfa.store import DirectoryStore

pytestmark = pytest.mark.timeout(400)  # of which seven runs take most, each with its worker

TINY = tuple(
    replace(
        benchmark,
        fields=benchmark.fields | {"clients": 8, "local": {"steps": 2, "batch_size": 32}},
        concurrency=4,
        window=2,
        updates=16,
    )
    for benchmark in DIGITS
)
SMALL = replace(CPU, benchmarks=TINY, sweep="digits-noniid", concurrencies=(4, 8), windows=(1, 2))


def test_the_command_knows_every_part() -> None:
    assert get_args(What) == (*PARTS, "all", "tune", "sensitivity", "further")


@pytest.mark.parametrize(
    "profile", [CPU, FULL, replace(CPU, benchmarks=DIGITS, sweep=TINY[0].name)]
)
def test_every_run_of_every_profile_is_a_valid_spec_and_made_once(profile: Profile) -> None:
    # given
    whole = Plan(profile, Rates(), seeds=3)
    # when
    runs = whole.needed(PARTS)
    # then
    assert len({run.id for run in runs}) == len(runs)
    assert len({run.spec.model_dump_json() for run in runs}) == len(runs)
    by_part = [run.id for part in PARTS for run in whole.needed([part])]
    assert set(by_part) == {run.id for run in runs}
    assert len(by_part) > 1.5 * len(runs)  # tables share them


def test_every_method_is_evaluated_after_the_same_number_of_client_updates() -> None:
    whole = Plan(FULL, Rates(), seeds=1)
    for benchmark in FULL.benchmarks:
        for window, concurrency in [(benchmark.window, benchmark.concurrency), (4, 6), (3, 8)]:
            cadences = set()
            for method in METHODS:
                own = whole.run(benchmark, method.name)
                run = replace(own, window=window, concurrency=concurrency)
                per_version = {"one": 1, "window": window, "round": concurrency}
                every = run.spec.evaluation.every_versions * per_version[method.merges]
                cadences.add(every)
            assert len(cadences) == 1
            assert cadences.pop() % benchmark.concurrency == 0


def test_the_sweep_has_no_more_slots_than_the_benchmark_has_clients() -> None:
    sst2 = next(one for one in CPU.benchmarks if one.name == "sst2")
    whole = Plan(replace(CPU, benchmarks=(sst2,), sweep="sst2"), Rates(), seeds=1)
    assert whole.concurrencies == [5, 10]
    assert Plan(CPU, Rates(), seeds=1).concurrencies == [5, 10, 20]
    for run in whole.needed(PARTS):
        assert run.concurrency <= 10
        assert run.spec.clients == 10


@pytest.mark.parametrize("name", ["digits-noniid", *profiles.SENSITIVITY])
def test_the_sensitivity_changes_one_setting_at_a_time_and_evaluates_equally_often(
    name: str,
) -> None:
    benchmark = next(one for one in (*DIGITS, *CPU.benchmarks) if one.name == name)
    whole = Plan(CPU, Rates(), seeds=2)
    own = whole.run(benchmark, "fedfa-delta").spec
    rows = whole.sensitivity(benchmark)
    assert [len(runs) for _, runs in rows] == [2] * len(rows)
    assert rows[0][1][0].spec == own
    specs = {run.spec.model_dump_json() for _, runs in rows for run in runs}
    assert len(specs) == 2 * len(rows)
    for title, (run, _) in rows[1:]:
        spec = run.spec
        changed = {key for key, value in spec if value != getattr(own, key)}
        section = {"server_lr": "rule", "K": "rule", "Mc": "concurrency", "alpha": "partition"}
        assert changed == {section.get(title.split()[0], "local")}, title
        assert spec.evaluation == own.evaluation
        assert run.updates % run.evaluated_every == 0


@pytest.mark.parametrize("name", ["digits-noniid", *profiles.FURTHER])
def test_what_could_be_faster_runs_beside_the_very_fedbuffs_of_the_tables(name: str) -> None:
    benchmark = next(one for one in (*DIGITS, *CPU.benchmarks) if one.name == name)
    whole = Plan(CPU, profiles.tuned("cpu"), seeds=2)
    rows = dict(whole.further(benchmark))
    for method in ("fedbuff", "fedbuff-at-once", "fedfa-delta"):
        title = "as it is" if method == "fedfa-delta" else profiles.METHOD[method].title
        of_the_tables = whole.seeded(benchmark, method)
        assert [run.id for run in rows[title]] == [run.id for run in of_the_tables]
    rules = {title: runs[0].spec.rule.model_dump() for title, runs in rows.items()}
    three = rules["server_lr 3, staleness polynomial"]
    assert (three["server_lr"], three["staleness"]["kind"]) == (3.0, "polynomial")
    assert rules["K = 10"] == rules["as it is"] | {"window": 10}
    assert ("K = 3" in rows) == (benchmark.window != 3)  # SST-2's own
    ids = [run.id for runs in rows.values() for run in runs]
    assert len(set(ids)) == len(ids) == 2 * len(rows)
    # and whole seeds are there, wherever it is cut off
    seeds = [run.seed for run in paper._with_target(whole, benchmark, whole.further(benchmark))]
    assert seeds == [0] * (len(rows) + 1) + [1] * (len(rows) + 1)


def test_the_literal_step_is_server_lr_k() -> None:
    spec = Plan(FULL, Rates(), 1).run(FULL.benchmarks[0], "fedfa-delta-literal").spec
    assert spec.rule.model_dump()["server_lr"] == FULL.benchmarks[0].window


def test_tuning_gives_every_method_the_same_search_on_a_seed_that_is_not_reported() -> None:
    runs = Plan(CPU, Rates(), seeds=3).tuning()
    searched = {(run.benchmark.family, run.method): set[float]() for run in runs}
    for run in runs:
        searched[run.benchmark.family, run.method].add(run.rate)
        assert run.seed == profiles.TUNING_SEED
        assert run.updates % run.evaluated_every == 0
    families = {benchmark.family: benchmark for benchmark in CPU.benchmarks}
    assert len(searched) == len(families) * len(METHODS)
    for (family, _), rates in searched.items():
        assert rates == set(families[family].rates)


def test_committed_rates_were_searched() -> None:
    for profile in (CPU, FULL):
        found = profiles.tuned(profile.name).found
        families = {benchmark.family: benchmark for benchmark in (*profile.benchmarks, *DIGITS)}
        for family, rates in found.items():
            for method, rate in rates.items():
                assert method in profiles.METHOD
                assert rate in families[family].rates


# -- what is read out of the runs ----------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, dict[str, Outcome]]:
    """The runs of table 6 and figure 1, for real."""
    folder = tmp_path_factory.mktemp("paper")
    whole = Plan(SMALL, Rates(), seeds=1)
    runs = whole.needed(["table6", "fig1"])
    ended = [
        progress.finished
        for progress in runner.make(folder, runs, num_at_once=2)
        if progress.finished is not None
    ]
    assert {run.id for run in ended} == {run.id for run in runs}
    return folder, whole, {run.id: outcomes.read(folder, run) for run in runs}


def test_finished_runs_are_not_made_again(made: Any) -> None:
    folder, whole, _ = made
    runs = whole.needed(["table6", "fig1"])
    assert runner.missing(folder, runs) == []
    another = replace(runs[0], seed=5)
    assert runner.missing(folder, [*runs, another]) == [another]


def test_a_kept_run_outlives_a_new_field_of_specs_and_not_another_default(
    made: Any, tmp_path: Path
) -> None:
    # given
    folder, whole, _ = made
    run = whole.run(whole.sweep, "fedfa-delta")
    shutil.copytree(folder / run.id, tmp_path / run.id)
    path = tmp_path / run.id / "spec.json"
    kept = json.loads(path.read_text())
    # when: made before there was such a field
    del kept["spec"]["compression"]
    path.write_text(json.dumps(kept))
    # then
    assert runner.missing(tmp_path, [run]) == []
    # when: made when its default was another one
    kept["spec"]["compression"] = "bf16"
    path.write_text(json.dumps(kept))
    # then
    with pytest.raises(InvalidInput, match="another spec"):
        runner.missing(tmp_path, [run])


def test_points_are_the_logs_own(made: Any) -> None:
    folder, whole, found = made
    store = DirectoryStore(folder)
    for outcome in found.values():
        history = HistoryReader(store, outcome.run.id).refresh()
        assert history.state is not None
        assert history.state.num_merged == outcome.run.updates
        assert [p.accuracy for p in outcome.points] == [
            evaluation.metrics["accuracy"] for evaluation in history.evaluations
        ]
        # in virtual seconds: when the manifest was committed that made the version
        born = {
            m.manifest.state.version: m.manifest.at for m in manifests.log(store, outcome.run.id)
        }
        first: dict[int, float] = {}
        for committed in manifests.log(store, outcome.run.id):
            first.setdefault(committed.manifest.state.version, committed.manifest.at)
        assert born.keys() == first.keys()
        assert [p.seconds for p in outcome.points] == [
            first[evaluation.version] for evaluation in history.evaluations
        ]
    fedavg = found[whole.run(whole.sweep, "fedavg").id]
    assert [point.rounds for point in fedavg.points] == [0, 1, 2, 3, 4]
    fedfa = found[whole.run(whole.sweep, "fedfa-delta").id]
    assert fedfa.points[-1].rounds == 4
    assert all(len(outcome.points) == 5 for outcome in found.values())
    assert fedfa.points[-1].seconds < fedavg.points[-1].seconds


def test_tables_and_figures_are_made_of_real_runs(made: Any) -> None:
    _, whole, found = made
    targets = {whole.sweep.name: outcomes.target([found[whole.run(whole.sweep, "fedavg").id]])}
    table = tables.draw("table6", whole, found, targets)
    assert [row[0] for row in table.rows] == [
        "FedAvg",
        "FedAvg with FedProx",
        "FedAvg with FedNova",
        "FedFa-Delta",
        "FedFa-Delta with FedProx",
        "FedFa-Delta with FedNova",
    ]
    records = list(csv.DictReader(io.StringIO(table.csv)))
    assert len(records) == 18
    assert float(records[0]["mean"]) <= 4  # rounds: FedAvg reaches its own target
    for part in ("fig1", "fig2", "fig6"):
        assert figures.draw(part, whole, found, targets).startswith(b"\x89PNG")


# -- tables from known numbers -------------------------------------------------------------------


def outcome(run: Run, *accuracies: float, pace: float) -> Outcome:
    """Evaluated after every round; pace: seconds a round."""
    points = tuple(Point(at * pace, float(at), value) for at, value in enumerate(accuracies))
    return Outcome(run, points, None, "")  # type: ignore[arg-type]  # no table looks at the log


def test_time_and_rounds_to_the_target_are_means_over_the_seeds_that_reach_it() -> None:
    # given
    whole = Plan(replace(SMALL, benchmarks=TINY[:1], sweep=TINY[0].name), Rates(), seeds=2)
    found = {}
    for method in METHODS:
        for run in whole.seeded(TINY[0], method.name):
            found[run.id] = outcome(run, 0.1, 0.2, 0.3, pace=1.0)
    for run, pace in zip(whole.seeded(TINY[0], "fedavg"), (10.0, 20.0), strict=True):
        found[run.id] = outcome(run, 0.1, 0.5, 0.8, pace=pace)
    for run in whole.seeded(TINY[0], "fedbuff"):
        found[run.id] = outcome(run, 0.1, 0.3, 0.8, pace=3.0)
    for run, last in zip(whole.seeded(TINY[0], "fedfa-delta"), (0.9, 0.4), strict=True):
        found[run.id] = outcome(run, 0.1, 0.3, last, pace=3.0)
    goal = outcomes.target([found[run.id] for run in whole.seeded(TINY[0], "fedavg")])
    # when
    times = tables.draw("table2", whole, found, {TINY[0].name: goal})
    rounds = tables.draw("table3", whole, found, {TINY[0].name: goal})
    # then
    assert goal == 0.776  # 97 % of 0.8, rounded down
    shown = {row[0]: row[1] for row in times.rows}
    deviation = statistics.stdev([20.0, 40.0])
    assert shown["FedAvg"] == f"30.0 ± {deviation:.1f} (1.0x)"
    assert shown["FedFa-Delta"] == "6.0 [1 of 2] (0.0x)"  # seeds: 20 / 6, and never
    assert shown["FedBuff"] == "6.0 ± 0.0 (3.3x)"  # seeds: 20 / 6 and 40 / 6
    assert shown["Port"] == "not reached"
    assert {row[0]: row[1] for row in rounds.rows}["FedFa-Delta"] == "2.0 [1 of 2] (0.0x)"
    assert "| FedFa-Delta | 6.0 [1 of 2] (0.0x) |" in times.markdown
    records = {row["method"]: row for row in csv.DictReader(io.StringIO(times.csv))}
    assert records["FedBuff"]["mean"] == "6.0"
    assert float(records["FedBuff"]["speed_up"]) == pytest.approx(20 / 6)
    assert (records["Port"]["mean"], records["Port"]["speed_up"]) == ("", "0.0")


def test_curves_reach_to_where_the_slowest_reaches_the_target() -> None:
    # given
    whole = Plan(replace(SMALL, benchmarks=TINY[:1], sweep=TINY[0].name), Rates(), seeds=1)
    found = {
        run.id: outcome(run, 0.1, 0.5, 0.8, pace=30.0 if method.name == "fedavg" else 1.0)
        for method in METHODS
        for run in whole.seeded(TINY[0], method.name)
    }
    # when
    figure = figures._curves(whole, found, {TINY[0].name: 0.8}, lambda p: p.seconds, "time")
    # then
    (axis,) = figure.axes
    assert axis.get_xlim()[1] > 60
    assert len(figure.legends[0].get_texts()) == len(METHODS)


def test_every_run_has_its_line_and_every_seed_its_ratio() -> None:
    # given: FedFa-Delta twice as fast as FedAvg, and with the other seed never there
    whole = Plan(replace(SMALL, benchmarks=TINY[:1], sweep=TINY[0].name), Rates(), seeds=2)
    goals = {TINY[0].name: 0.75}
    found = {}
    for method in METHODS:
        for run in whole.seeded(TINY[0], method.name):
            found[run.id] = outcome(run, 0.1, 0.8, pace=4.0)
    good, bad = whole.seeded(TINY[0], "fedfa-delta")
    found[good.id] = outcome(good, 0.1, 0.8, pace=2.0)
    found[bad.id] = replace(outcome(bad, 0.1, pace=2.0), reason="it diverged")
    # when
    table = tables.versus(whole, found, goals)
    lines = list(csv.DictReader(io.StringIO(tables.runs(found, goals))))
    # then
    assert [row[1:] for row in table.rows] == [["never (2.00, never)", "never (1.00, never)"]] * 3
    assert len(lines) == len(found)
    by_run = {line["run"]: line for line in lines}
    assert by_run[good.id]["time_to_target"] == "2.0"
    assert (by_run[bad.id]["time_to_target"], by_run[bad.id]["ended_early"]) == ("", "it diverged")


def test_the_sensitivity_counts_client_updates_whatever_the_concurrency() -> None:
    # given: two rounds of Mc updates to the target, and a run that fails
    whole = Plan(SMALL, Rates(), seeds=1)
    benchmark = DIGITS[-1]
    rows = whole.sensitivity(benchmark)
    found = {run.id: outcome(run, 0.1, 0.3, 0.8, pace=2.0) for _, (run,) in rows}
    (failed,) = dict(rows)["server_lr 5"]
    found[failed.id] = replace(outcome(failed, 0.1, pace=2.0), reason="it diverged")
    # when
    table = tables.sensitivity(whole, benchmark, found, 0.75)
    # then
    shown = {title: cells for title, *cells in table.rows}
    assert shown["as it is"] == ["4.0", "20", "0.800", "0 of 1"]
    assert shown["Mc = 20"] == ["4.0", "40", "0.800", "0 of 1"]
    assert shown["server_lr 5"] == ["not reached", "not reached", "0.100", "1 of 1"]
    assert table.markdown.count("\n| ") == len(rows) + 1
    assert len(list(csv.DictReader(io.StringIO(table.csv)))) == 4 * len(rows)


def test_what_could_be_faster_is_compared_seed_by_seed_and_told_from_what_diverged() -> None:
    # given: the target after 12 and 8 seconds at FedBuff's, after 6 at once
    whole = Plan(SMALL, Rates(), seeds=2)
    rows = dict(whole.further(TINY[1]))
    found = {run.id: outcome(run, 0.1, 0.8, pace=6.0) for runs in rows.values() for run in runs}
    for run, pace in zip(whole.seeded(TINY[1], "fedbuff"), (12.0, 8.0), strict=True):
        found[run.id] = outcome(run, 0.1, 0.8, pace=pace)
    failed, lost = rows["server_lr 3, staleness polynomial"]
    found[failed.id] = replace(outcome(failed, 0.1, 0.8, pace=3.0), reason="it diverged")
    found[lost.id] = outcome(lost, 0.1, 0.6, 0.4, pace=3.0)  # nearer to 0.1 than to 0.75
    slow, late = rows["K = 10"]
    found[slow.id] = outcome(slow, 0.1, 0.5, pace=6.0)
    found[late.id] = outcome(late, 0.1, 0.5, 0.8, pace=8.0)
    # when
    table = tables.further(whole, TINY[1], found, 0.75)
    # then
    shown = {title: cells for title, *cells in table.rows}
    assert shown.keys() == rows.keys()
    assert shown["FedBuff"][0] == "1.00 (1.00, 1.00)"
    assert shown["as it is"][:3] == ["1.33 (2.00, 1.33)", "1.00 (1.00, 1.00)", "6.0 ± 0.0"]
    three = shown["server_lr 3, staleness polynomial"]
    assert (three[0], three[-1]) == ("never (4.00, never)", "2 of 2")
    assert shown["K = 10"][0] == "never (never, 0.50)"
    assert shown["K = 10"][-1] == "0 of 2"
    assert len(list(csv.DictReader(io.StringIO(table.csv)))) == 5 * len(rows)


@pytest.mark.parametrize(
    ("fedavg", "method", "expected"),
    [
        ([10.0, 20.0, 90.0], [5.0, 2.0, 30.0], 3.0),
        ([10.0, 20.0, 90.0], [5.0, None, None], 0.0),
        ([None, None, 10.0], [5.0, 2.0, 5.0], inf),
        ([None, 10.0], [None, 5.0], 2.0),  # the first seed says nothing
        ([None], [None], None),
        ([0.0, 8.0], [0.0, 0.0], 1.0),
    ],
)
def test_a_speed_up_is_the_median_over_the_seeds(
    fedavg: list[float | None], method: list[float | None], expected: float | None
) -> None:
    assert outcomes.speed_up(fedavg, method) == expected


def test_a_run_that_ended_early_counts_as_failing_from_then_on() -> None:
    run = Plan(SMALL, Rates(), 1).run(TINY[0], "fedfa-delta-literal")
    whole = outcome(run, 0.1, 0.4, 0.4, 0.4, 0.4, pace=1.0)
    cut = outcome(run, 0.1, 0.4, pace=1.0)
    # the version it failed at is evaluated too, whatever the cadence
    last = Point(1.5, 1.5, 0.4, is_due=False)
    with_last = replace(cut, points=(*cut.points, last))
    assert [one.mean for one in (whole, cut, with_last)] == pytest.approx([0.4, 0.1, 0.1])


def test_a_folder_tells_what_each_table_was_made_from(made: Any, tmp_path: Path) -> None:
    # given
    _, whole, found = made
    rates = Rates({"digits": {method.name: 0.2 for method in METHODS}})
    (tmp_path / "specs.json").write_text('{"another": {}}')
    # when
    paper._write(replace(whole, rates=rates), ["fig2"], found, tmp_path)
    paper._write(whole, ["table6"], found, tmp_path)
    # then
    specs = json.loads((tmp_path / "specs.json").read_text())
    assert specs.keys() == {"another", *found}
    about = (tmp_path / "table6.md").read_text().splitlines()[-1]
    assert "targets: digits-noniid 0." in about
    assert "seeds: 1 " in about
    assert "fedfa 0." in about or "fedfa 1." in about
    assert about.endswith(f", on {processor()}.")
    introduction = paper._introduction(replace(whole, rates=rates), {}, found)
    assert "| 0.2 (tuned) |" in introduction


def test_committed_tuning_is_yaml_of_known_profiles() -> None:
    text = (Path(plan.__file__).parent / "tuned.yaml").read_text()
    assert set(yaml.safe_load(text)) == {"cpu", "full"}
    json.dumps(yaml.safe_load(text))
