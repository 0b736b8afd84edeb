"""A federation is started from the page, watched to its target, and another one is stopped."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from fedfa import manifests
from fedfa.local.stack import LocalStack
from fedfa.s3 import S3Store

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
expect.set_options(timeout=120_000)

SPEC = """
task: {name: digits}
clients: 6
concurrency: 4
local: {epochs: 2, optimizer: {name: sgd, learning_rate: 0.1}}
evaluation: {every_versions: 5}
stop:
  target: {metric: accuracy, value: 0.3}
  updates: 2000
"""


@pytest.fixture(scope="module")
def stack(
    servers: None, store: S3Store, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("stack")
    with LocalStack(folder, trainers=1, jobs_per_trainer=4) as stack:
        yield stack
    for log in folder.glob("logs/*.log"):
        assert "Traceback" not in log.read_text(), log


def start(page: Page, name: str, spec: str) -> None:
    page.get_by_role("button", name="Start a federation").click()
    page.get_by_label("Id").fill(name)
    page.get_by_label("Spec (YAML)").fill(spec)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def test_a_federation_is_started_watched_to_its_target_and_another_is_stopped(
    page: Page, stack: LocalStack, store: S3Store
) -> None:
    # given the page as `fedfa local run --open` opens it
    page.goto(stack.dashboard_url())
    expect(page.get_by_text("No federations yet")).to_be_visible()
    assert "token" not in page.url
    # when
    start(page, "to-its-target", SPEC)
    # then it is watched: running, finished
    expect(page.locator(".head .pill")).to_have_text("running")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator("section:has(#decisions)")).to_contain_text("merged")
    expect(page.locator(".head .pill")).to_have_text("finished")
    expect(page.locator("div.why")).to_contain_text("reached the target 0.3")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    value = page.locator(".tiles dd span").first
    assert float(value.inner_text()) >= 0.3
    # when another one without an end is started, watched at work, and stopped
    page.get_by_role("link", name="Federations").click()
    expect(page.locator(".federations li")).to_have_count(1)
    start(page, "to-be-stopped", SPEC.replace("0.3}", "1.5}"))
    expect(page.locator("section:has(#decisions)")).to_contain_text("merged")
    page.locator("summary", has_text="Open jobs").click()
    expect(page.get_by_role("region", name="Open jobs")).to_contain_text("trainer-1")
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("Reason, kept in the log").fill("seen <b>enough</b>")
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    # then
    expect(page.locator(".head .pill")).to_have_text("stopped")
    expect(page.locator("div.why")).to_have_text("seen <b>enough</b>")
    newest = manifests.newest(store, "to-be-stopped")
    assert newest is not None
    assert newest.manifest.state.reason == "seen <b>enough</b>"
    # and the list knows both
    page.get_by_role("link", name="Federations").click()
    expect(page.locator(".federations .pill")).to_have_text(["stopped", "finished"])
