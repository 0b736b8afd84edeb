"""What the dashboard reads and answers: the log in bounded memory, and an API with few doors."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from fedfa import dashboard, keys, manifests
from fedfa.dashboard.bounded import MOST_BINS, Histogram, Thinned
from fedfa.dashboard.evaluations import Evaluations
from fedfa.dashboard.feed import Live
from fedfa.dashboard.follower import CHUNK, NEWEST, POINTS, ROWS, SAMPLE, Follower
from fedfa.dashboard.view import view_of
from fedfa.errors import NotFound
from fedfa.history import HistoryReader
from fedfa.observability import Route
from fedfa.spec import Submission
from fedfa.store import DirectoryStore
from fedfa.summary import summarize
from tests.long_log import STARVED, LongLog, write_long_log
from tests.unit.builders import submitted
from tests.unit.sample_run import CREATED_AT, evaluate, write_sample_run

TOKEN = "a-token-of-sixteen-characters-or-more"
SPEC = "{task: {name: digits}, clients: 6, concurrency: 2}"


class CountingStore(DirectoryStore):
    """Remembers which manifests were read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        self.read.append(key)
        return super().get(key, max_bytes=max_bytes)

    def manifests_read(self) -> list[str]:
        return [key for key in self.read if "/manifests/" in key]


@pytest.fixture
def readers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as readers:
        yield readers


def follow(store: DirectoryStore, name: str, readers: ThreadPoolExecutor) -> Follower:
    follower = Follower(store, name, readers=readers)
    follower.look()
    while follower.read():
        pass
    return follower


# -- bounded memory --------------------------------------------------------------------------------


def test_a_thinned_series_keeps_evenly_spaced_values_in_any_order() -> None:
    forwards, backwards = Thinned[int](10), Thinned[int](10)
    for number in range(100):
        forwards.add(number, number)
        backwards.add(99 - number, 99 - number)
    assert forwards.values() == list(range(0, 100, 16))
    assert backwards.values() == forwards.values()
    assert forwards.missing([*range(100), 112]) == [112]


