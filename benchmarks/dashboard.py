"""How soon the dashboard of a long federation is seen, and how far behind it is.

    python -m benchmarks.dashboard --versions 100000

A log of that length in a folder, `fedfa dashboard` in a process of its own, a headless Chromium:
first contentful paint, the moment when all charts have data, and the time from the commit of each
of 20 further versions to its number on the page. Also the server's processor time and memory.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time

import psutil
from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import NAMES
from tests.long_log import LongLog, roomy_folder, write_long_log

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
HAS_DATA = "document.querySelectorAll('.uplot canvas').length >= 6"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--versions", type=int, default=100_000)
    versions = parser.parse_args().versions
    with roomy_folder() as folder:
        log = write_long_log(folder, "long", versions)
        command = [sys.executable, "-m", "fedfa.cli", "dashboard", "--in", str(folder)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            measure(found[0], log, server.pid)
        finally:
            server.terminate()
            server.wait()


def measure(url: str, log: LongLog, pid: int) -> None:
    process = psutil.Process(pid)
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(bypass_csp=True).new_page()  # to poll in it
        before = busy(process)
        started = time.perf_counter()
        page.goto(f"{url}#/long")
        page.wait_for_function(HAS_DATA)
        data_seconds = time.perf_counter() - started
        print(f"versions             {log.n}")
        print(f"first paint          {page.evaluate(FIRST_PAINT) / 1e3:.2f} s")
        print(f"all charts have data {data_seconds:.2f} s")
        print(f"server, until then   {busy(process) - before:.2f} s of processor time")
        lags = [lag(page, log) for _ in range(20)]
        print(
            f"a version is seen    {statistics.median(lags):.2f} s later, at most {max(lags):.2f}"
        )
        print(f"server's memory      {process.memory_info().rss / 2**20:.0f} MiB")
        browser.close()


def lag(page: Page, log: LongLog) -> float:
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
