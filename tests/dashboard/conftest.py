"""One dashboard process and one browser for each module, because both take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.harness import DashboardProcess, find_chromium, open_browser, run_dashboard, write_home

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NOTES = [
    {
        "name": "add_note",
        "description": "Add a note to the notebook.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
    {
        "name": "delete_note",
        "description": "Delete a note.",
        "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
        "annotations": {"destructiveHint": True},
    },
]


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardProcess]:
    """A dashboard with the sample catalog and the MCP server `notes`."""
    home: Path = tmp_path_factory.mktemp("home")
    write_home(home, NOTES)
    with run_dashboard(home) as process:
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not find_chromium():
        pytest.skip("Chromium is not installed")
    pytest.importorskip("playwright")
    with open_browser() as running:
        yield running


class CheckedPage:
    """A signed-in page that records what goes wrong in it."""

    def __init__(self, page: Page, dashboard: DashboardProcess) -> None:
        self.page, self._url = page, dashboard.url
        self.problems: list[str] = []
        page.set_default_timeout(60_000)
        page.on("console", self._receive_message)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._receive_request)
        page.goto(dashboard.run("link"))
        page.get_by_role("heading", name="Overview").wait_for()

    def _receive_message(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in ("error", "warning"):
            self.problems.append(text)

    def _receive_request(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith((self._url, "data:")):
            self.problems.append(f"a request to {url}")

    def open(self, name: str) -> Page:
        """Open a page of the dashboard by its path, and wait until it follows the events."""
        self.page.goto(self._url + name)
        self.page.get_by_role("heading", level=1).wait_for()
        # Approval questions are refused until the page is connected.
        self.page.get_by_text("Connected", exact=True).wait_for()
        return self.page


@pytest.fixture
def checked_page(browser: Browser, dashboard: DashboardProcess) -> Iterator[CheckedPage]:
    """A signed-in page; at the end there must be no error in its console."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = CheckedPage(context.new_page(), dashboard)
    yield found
    context.close()
    assert found.problems == []