def test_a_histogram_widens_its_bins_and_loses_no_count() -> None:
    histogram, values = Histogram(), [*range(200), 5, 5, 1000]
    for value in values:
        histogram.add(value)
    assert len(histogram.counts) <= MOST_BINS
    expected = [0] * len(histogram.counts)
    for value in values:
        expected[value // histogram.width] += 1
    assert histogram.counts == expected
    assert (histogram.total, histogram.max) == (len(values), 1000)


def test_a_short_run_is_counted_whole_as_its_history_tells(
    tmp_path: Path, readers: ThreadPoolExecutor
) -> None:
    # given
    store = DirectoryStore(tmp_path)
    write_sample_run(store, stop={"updates": 60}, concurrency=4)
    history = HistoryReader(store, "fed").refresh()
    summary = summarize(history, now=history.at)
    # when
    follower = follow(store, "fed", readers)
    view = view_of(follower)
    # then
    assert view["coverage"] == 1.0
    assert len(follower.rows) == len(history.rows)
    for name in ("status", "reason", "version", "merged", "rejected", "abandoned", "metric"):
        assert view[name] == getattr(summary, name)
    assert summary.latest is not None
    assert view["latest"]["value"] == summary.latest.value
    assert view["updates_per_second"] == pytest.approx(summary.updates_per_second, rel=1e-3)
    assert view["staleness"]["mean"] == pytest.approx(summary.staleness_mean, abs=1e-3)
    assert sum(view["staleness"]["counts"]) == summary.merged
    assert sum(each["merged"] for each in view["clients"]["rows"]) == summary.merged
    assert sum(each["merged"] for each in view["trainers"]) == summary.merged
    assert sum(each["refused"] for each in view["clients"]["rows"]) == 1 + summary.rejected
    assert view["versions"]["version"][-1] == summary.version


def test_every_row_names_when_its_job_was_opened(
    tmp_path: Path, readers: ThreadPoolExecutor
) -> None:
    store = DirectoryStore(tmp_path)
    write_sample_run(store)
    rows = [row for row in follow(store, "fed", readers).rows if row["slot"] is not None]
    for row in rows:
        opened = [
            committed.manifest.at
            for committed in manifests.log(store, "fed")
            if committed.manifest.state.slots
            and committed.manifest.state.slots[row["slot"]].generation == row["generation"]
        ]
        assert row["opened_at"] == pytest.approx(opened[0] - CREATED_AT, abs=1e-3)


def test_a_long_log_is_drawn_from_a_sample_and_then_read_whole(
    tmp_path: Path, readers: ThreadPoolExecutor
) -> None:
    # given
    versions = 2000
    write_long_log(tmp_path, "long", versions)
    store = CountingStore(tmp_path)
    # when
    follower = follow(store, "long", readers)
    # then: it can be drawn, after few reads
    assert follower.is_drawable
    num_read = len(store.manifests_read())
    assert num_read <= SAMPLE + NEWEST + CHUNK
    view = view_of(follower)
    assert view["version"] == versions - 4
    assert 0.3 < view["coverage"] < 0.4
    assert view["staleness"]["mean"] == pytest.approx(3.0, abs=0.1)  # 0 to 6, evenly
    assert view["clients"]["starved"] == 1
    assert view["clients"]["rows"][0]["name"] == STARVED
    # when there is time
    while follower.read_older():
        pass
    # then each manifest was read once, and all is counted
    view = view_of(follower)
    assert view["coverage"] == 1.0
    assert sum(view["staleness"]["counts"]) == versions
    assert sum(each["merged"] for each in view["clients"]["rows"]) == versions
    read = store.manifests_read()
    assert {keys.manifest("long", n) for n in range(versions + 1)} <= set(read)
    assert len(read) <= versions + 20  # those that finding the newest looked at
    # and nothing has grown with the log
    assert len(follower.rows) <= ROWS
    assert len(view["versions"]["version"]) <= POINTS + 1
    assert len(json.dumps(view)) < 40_000


def test_a_new_version_costs_a_few_reads(tmp_path: Path, readers: ThreadPoolExecutor) -> None:
    log = write_long_log(tmp_path, "long", 900)
    store = CountingStore(tmp_path)
    follower = follow(store, "long", readers)
    store.read.clear()
    log.add()
    log.move_head()
    assert follower.look()
    assert follower.read()
    assert view_of(follower)["version"] == 897
    assert len(store.manifests_read()) <= 5
    assert not follower.look()


def test_a_federation_that_was_deleted_and_submitted_again_begins_anew(
    tmp_path: Path, readers: ThreadPoolExecutor
) -> None:
    # given
    store = DirectoryStore(tmp_path)
    write_sample_run(store)
    follower = follow(store, "fed", readers)
    for info in list(store.list("fed/")):
        store.delete(info.key)
    # when
    with pytest.raises(NotFound):
        follower.look()
    again = submitted("fed", seed=2).model_copy(update={"uid": "f" * 32})
    store.create(keys.spec("fed"), again.model_dump_json(by_alias=True).encode())
    follower.look()
    # then
    view = view_of(follower)
    assert (view["uid"], view["status"], view["version"]) == ("f" * 32, "waiting", 0)
    assert view["metrics"]["version"] == []


def test_evaluations_are_thinned_and_the_newest_is_always_there(
    tmp_path: Path, readers: ThreadPoolExecutor
) -> None:
    store = CountingStore(tmp_path)
    for version in range(0, 3000, 10):
        evaluate(store, "fed", version, at=version)
    found = Evaluations(store, "fed", every_versions=10, most=50, readers=readers)
    found.refresh(3000)
    assert len(store.read) <= 60
    versions = [each.version for each in found.values()]
    assert versions[-1] == 2990
    assert {b - a for a, b in pairwise(versions[:-1])} == {60, 70}
    store.read.clear()
    evaluate(store, "fed", 3000, at=3000.0)
    evaluate(store, "fed", 2985, at=3000.0)
    assert found.refresh(3000)
    assert found.latest is not None
    assert found.latest.version == 3000
    assert store.read == ["fed/evals/3000.json"]


# -- the API ---------------------------------------------------------------------------------------


class Site:
    """A dashboard over a folder, and what its control announced."""

    def __init__(
        self, store: DirectoryStore, *, token: str | None, live: Live | None = None, **routes: Route
    ) -> None:
        self.announced: list[Submission] = []
        self.feed = dashboard.Feed(store, readers=4, share=1.0, live=live)
        control = token and dashboard.Control(SecretStr(token), self.announced.append)
        app = dashboard.application(
            self.feed,
            routes={f"/{name}": route for name, route in routes.items()},
            control=control or None,
        )
        self.url = f"http://127.0.0.1:{dashboard.serve(app, '127.0.0.1', 0)}"

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                status, text = refusal.code, refusal.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def site(store: DirectoryStore) -> Iterator[Site]:
    write_sample_run(store)
    site = Site(store, token=TOKEN, healthz=lambda: (503, {"alive": False}))
    yield site
    site.feed.close()


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_whoever_knows_the_token_starts_and_stops(site: Site, store: DirectoryStore) -> None:
    # when
    status, answer = site.ask("/api/federations", {"spec": SPEC, "id": "mine"}, **bearer())
    # then
    assert (status, answer) == (201, {"id": "mine"})
    assert manifests.read_submission(store, "mine").spec.concurrency == 2
    # when
    stop = {"reason": "seen enough"}
    status, _ = site.ask("/api/federations/mine/stop", stop, **bearer())
    # then
    assert status == 202
    assert json.loads(store.get("mine/stop.json"))["reason"] == "seen enough"
    assert [each.federation for each in site.announced] == ["mine", "mine"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong-but-just-as-long-as-the-right-one"),
        bearer(""),
        bearer(TOKEN[:-1]),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_a_missing_or_wrong_token_changes_nothing(
    site: Site, store: DirectoryStore, headers: dict[str, str]
) -> None:
    for path, body in [
        ("/api/federations", {"spec": SPEC, "id": "mine"}),
        ("/api/federations/fed/stop", {}),
    ]:
        status, answer = site.ask(path, body, **headers)
        assert (status, answer) == (401, {"error": "the token is missing or wrong"})
    assert list(store.folders()) == ["fed"]
    assert not store.exists("fed/stop.json")
    assert site.announced == []
    assert site.ask("/api/access", **headers)[1] == {"can_control": True, "is_allowed": False}


def test_without_a_token_of_its_own_the_page_is_read_only(store: DirectoryStore) -> None:
    write_sample_run(store)
    site = Site(store, token=None)
    for header in ({}, bearer(), bearer("")):
        status, answer = site.ask("/api/federations/fed/stop", {}, **header)
        assert status == 403
        assert "FEDFA_DASHBOARD_TOKEN" in answer["error"]
    assert site.ask("/api/access", **bearer())[1] == {"can_control": False, "is_allowed": False}
    assert not store.exists("fed/stop.json")
    site.feed.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/federations", {"spec": "concurrency: no"}, 400, "concurrency: give a number"),
        ("/api/federations", {"spec": "a: ["}, 400, "cannot be read as YAML"),
        ("/api/federations", {"spec": SPEC, "id": "../etc"}, 400, "id: '../etc' is not one"),
        ("/api/federations", {"spec": SPEC, "id": "fed"}, 400, "id: fed is taken"),
        ("/api/federations", {"sepc": SPEC}, 400, "request: spec"),
        ("/api/federations", b"not JSON", 400, "request"),
        ("/api/federations", b"x" * 300_000, 413, "more than 262144 bytes"),
        ("/api/federations/nobody/stop", {}, 404, "nobody: no such federation"),
        ("/api/federations/fed/stop", {"reason": "x" * 4001}, 400, "reason"),
    ],
)
def test_a_wrong_request_is_answered_with_what_to_change(
    site: Site, path: str, body: Any, status: int, text: str
) -> None:
    found, answer = site.ask(path, body, **bearer())
    assert found == status
    assert text in answer["error"]
    assert site.announced == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/federations/nobody", 404),
        ("/api/federations/..%2f..%2fetc", 404),
        ("/api/federations/UPPER", 400),
        ("/api/federations/fed/manifests/99", 404),
        ("/api/federations/fed/manifests/123456789012345678901", 400),
        ("/api/federations/fed/decisions?before=x", 400),
        ("/static/../app.py", 404),
        ("/static/..%2fapp.py", 404),
        ("/nothing", 404),
    ],
)
def test_what_is_not_there_is_not_found(site: Site, path: str, status: int) -> None:
    assert site.ask(path)[0] == status


