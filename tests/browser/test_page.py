"""The page in a browser, over federations in a folder: what it shows, and to whom it is safe."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from fedfa import dashboard, keys, manifests
from fedfa.canonical import canonical_json
from fedfa.federation import Client
from fedfa.log import Birth
from fedfa.store import DirectoryStore
from tests.long_log import LongLog, roomy_folder, write_long_log
from tests.unit.builders import TEMPLATE
from tests.unit.sample_run import write_sample_run
from tests.unit.test_dashboard import TOKEN, Site

expect.set_options(timeout=60_000)

EVIL = "<img src=x onerror=alert(1)>"
VERSIONS = 100_000
BACKGROUND = {"light": (244, 246, 248), "dark": (14, 19, 25)}
HERE = Path(__file__).parent
STATIC = Path(dashboard.__file__).parent / "static"
ACCESSIBILITY = "".join(
    line
    for line in (HERE / "accessibility.js").read_text().splitlines(keepends=True)
    if not line.lstrip().startswith("//")
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Two federations; the second one's names and errors are HTML."""
    store = DirectoryStore(tmp_path_factory.mktemp("runs"))
    target = {"metric": "accuracy", "value": 0.9}
    write_sample_run(store, stop={"updates": 200}, concurrency=8)
    clients = tuple(Client(f"{EVIL}{at}", 10, "default") for at in range(8))
    evil = Birth(clients, TEMPLATE, "")
    write_sample_run(store, "evil", clients=evil, stop={"target": target, "updates": 30})
    fields = {"version": 1000, "at": 1100.0, "error": f"Traceback {EVIL}\n  File {EVIL}"}
    store.put(keys.evaluation("evil", 1000), canonical_json(fields).encode())
    return store


@pytest.fixture(scope="module")
def site(store: DirectoryStore) -> Iterator[Site]:
    site = Site(store, token=TOKEN)
    yield site
    site.feed.close()


def section(page: Page, name: str) -> Locator:
    """The part of the page whose heading has this id."""
    return page.locator(f"section:has(#{name})")


def tile(page: Page, name: str) -> str:
    """The number that a tile shows."""
    found = page.locator(".tiles > div").filter(has=page.locator("dt", has_text=name))
    return found.locator("dd span").first.inner_text()


