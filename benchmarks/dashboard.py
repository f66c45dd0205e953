"""Measure what an open dashboard costs: throughput of calls with and without pages, and the first paint.

    python benchmarks/dashboard.py [--rounds 8] [--seconds 6] [--pages 1] [--rate 50] [--skip-paint]

Throughput: a process makes calls one after the other, of a tool that computes for so long that about `--rate`
calls fit in a second. Rounds without an open page and with `--pages` pages of a real browser that show the
activity take turns, so that both meet the same load of the machine. `CPU` is the processor time of the
process per call, which a busy machine changes least. In further rounds the calls compute nothing and are made
at a fixed rate; the additional processor time per second is what the pages take from a core.

First paint: the browser's own `first-contentful-paint` of a new browser context without a cache, signed in
by link, and of a second visit. Files: the size of everything that the page loads, compressed as it is sent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.dashboard.conftest import NOTES
from tests.dashboard.harness import DashboardProcess, open_browser, run_dashboard, write_home

from toolfold.serving.dashboard.static_files import load_static_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

BAR_THROUGHPUT = 0.95
BAR_PAINT_MS = 1_000
BAR_FILE_BYTES = 400_000
PAINTS = 7
_READ_PAINT = """() => new Promise((resolve) => {
    const find = () => {
        const entry = performance.getEntriesByName("first-contentful-paint")[0];
        entry ? resolve(entry.startTime) : setTimeout(find, 20);
    };
    find();
})"""


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--skip-paint", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolfold-benchmark-") as name:
        home = Path(name) / "home"
        home.mkdir()
        write_home(home, NOTES)
        with run_dashboard(home) as dashboard, open_browser() as browser:
            if not options.skip_paint:
                measure_paint(dashboard, browser)
            measure_throughput(dashboard, browser, options)
            measure_share(dashboard, browser, options)
    print_file_sizes()


def measure_throughput(dashboard: DashboardProcess, browser: Browser, options: argparse.Namespace) -> None:
    """Print calls per second and CPU time per call without and with open pages."""
    steps = dashboard.run("calibrate_work", rate=options.rate)
    dashboard.run("work", seconds=1.0, steps=steps)  # warm up
    rounds = alternate(dashboard, browser, options, steps=steps)
    for has_pages, found in rounds.items():
        rates = [each["calls"] / each["seconds"] for each in found]
        costs = [1000 * each["cpu"] / each["calls"] for each in found]
        print(
            f"{f'{options.pages} open page(s)' if has_pages else 'no page':<16}"
            f" {statistics.median(rates):6.1f} calls/s   {statistics.median(costs):6.2f} ms CPU per call"
        )
    pairs = list(zip(rounds[True], rounds[False], strict=True))
    by_clock = statistics.median((a["calls"] / a["seconds"]) / (b["calls"] / b["seconds"]) for a, b in pairs)
    by_cpu = statistics.median((b["cpu"] / b["calls"]) / (a["cpu"] / a["calls"]) for a, b in pairs)
    print(f"throughput with pages / without, median of {len(pairs)} pairs of rounds:", end=" ")
    print(f"{by_clock:.3f} by the clock, {by_cpu:.3f} by CPU time (bar {BAR_THROUGHPUT})")


def measure_share(dashboard: DashboardProcess, browser: Browser, options: argparse.Namespace) -> None:
    """Print the share of a CPU core that open pages cost at a fixed rate of calls that compute nothing."""
    rounds = alternate(dashboard, browser, options, steps=1, rate=options.rate)
    shares = {key: [each["cpu"] / each["seconds"] for each in found] for key, found in rounds.items()}
    reached = statistics.median(each["calls"] / each["seconds"] for each in rounds[True])
    cost = statistics.median(a - b for a, b in zip(shares[True], shares[False], strict=True))
    print(
        f"at {reached:.1f} calls/s: {statistics.median(shares[False]):.1%} of a core without a page,"
        f" {statistics.median(shares[True]):.1%} with {options.pages}; the pages cost {cost:.1%}"
    )


def alternate(
    dashboard: DashboardProcess, browser: Browser, options: argparse.Namespace, **work: float
) -> dict[bool, list[dict[str, float]]]:
    """Measure alternately without and with open pages; return the measurements of both."""
    rounds: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(options.rounds):
        for has_pages in (False, True) if number % 2 else (True, False):
            with open_pages(dashboard, browser, options.pages if has_pages else 0):
                rounds[has_pages].append(dashboard.run("work", seconds=options.seconds, **work))
    return rounds


@contextmanager
def open_pages(dashboard: DashboardProcess, browser: Browser, count: int) -> Iterator[None]:
    """Open the dashboard's activity page `count` times in the browser."""
    context = browser.new_context()
    try:
        for number in range(count):
            page = context.new_page()
            if not number:
                sign_in(page, dashboard)
            page.goto(dashboard.url + "activity")
            page.get_by_text("Connected", exact=True).wait_for(timeout=60_000)
        yield
    finally:
        context.close()


def sign_in(page: Page, dashboard: DashboardProcess) -> None:
    """Open the dashboard with a one-time link."""
    page.goto(dashboard.run("link"))
    page.get_by_role("heading", name="Overview").wait_for(timeout=60_000)


def measure_paint(dashboard: DashboardProcess, browser: Browser) -> None:
    """Print the time to the first contentful paint, for a first and a second visit."""
    first, second = [], []
    for _ in range(PAINTS):
        context = browser.new_context()
        page = context.new_page()
        sign_in(page, dashboard)
        first.append(float(page.evaluate(_READ_PAINT)))
        page.goto(dashboard.url + "overview")
        second.append(float(page.evaluate(_READ_PAINT)))
        context.close()
    for what, times in (("first visit", first), ("signed in", second)):
        print(
            f"first contentful paint, {what:<12} median {statistics.median(times):5.0f} ms,"
            f" slowest {max(times):5.0f} ms of {len(times)} (bar {BAR_PAINT_MS} ms)"
        )


def print_file_sizes() -> None:
    """Print the compressed size of the files that the page loads."""
    files: Any = load_static_files().values()
    size = sum(len(each.compressed or each.content) for each in files)
    print(f"files of the page, compressed: {size / 1000:.1f} kB (bar {BAR_FILE_BYTES / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