def test_the_routes_of_the_service_are_served_beside_the_page(site: Site) -> None:
    assert site.ask("/healthz") == (503, {"alive": False})
    assert "python_info" in site.ask("/metrics")[1]
    assert site.ask("/nothing")[1]["paths"] == ["/", "/healthz"]


def test_an_older_page_of_the_log_and_a_manifest_can_be_asked_for(
    site: Site, store: DirectoryStore
) -> None:
    rows = site.ask("/api/federations/fed/decisions?before=6")[1]["rows"]
    assert [row["n"] for row in rows] == [5, 4, 3, 2, 1]
    assert site.ask("/api/federations/fed/manifests/3")[1]["n"] == 3
    assert "name: digits" in site.ask("/api/federations/fed/spec")[1]


def test_every_answer_forbids_foreign_content(site: Site) -> None:
    for path in ("/", "/static/app.js", "/api/federations", "/healthz", "/nothing"):
        try:
            answer = urllib.request.urlopen(f"{site.url}{path}", timeout=20)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers


def test_another_sites_name_for_this_machine_is_refused(site: Site) -> None:
    assert site.ask("/api/federations", Host="evil.example")[0] == 400
    assert site.ask("/api/federations", Host="localhost:1234")[0] == 200


def test_events_bring_the_view_and_then_what_is_new(tmp_path: Path) -> None:
    # given
    log = LongLog(tmp_path, "long")
    for _ in range(20):
        log.add()
    log.move_head()
    site = Site(DirectoryStore(tmp_path), token=None)
    events: dict[str, list[Any]] = {"view": [], "rows": [], "trouble": []}
    is_up_to_date = threading.Event()

    def listen() -> None:
        with urllib.request.urlopen(f"{site.url}/api/federations/long/events") as stream:
            name = ""
            for line in stream:
                kind, _, text = line.decode().strip().partition(": ")
                if kind == "event":
                    name = text
                elif kind == "data":
                    events[name].append(json.loads(text))
                    if events["rows"] and events["rows"][-1][-1]["n"] == 22:
                        is_up_to_date.set()
                        return

    listener = threading.Thread(target=listen)
    listener.start()
    # when
    while not events["rows"]:
        listener.join(0.05)
    for _ in range(2):
        log.add()
    log.move_head()
    # then
    assert is_up_to_date.wait(60)
    assert [row["n"] for batch in events["rows"] for row in batch] == list(range(1, 23))
    assert events["view"][-1]["manifest"] == 22
    site.feed.close()
