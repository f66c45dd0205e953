"""Take the screenshots of the dashboard for README and docs: light and dark, desktop and phone.

    .venv/bin/python scripts/take_screenshots.py [--folder docs/images] [--all]

Starts a dashboard with the sample catalog, a sample usage history and a scripted agent, and a real browser.
Without --all only the pictures that the documentation uses are written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.dashboard.conftest import NOTES  # noqa: E402
from tests.dashboard.harness import (  # noqa: E402
    DashboardProcess,
    find_project,
    open_browser,
    read_answer,
    run_dashboard,
    write_home,
)

from toolfold.config.record import SettingsRecord  # noqa: E402
from toolfold.serving.dashboard.demo_routes import write_sample_history, write_sample_users  # noqa: E402
from toolfold.serving.dashboard.recorder import HISTORY_FILE  # noqa: E402
from toolfold.state.users import USERS_FILE, FileUserStore  # noqa: E402

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

    Answers = queue.Queue[dict[str, Any]]

MAX_COLOURS = 192
SIZES = {"desktop": (1360, 900, 1), "phone": (390, 844, 2)}
HEIGHTS = {("evaluation", "desktop"): 1120, ("evaluation", "phone"): 1500}
"""Pages whose main content is further down."""
PAGES = (
    *("overview", "catalog", "tool", "playground", "evaluation", "activity", "approvals"),
    *("servers", "clients", "users", "chat"),
)
USED = {
    *("overview-light-desktop", "overview-dark-desktop", "overview-light-phone", "overview-dark-phone"),
    *(
        "playground-light-desktop",
        "playground-dark-phone",
        "approvals-light-desktop",
        "approvals-light-phone",
    ),
    *("tool-dark-desktop", "activity-dark-desktop", "evaluation-light-desktop", "evaluation-dark-phone"),
}
TOOLS = [
    *("almanac_listEvents", "ferrywell_track-consignment", "read_file", "terminal", "brightcart_getOrder"),
    *("notes_add_note", "almanac_findAvailability", "search_files"),
]
SCRIPT = [
    {"calls": [{"name": "notes_add_note", "arguments": {"text": "Call Halden Ltd about the late parcel"}}]},
    "I have added the note “Call Halden Ltd about the late parcel”.",
]


def main() -> None:
    """Write the screenshots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="toolfold-screenshots-") as name:
        home = Path(name) / "home"
        home.mkdir()
        write_home(home, NOTES, embedder="embedded")
        (find_project(home) / "demo.json").write_text(json.dumps(SCRIPT * 8))
        users = FileUserStore(home / "state" / "gateway" / USERS_FILE, SettingsRecord(home / "state"))
        write_sample_users(users)
        write_sample_history(home / "state" / HISTORY_FILE, TOOLS, tuple(users.directory().users))
        with run_dashboard(home) as dashboard, open_browser() as browser:
            for scheme in ("light", "dark"):
                for size in SIZES:
                    take_all(dashboard, browser, scheme, size, options.folder, only_used=not options.all)


def take_all(
    dashboard: DashboardProcess, browser: Browser, scheme: str, size: str, folder: Path, *, only_used: bool
) -> None:
    """Take one screenshot of each page."""
    width, height, scale = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme="light" if scheme == "light" else "dark",
    )
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(dashboard.run("link"))
    page.get_by_role("heading", name="Overview").wait_for()
    for name in PAGES:
        if only_used and f"{name}-{scheme}-{size}" not in USED:
            continue
        page.goto(dashboard.url + {"tool": "catalog/almanac_createEvent"}.get(name, name))
        page.get_by_role("heading", level=1).wait_for()
        prepare = PREPARE.get(name)
        page.set_viewport_size({"width": width, "height": HEIGHTS.get((name, size), height)})
        waiting = prepare(page, dashboard) if prepare else None
        page.wait_for_timeout(600)  # charts and lists are drawn after their data has arrived
        file = folder / f"{name}-{scheme}-{size}.png"
        page.screenshot(path=file)
        reduce_colours(file)
        if waiting is not None:
            page.get_by_role("button", name="Refuse").first.click()
            read_answer(waiting)
    context.close()


def reduce_colours(file: Path) -> None:
    """Reduce the colours of a picture, which makes the file smaller; the pages have few colours."""
    from PIL import Image

    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(MAX_COLOURS, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def _wait_for_rows(page: Page, _: DashboardProcess) -> None:
    page.get_by_role("grid", name="Tools").get_by_role("row").nth(3).wait_for()


def _wait_for_tool(page: Page, _: DashboardProcess) -> None:
    page.get_by_role("complementary", name="Tool").get_by_role("heading", level=2).wait_for()


def _wait_for_figures(page: Page, _: DashboardProcess) -> None:
    page.get_by_text("Most used tools").wait_for()


def _wait_for_servers(page: Page, _: DashboardProcess) -> None:
    page.get_by_role("region", name="Server notes").wait_for()


def _prepare_playground(page: Page, _: DashboardProcess) -> None:
    page.get_by_role("combobox", name="Mode", exact=True).select_option("hybrid")
    with page.expect_response(
        lambda response: response.url.endswith("/explain") and response.json()["leg"] == "hybrid"
    ):
        page.get_by_label("Message").fill("the parcel for Halden has not arrived, where is it?")
    page.get_by_role("table").wait_for()


def _prepare_evaluation(page: Page, _: DashboardProcess) -> None:
    if not page.get_by_role("region", name="Modes compared").is_visible():
        page.get_by_role("group", name="Tools").get_by_role("button", name="Sample").click()
        page.get_by_role("group", name="Messages").get_by_role("button", name="Sample").click()
        page.get_by_role("button", name="Run").click()
    page.get_by_role("region", name="Modes compared").wait_for(timeout=300_000)


def _prepare_activity(page: Page, dashboard: DashboardProcess) -> None:
    dashboard.run("search", query="track a parcel")
    dashboard.run("call", tool="almanac_listCalendars", arguments={})
    dashboard.run("call", tool="ferrywell_track-consignment", arguments={"consignment": "none"})
    dashboard.run("call", tool="notes_add_note", arguments={"text": "Call Halden Ltd"})
    page.get_by_text("notes_add_note").first.wait_for()
    page.locator("summary").first.click()


def _prepare_approvals(page: Page, dashboard: DashboardProcess) -> Answers:
    page.get_by_text("Nothing waits for you").wait_for()
    command = "find . -name '*.log' -mtime +30 -print -delete && git push --force origin main"
    waiting = dashboard.start("call", tool="terminal", arguments={"command": command})
    page.get_by_role("region", name="Approval of terminal").wait_for()
    return waiting


def _prepare_chat(page: Page, _: DashboardProcess) -> None:
    page.get_by_label("Message", exact=True).fill("Remind me to call Halden Ltd about the late parcel")
    page.keyboard.press("Enter")
    page.get_by_text("I have added the note").wait_for()


PREPARE: dict[str, Callable[[Page, DashboardProcess], Answers | None]] = {
    "overview": _wait_for_figures,
    "catalog": _wait_for_rows,
    "tool": _wait_for_tool,
    "servers": _wait_for_servers,
    "playground": _prepare_playground,
    "evaluation": _prepare_evaluation,
    "activity": _prepare_activity,
    "approvals": _prepare_approvals,
    "chat": _prepare_chat,
}

if __name__ == "__main__":
    main()
