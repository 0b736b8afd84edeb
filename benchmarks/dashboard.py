"""How soon the dashboard of a long federation is seen, and how far behind it is.

    python benchmarks/dashboard.py

Logs of 1,000 and 100,000 versions in folders. Each visit: `fedfa dashboard` in a new process, which
has read nothing, and a headless Chromium that opens the federation's page. Measured are its first
contentful paint, the moment when all charts have data, the server's processor time until then and
its memory, and the time from the commit of each of 10 further versions to its number on the page.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Page, sync_playwright
from results import Group, options, write

sys.path.append(str(Path(__file__).parents[1]))

from tests.browser.conftest import NAMES
from tests.long_log import LongLog, roomy_folder, write_long_log

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
HAS_DATA = "document.querySelectorAll('.uplot canvas').length >= 6"
PAINT, CHARTS, CPU, MEMORY = "first paint s", "all charts s", "server's CPU s", "server's MiB"
BEHIND, WORST = "a version is seen after s", "slowest of 10 s"
COMMITS = 10
METRICS = (PAINT, CHARTS, BEHIND, WORST, CPU, MEMORY)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--versions", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with roomy_folder() as folder, chromium() as browser:
        logs = {
            f"{versions:,} versions": write_long_log(folder, f"long-{versions}", versions)
            for versions in given.versions
        }
        samples: dict[str, dict[str, list[float]]] = {
            case: {each: [] for each in METRICS} for case in logs
        }
        for _ in range(given.rounds):
            for case, log in logs.items():
                for metric, found in visit(browser, folder, log).items():
                    samples[case][metric] += found
    shortest = [next(iter(samples))]
    baselines = dict.fromkeys((PAINT, CHARTS, CPU, MEMORY), shortest)
    write(given.results, "dashboard", Group("one visit", samples, baselines))


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), None)
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


def visit(browser: Browser, folder: Path, log: LongLog) -> dict[str, list[float]]:
    """A new server's and a new tab's samples, by metric."""
    command = [sys.executable, "-m", "fedfa.cli", "dashboard", "--in", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        process = psutil.Process(server.pid)
        with browser.new_context(bypass_csp=True) as context:  # to poll in the page
            page = context.new_page()
            before, started = busy(process), time.perf_counter()
            page.goto(f"{found[0]}#/{log.name}")
            page.wait_for_function(HAS_DATA)
            charts, cpu = time.perf_counter() - started, busy(process) - before
            lags = [behind(page, log) for _ in range(COMMITS)]
            return {
                CHARTS: [charts],
                CPU: [cpu],
                PAINT: [page.evaluate(FIRST_PAINT) / 1e3],
                BEHIND: lags,
                WORST: [max(lags)],
                MEMORY: [process.memory_info().rss / 2**20],
            }
    finally:
        server.terminate()
        server.wait()


def behind(page: Page, log: LongLog) -> float:
    time.sleep(0.37)  # out of step with the server's looks
    log.add()
    log.move_head()
    committed = time.perf_counter()
    page.wait_for_function(
        "text => document.querySelector('.tiles').textContent.includes(text)",
        arg=f"{log.n - 4:,}",
        polling=20,
    )
    return time.perf_counter() - committed


def busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
