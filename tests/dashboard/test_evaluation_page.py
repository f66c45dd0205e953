"""The evaluation page in a real browser: results, progress, cancelling, invalid files and hostile text."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from tests.dashboard.conftest import CheckedPage
from tests.dashboard.harness import DashboardProcess
from tests.dashboard.test_access import Visitor
from tests.dashboard.test_pages import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Page

import pytest

pytestmark = pytest.mark.clients

TOOLS = {
    "track_parcel": "Show where a parcel is now.",
    "create_invoice": "Write an invoice for a customer.",
    "list_branches": "List the branches of a repository.",
}
MESSAGES = [
    {"id": 1, "query": "where is my parcel now?", "gold": ["track_parcel"]},
    {"id": 2, "query": "write an invoice for Halden", "gold": ["create_invoice"]},
    {"id": 3, "query": "list the branches of the parcel repository", "gold": ["create_invoice"]},
]


def write_lines(rows: list[dict[str, object]]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def describe_tools(tools: dict[str, str]) -> str:
    return write_lines(
        [
            {
                "type": "function",
                "function": {"name": name, "description": text, "parameters": {"type": "object"}},
            }
            for name, text in tools.items()
        ]
    )


def fill_in(page: Page, tools: str, messages: str, *, modes: tuple[str, ...] = ("keyword",)) -> None:
    page.get_by_role("group", name="Tools").get_by_role("button", name="File").click()
    page.get_by_label("Tools, one function definition per line", exact=True).fill(tools)
    page.get_by_label("Messages, one JSON object per line", exact=False).first.fill(messages)
    for mode in ("keyword", "semantic", "hybrid"):
        page.get_by_role("checkbox", name=mode).set_checked(mode in modes)


def test_evaluation_page_compares_search_modes_and_explains_the_worst_ranked_message(
    checked_page: CheckedPage,
) -> None:
    page = checked_page.open("evaluation")
    fill_in(page, describe_tools(TOOLS), write_lines(MESSAGES), modes=("keyword", "semantic", "hybrid"))
    page.get_by_label("Tools per message").fill("2")
    page.get_by_role("button", name="Run").click()
    table = page.get_by_role("region", name="Modes compared")
    table.wait_for()
    cells = table.get_by_role("row").nth(1).inner_text().split()
    assert cells[:2] == ["keyword", "0.667"], "two of three needed tools are ranked first"
    assert table.get_by_role("row").count() == 4
    plot = page.get_by_role("img", name="Share of the needed tools that are sent", exact=False)
    assert "hybrid" in (plot.get_attribute("aria-label") or "")
    assert plot.locator("polyline").count() == 3
    page.get_by_role("group", name="Mode of the worst messages").get_by_role("button", name="keyword").click()
    worst = (
        page.get_by_role("list", name="Worst messages").locator("> li").filter(has_text="list the branches")
    )
    assert "needs create_invoice" in worst.inner_text()
    assert "ranked after list_branches" in worst.inner_text()
    page.reload()
    page.get_by_role("region", name="Modes compared").wait_for()


def choose_file(page: Page, name: str, content: bytes) -> None:
    picker = page.locator("input[type=file]").nth(1)
    picker.set_input_files({"name": name, "mimeType": "application/octet-stream", "buffer": content})
    page.get_by_text(name, exact=True).wait_for()


def test_evaluation_page_accepts_a_gzip_compressed_file_of_messages(checked_page: CheckedPage) -> None:
    page = checked_page.open("evaluation")
    fill_in(page, describe_tools(TOOLS), "")
    choose_file(page, "messages.jsonl.gz", gzip.compress(write_lines(MESSAGES).encode()))
    page.get_by_text("3 lines").wait_for()
    page.get_by_role("button", name="Run").click()
    rows = page.get_by_role("region", name="Modes compared").get_by_role("row")
    rows.nth(2).wait_for(state="detached")  # of the result of an earlier evaluation
    rows.nth(1).wait_for()
    page.get_by_text("3 messages, 3 of which need a tool.", exact=False).wait_for()
    assert rows.count() == 2


def test_evaluation_page_shows_the_line_number_of_an_invalid_line_in_the_messages_file(
    checked_page: CheckedPage,
) -> None:
    page = checked_page.open("evaluation")
    fill_in(page, describe_tools(TOOLS), write_lines(MESSAGES) + "\n{not json")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").get_by_text("messages, line 4").wait_for()
    checked_page.problems.clear()  # the browser reports the status 400 of the refused request


def test_running_evaluation_can_be_cancelled_on_the_evaluation_page(checked_page: CheckedPage) -> None:
    many = [
        {"id": number, "query": f"where is parcel {number}?", "gold": ["track_parcel"]}
        for number in range(5_000)
    ]
    page = checked_page.open("evaluation")
    fill_in(page, describe_tools(TOOLS), "", modes=("semantic", "hybrid"))
    choose_file(page, "messages.jsonl", write_lines(many).encode())
    page.get_by_role("button", name="Run").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("alert").get_by_text("The evaluation was cancelled.").wait_for()
    page.get_by_role("button", name="Run").wait_for()


def test_html_in_tool_descriptions_and_messages_is_shown_as_text_on_the_evaluation_page(
    checked_page: CheckedPage,
) -> None:
    message = {"id": 1, "query": f"{HOSTILE} \u202egnp.exe", "gold": [HOSTILE], "kind": HOSTILE}
    other = {"id": 2, "query": "track", "gold": ["track_parcel"], "kind": "other"}
    page = checked_page.open("evaluation")
    fill_in(page, describe_tools({"a": HOSTILE, **TOOLS}), write_lines([message, other]))
    page.get_by_role("button", name="Run").click()
    page.get_by_role("list", name="Worst messages").get_by_text("<img src=x").first.wait_for()
    page.get_by_role("region", name="Kinds of messages").get_by_text("<script>").first.wait_for()
    assert "\u202e" not in page.get_by_role("list", name="Worst messages").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#app img[src=x]").count() == 0
    assert page.title() == "Evaluation · Toolfold"


def test_requests_from_other_web_pages_cannot_start_evaluations_or_server_tests(
    dashboard: DashboardProcess,
) -> None:
    visitor = Visitor(dashboard)
    key = {"x-toolfold-page-key": visitor.sign_in(dashboard)}
    elsewhere = {"origin": "http://127.0.0.1:9"}
    for path in ("evaluation/start", "evaluation/cancel", "servers/test", "servers/cancel-test"):
        assert visitor.post(path, {"name": "notes"}).status_code == 401, path
        assert visitor.post(path, {"name": "notes"}, **key, **elsewhere).status_code == 403, path
        assert visitor.http.post(f"/ui/api/{path}", json={}, headers=key).status_code == 403, path
        assert visitor.http.get(f"/ui/api/{path}", headers=key).status_code == 404, path
    for path in ("evaluation", "evaluation/result"):
        assert visitor.http.get(f"/ui/api/{path}").status_code == 401, path
    large = {"tools": "file", "catalog": "x" * 10_000_001}
    assert visitor.post("evaluation/start", large, **key).status_code == 413
    assert visitor.http.get("/ui/api/evaluation", headers=key).json()["state"] != "running"
    visitor.http.close()
