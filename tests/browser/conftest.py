"""A real Chromium, without a window; `make setup` installs it. A missing one is a failure."""

import os
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000  # on a busy machine; a test's own timeout ends it earlier


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)  # none: playwright's own
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


def is_defect(line: ConsoleMessage) -> bool:
    """A refused request is no defect; what the page's policy blocks, or a script throws, is one."""
    return line.type == "error" and not line.text.startswith("Failed to load resource")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own. At the end: no error was thrown, and no other host was asked."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    hosts: set[str | None] = set()
    errors: list[str] = []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if is_defect(line) else None)
    page.on("dialog", lambda dialog: errors.append(f"a script opened: {dialog.message}"))
    yield page
    context.close()
    assert errors == []
    assert hosts <= {"127.0.0.1"}