def test_the_list_leads_to_a_federation_and_its_numbers(page: Page, site: Site) -> None:
    page.goto(site.url)
    expect(page.locator(".federations li")).to_have_count(2)
    page.get_by_role("link", name="fed", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("fed")
    expect(page.locator(".head .pill")).to_have_text("finished")
    expect(page.locator(".tiles dd span").first).to_have_text("1.0000")
    assert tile(page, "updates") == "200"
    expect(page.get_by_text("merged 200 updates").first).to_be_visible()
    expect(page.locator(".uplot canvas")).to_have_count(6)
    # every section says something
    for name in ("Quality", "Speed and staleness", "Slots", "Trainers and pools", "Clients"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    expect(
        page.get_by_role("region", name="Trainers", exact=True).locator("tbody tr")
    ).to_have_count(2)
    expect(section(page, "moved").locator("dd")).to_have_count(5)


def test_a_decision_opens_its_manifest_and_older_ones_are_found(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/fed")
    rows = section(page, "decisions").locator("tbody tr")
    expect(rows).to_have_count(20)
    page.get_by_role("button", name="open manifest 230", exact=True).click()
    expect(page.locator("dialog pre")).to_contain_text('"n": 230')
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    older = section(page, "decisions").locator(".buttons button")
    while older.is_visible():
        older.click()
    expect(rows.last.locator("td").first).to_have_text("1")
    page.get_by_label("Show").select_option("notable")
    expect(rows.nth(1).locator(".pill")).to_have_text("rejected")
    page.get_by_text("Spec", exact=True).click()
    expect(page.get_by_label("spec as YAML")).to_contain_text("concurrency: 8")


def test_names_and_errors_that_contain_html_are_shown_as_text(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/evil")
    clients = section(page, "clients")
    expect(clients.get_by_text(f"{EVIL}0", exact=True)).to_be_visible()
    expect(section(page, "decisions")).to_contain_text(f"{EVIL}1")
    page.get_by_label("Show").select_option("notable")
    expect(page.get_by_text("failed 3 times: <b>out of memory</b>")).to_be_visible()
    expect(page.locator(".warning")).to_contain_text(f"Traceback {EVIL}")
    figure = page.get_by_role("group", name="Timeline of the slots")
    figure.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".details")).to_contain_text(EVIL)
    assert page.locator("main img, main b:has(img)").count() == 0  # nothing of it was parsed


def test_an_error_of_a_job_that_is_tried_again_is_shown_with_its_lines_and_whose_it_is(
    page: Page, tmp_path: Path
) -> None:
    # given a running federation, and what its scheduler knows
    log = LongLog(tmp_path, "long")
    for _ in range(20):
        log.add()
    log.move_head()
    newest = manifests.newest(DirectoryStore(tmp_path), "long")
    assert newest is not None
    slot = newest.manifest.state.slots[2]
    failed = {
        "task": "train",
        "client": slot.client,
        "slot": 2,
        "generation": slot.generation,
        "stage": "claimed",
        "trainer": "trainer-1",
        "failures": 2,
        "error": 'ValueError: <b>upside down</b>\n  File "mine.py", line 7, in loss',
    }
    nobodys = {"slot": None, "generation": None, "client": None, "error": "KeyError: 'test'"}
    known = {
        "id": "long",
        "messages": ["pool b is down, it has no trainer"],
        "jobs": [failed, failed | nobodys | {"task": "evaluate"}],
    }
    site = Site(DirectoryStore(tmp_path), token=None, live=lambda: [known])
    # when
    page.goto(f"{site.url}/#/long")
    # then
    expect(page.locator("summary", has_text="Open jobs, 1 of which failed before")).to_be_visible()
    row = page.get_by_role("region", name="Open jobs").locator("tbody tr").nth(2)
    for text in (slot.client, "with a trainer", "trainer-1", "ValueError: <b>upside down</b>"):
        expect(row).to_contain_text(text)
    row.get_by_text("where", exact=True).click()
    expect(row.locator("pre")).to_have_text('  File "mine.py", line 7, in loss')
    expect(page.locator("p.warning")).to_have_text(
        ["pool b is down, it has no trainer", "an evaluation failed: KeyError: 'test'"]
    )
    site.feed.close()


def test_the_pages_code_never_parses_html() -> None:
    texts = {path.name: path.read_text() for path in STATIC.glob("*.js")}
    assert len(texts) > 5
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert [name for name, text in texts.items() if word in text] == []


def test_a_wrong_token_is_refused_and_none_is_asked_for_where_none_helps(
    page: Page, site: Site, store: DirectoryStore
) -> None:
    page.goto(site.url)
    page.get_by_role("button", name="Start a federation").click()
    page.get_by_label("Token").fill("not the token, but long enough")
    page.get_by_role("button", name="Unlock").last.click()
    expect(page.get_by_role("alert").last).to_have_text("that is not the token")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Unlock").last.click()
    expect(page.get_by_label("Spec (YAML)")).to_be_visible()
    page.get_by_label("Spec (YAML)").fill("concurrency: 0")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("dialog .problem")).to_contain_text("concurrency")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Lock").click()
    expect(page.get_by_role("button", name="Unlock")).to_be_visible()
    read_only = Site(store, token=None)
    page.goto(read_only.url)
    expect(page.locator(".federations li")).to_have_count(2)
    expect(page.get_by_role("button", name="Read-only")).to_be_disabled()
    expect(page.get_by_role("button", name="Start a federation")).to_be_hidden()
    read_only.feed.close()


def test_the_keyboard_alone_reads_the_page(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/fed")
    expect(page.locator(".uplot canvas")).to_have_count(6)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    # a chart tells what the arrow keys stand on
    chart = page.get_by_role("group", name="over versions")
    assert "From 0.1000 to 1.0000" in (chart.get_attribute("aria-label") or "")
    chart.focus()
    page.keyboard.press("Home")
    expect(chart.locator("output")).to_contain_text("0.1000 at version 0")
    page.keyboard.press("ArrowRight")
    expect(chart.locator("output")).to_contain_text("at version 5")
    # so does the timeline, and Enter opens the manifest
    page.get_by_role("group", name="Timeline of the slots").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    expect(page.locator(".details")).to_contain_text("trained")
    page.keyboard.press("Enter")
    expect(page.locator("dialog pre")).to_contain_text('"decisions"')
    page.keyboard.press("Escape")
    # all that can be operated can be reached, and has a name
    assert page.evaluate(f"{ACCESSIBILITY}.nameless()") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_readable_on_a_phone_and_in_the_dark(
    page: Page, site: Site, tmp_path: Path, theme: str, width: int
) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 844})
    for number, address in enumerate(("", "/#/fed", "/#/evil")):
        page.goto(f"{site.url}{address}")
        expect(page.locator(".federations li, .tiles dd span").first).to_be_visible()
        expect(page.locator(".uplot canvas").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(f"{ACCESSIBILITY}.faint()") == []
        picture = tmp_path / f"{theme}-{width}-{number}.png"  # pytest keeps the last runs' folders
        page.screenshot(path=picture, full_page=True)
        with Image.open(picture) as painted:
            assert painted.width == width
            corner = painted.convert("RGB").getpixel((0, painted.height - 1))
        assert corner == BACKGROUND[theme]


@pytest.fixture(scope="module")
def long_log() -> Iterator[tuple[Path, LongLog]]:
    with roomy_folder() as folder:
        yield folder, write_long_log(folder, "long", VERSIONS)


@pytest.mark.timeout(400)
def test_a_hundred_thousand_versions_are_shown_live(
    page: Page, long_log: tuple[Path, LongLog]
) -> None:
    folder, log = long_log
    site = Site(DirectoryStore(folder), token=None)
    page.goto(f"{site.url}/#/long")
    expect(page.locator(".tiles").first).to_contain_text(f"{VERSIONS - 4:,}")
    expect(page.locator(".notice")).to_contain_text("of the 100,000 decisions so far")
    expect(page.locator(".uplot canvas")).to_have_count(6)
    expect(section(page, "clients")).to_contain_text("starved")
    log.add()
    log.move_head()
    expect(page.locator(".tiles").first).to_contain_text(f"{VERSIONS - 3:,}")
    newest = section(page, "decisions").locator("tbody tr").first
    expect(newest).to_contain_text(f"{VERSIONS + 1:,}")
    page.get_by_role("button", name="Older").first.click()
    expect(page.get_by_role("button", name="Latest")).to_be_enabled()
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    site.feed.close()
