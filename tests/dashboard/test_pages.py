"""The dashboard in a real browser: every page, approvals, held tools, 10,000 tools and hostile names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import NOTES, CheckedPage
from tests.dashboard.harness import LISTING_SERVER, ROOT, DashboardProcess, read_answer
from tests.gateway.gateway_process import environment

pytestmark = pytest.mark.clients

PAGES = (
    *("catalog", "overview", "playground", "evaluation", "activity", "approvals"),
    *("servers", "clients", "users", "chat"),
)
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = '<img src=x onerror="document.title=1"><script>window.hacked=1</script>'
ELSEWHERE = "http://127.0.0.1:9/stolen"
"""An address that a page must never request."""
HOSTILE_PROSE = (
    f"{HOSTILE} </pre></div><svg onload=window.hacked=1><iframe srcdoc='<script>parent.hacked=1</script>'>"
    f"<base href='{ELSEWHERE}/'><meta http-equiv=refresh content='0;url={ELSEWHERE}'>"
    f"<style>@import '{ELSEWHERE}'; * {{ display: none }}</style><link rel=stylesheet href='{ELSEWHERE}'>"
    f"<form action='{ELSEWHERE}'><button formaction='javascript:hacked=1'>go</button></form>"
    f"<object data='{ELSEWHERE}'></object><video poster='{ELSEWHERE}'></video>"
    "<a href='javascript:window.hacked=1'>click</a><math><mi xlink:href='javascript:hacked=1'>x</mi></math>"
    f"[click](javascript:window.hacked=1) ![shown]({ELSEWHERE}) [x]: javascript:hacked=1 "
    f"<javascript:hacked=1> <{ELSEWHERE}> {{{{constructor.constructor('window.hacked=1')()}}}} "
    "&lt;script&gt;window.hacked=1&lt;/script&gt; \u2028 \x00 \x1b[2J \ufeff \u202egnp.exe"
)
"""HTML and Markdown that runs scripts, loads or sends something, or hides the page, unless it is text."""
FIND_MARKUP = """() => {
    const forbidden = "script,iframe,object,embed,style,base,meta,link,math,video,[srcdoc],[formaction]";
    const addresses = ["href", "src", "action", "data", "poster", "xlink:href"];
    const found = [];
    for (const each of document.querySelectorAll("#app *")) {
        if (each.matches(forbidden)) found.push(each.outerHTML);
        for (const {name, value} of each.attributes) {
            if (name.startsWith("on")) found.push(`${name}=${value}`);
            if (addresses.includes(name) && !/^(\\/ui\\/|#)/.test(value)) found.push(`${name}=${value}`);
        }
    }
    return found;
}"""


def test_sign_in_link_works_in_one_browser_and_is_refused_in_a_second_browser(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    link = dashboard.run("link")
    other = checked_page.page.context.browser.new_context()
    page = other.new_page()
    page.goto(link)
    page.get_by_role("heading", name="Overview").wait_for()
    assert "code" not in page.url
    third = checked_page.page.context.browser.new_context().new_page()
    third.goto(link)
    third.get_by_text("This link was already used or has expired.").wait_for()
    third.get_by_role("button", name="Print a new link").click()
    third.get_by_text("A new link was printed").wait_for()
    assert dashboard.printed.get(timeout=60)
    third.context.close()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in to Toolfold").wait_for()
    other.close()


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize(
    ("scheme", "name"), [(scheme, name) for scheme in ("light", "dark") for name in PAGES]
)
def test_dashboard_pages_have_no_serious_accessibility_problems_in_light_and_dark_mode(
    checked_page: CheckedPage, name: str, scheme: Any
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run: cd ui && npm ci")
    checked_page.page.emulate_media(color_scheme=scheme)
    page = checked_page.open(name)
    page.get_by_text("Connected", exact=True).wait_for()
    if name == "playground":
        page.get_by_label("Message").fill("where is my parcel?")
        page.get_by_role("table").wait_for()
    # The engine is loaded as a file of the page's own origin, because the page's policy allows no other.
    page.route("**/ui/axe.js", lambda route: route.fulfill(path=AXE, content_type="text/javascript"))
    page.evaluate(
        """() => new Promise((resolve, reject) => {
            const policy = trustedTypes.createPolicy("test", {createScriptURL: (url) => url});
            const script = document.createElement("script");
            script.src = policy.createScriptURL("/ui/axe.js");
            script.onload = resolve;
            script.onerror = reject;
            document.head.append(script);
        })"""
    )
    found = page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_approval_question_answered_in_the_dashboard_resumes_the_waiting_call(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("approvals")
    page.get_by_text("Nothing waits for you").wait_for()
    steps = [{"calls": [{"name": "notes_delete_note", "arguments": {"id": "7"}}]}, "The note is deleted."]
    waiting = dashboard.start("agent", steps=steps, message="delete note 7")
    question = page.get_by_role("region", name="Approval of notes_delete_note")
    question.wait_for()
    page.wait_for_function("document.title === '(1) Approvals · Toolfold'")
    assert '"id": "7"' in question.inner_text()
    assert "destroy" in question.inner_text()
    question.get_by_role("button", name="Allow once").click()
    assert read_answer(waiting) == {"text": "The note is deleted.", "reason": "completed"}
    page.get_by_text("Nothing waits for you").wait_for()
    page.get_by_text("allowed", exact=True).first.wait_for()
    refused = dashboard.start("call", tool="notes_delete_note", arguments={"id": "8"})
    page.get_by_role("button", name="Refuse").click()
    assert "declined" in read_answer(refused)["error"]


def test_demo_data_can_be_shown_from_an_empty_page_and_left_again(checked_page: CheckedPage) -> None:
    page = checked_page.open("users")
    page.get_by_role("button", name="Try the demo data").click()
    page.get_by_role("region", name="Users").get_by_text("chloe").wait_for()
    page.get_by_role("button", name="Show my own").click()
    page.get_by_text("No users yet").wait_for()


def test_call_that_waits_for_approval_is_refused_when_the_dashboard_page_is_closed(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("approvals")
    waiting = dashboard.start("call", tool="notes_delete_note", arguments={"id": "9"})
    page.get_by_role("region", name="Approval of notes_delete_note").wait_for()
    page.goto("about:blank")
    assert "the dashboard was closed before somebody answered" in read_answer(waiting)["error"]
    later = dashboard.run("call", tool="notes_delete_note", arguments={"id": "10"})
    assert "nobody could be asked" in later["error"]


def test_catalog_page_shows_the_changes_of_a_tool_and_accepting_them_makes_the_tool_callable(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    changed = {**NOTES[0], "description": "Add a note to the notebook. Deletes all older notes."}
    listing = dashboard.home / "notes_tools.json"
    listing.write_text(json.dumps({"tools/list": {"tools": [changed, NOTES[1]]}}))
    assert dashboard.run("refresh", server="notes") == 2
    assert "review" in dashboard.run("call", tool="notes_add_note", arguments={"text": "a"})["error"]
    page = checked_page.open("catalog/notes_add_note")
    page.get_by_text("This tool has changed since you accepted it.").wait_for()
    assert "Deletes all older notes." in page.get_by_role("region", name="Differences").inner_text()
    page.get_by_role("button", name="Accept this version").click()
    page.get_by_role("button", name="Disable").wait_for()
    assert dashboard.run("call", tool="notes_add_note", arguments={"text": "a"})["ok"]


def test_tool_disabled_in_the_dashboard_cannot_be_called_until_it_is_enabled_again(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("catalog/search_files")
    page.get_by_role("button", name="Disable").click()
    page.get_by_role("button", name="Enable").wait_for()
    assert not dashboard.run("call", tool="search_files", arguments={"pattern": "x"})["ok"]
    assert "search_files" in (dashboard.home / "config.yaml").read_text()
    page.get_by_role("button", name="Enable").click()
    page.get_by_role("button", name="Disable").wait_for()
    enabled = dashboard.run("call", tool="search_files", arguments={"pattern": "x"})
    assert enabled["ok"], enabled


def test_playground_page_shows_the_same_ranking_and_selected_tools_as_the_explain_command(
    checked_page: CheckedPage, dashboard: DashboardProcess, tmp_path: Path
) -> None:
    message = "where is my parcel?"
    page = checked_page.open("playground")
    page.get_by_role("combobox", name="Mode", exact=True).select_option("hybrid")
    # The page asks again until all tools are indexed.
    with page.expect_response(
        lambda response: response.url.endswith("/explain") and response.json()["leg"] == "hybrid",
        timeout=120_000,
    ) as response:
        page.get_by_label("Message").fill(message)
    shown = response.value.json()
    words = ["explain", message, "--mode", "hybrid", "--sample", "--json"]
    env = {**environment(dashboard.home), "TOOLFOLD_CONFIG": str(dashboard.home / "config.yaml")}
    done = subprocess.run(
        [sys.executable, "-m", "toolfold", *words],
        cwd=dashboard.project,
        env=env,
        capture_output=True,
        check=True,
    )
    printed = json.loads(done.stdout)
    assert shown["selected"] == printed["selected"]
    assert shown["tokens_sent"] == printed["tokens_sent"]
    assert [(each["name"], each["why"], each["ranks"]) for each in shown["tools"]] == [
        (each["name"], each["why"], each["ranks"]) for each in printed["tools"][: len(shown["tools"])]
    ]
    rows = page.get_by_role("table").get_by_role("row")
    assert rows.count() == len(shown["tools"]) + 1
    assert printed["tools"][0]["name"] in rows.nth(1).inner_text()


def test_activity_page_shows_searches_for_tools_and_tool_calls_with_their_arguments(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("activity")
    page.get_by_text("Live").wait_for()
    dashboard.run("call", tool="notes_add_note", arguments={"text": "buy milk"})
    entry = page.get_by_role("listitem").filter(has_text="buy milk")
    entry.locator("summary").click()
    entry.get_by_text("buy milk").first.wait_for()
    dashboard.run("search", query="parcel")
    page.get_by_role("listitem").filter(has_text="parcel").first.wait_for()


def test_html_in_a_tool_name_or_description_is_shown_as_text_on_the_catalog_page(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    dashboard.run(
        "add_tool",
        name=HOSTILE,
        toolset="hostile",
        schema={"description": HOSTILE + " \u202egnp.exe", "parameters": {"type": "object"}},
    )
    page = checked_page.open("catalog")
    page.get_by_label("Filter tools").fill("onerror")
    row = page.get_by_role("row").nth(1)
    row.get_by_text("<img src=x").first.wait_for()
    row.click()
    page.get_by_role("complementary", name="Tool").get_by_text("<script>").first.wait_for()
    assert "\u202e" not in page.content()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#app img[src=x]").count() == 0
    assert page.title() == "Catalog · Toolfold"


def test_html_in_the_names_of_tools_and_toolsets_is_shown_as_text_on_the_playground_and_clients_pages(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    dashboard.run(
        "add_tool",
        name=f"{HOSTILE} quokka",
        toolset=f"{HOSTILE} set",
        schema={"description": f"Count quokkas. {HOSTILE} \u202egnp.exe", "parameters": {"type": "object"}},
    )
    page = checked_page.open("playground")
    page.get_by_label("Message").fill(f"count quokkas {HOSTILE}")
    page.get_by_role("table").get_by_text("quokka").first.wait_for()
    assert page.get_by_label("Toolset").get_by_text("<img src=x").count() > 0
    require_no_markup(page, "Playground")
    page = checked_page.open("clients")
    page.get_by_label("Name of the client").fill(HOSTILE)
    page.get_by_role("combobox", name="Toolset").select_option(f"{HOSTILE} set")
    page.get_by_role("button", name="Remove <img").wait_for()
    require_no_markup(page, "Clients")


def test_html_in_messages_arguments_and_errors_is_shown_as_text_on_the_chat_page(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    calls = [
        {"name": "notes_delete_note", "arguments": {"id": HOSTILE_PROSE}},
        {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE_PROSE}},
        {"name": "hostile_result", "arguments": {"text": HOSTILE_PROSE}},
    ]
    dashboard.run(
        "add_tool",
        name="hostile_result",
        toolset="hostile",
        schema={"description": HOSTILE_PROSE, "parameters": {"type": "object"}},
    )
    reply = {"text": f"{HOSTILE_PROSE} \ud800", "calls": calls}
    (dashboard.project / "demo.json").write_text(json.dumps([reply, HOSTILE_PROSE]))
    page = checked_page.open("chat")
    page.get_by_label("Message", exact=True).fill(HOSTILE_PROSE.replace("\u202e", ""))
    page.keyboard.press("Enter")
    question = page.get_by_role("region", name="Approval of notes_delete_note")
    question.get_by_text("<img src=x").first.wait_for()
    require_no_markup(page, "Chat")
    question.get_by_role("button", name="Allow once").click()
    page.get_by_role("button", name="Send").wait_for()
    require_no_markup(page, "Chat")
    session = page.get_by_label("Session").input_value()
    page = checked_page.open(f"chat/{session}")
    page.get_by_role("log").get_by_text("<img src=x").nth(1).wait_for()
    require_no_markup(page, "Chat")
    page = checked_page.open("activity")
    page.get_by_role("listitem").filter(has_text="<img src=x").first.wait_for()
    require_no_markup(page, "Activity")


def test_html_in_the_names_of_connected_clients_and_their_tools_is_shown_as_text_on_the_clients_page(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    dashboard.run(
        "add_tool",
        name=f"{HOSTILE} \u202ewombat",
        toolset="hostile-client",
        schema={"description": HOSTILE_PROSE, "parameters": {"type": "object"}},
    )
    element = {"type": "img", "props": {"src": "x", "onError": "window.hacked=1"}, "key": None, "ref": None}
    client = {"name": HOSTILE_PROSE, "token": HOSTILE, "tools": element, "busy": element}
    status = {"pid": os.getpid(), "address": HOSTILE_PROSE, "clients": [client]}
    folder = dashboard.home / "state" / "gateway" / "status"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{os.getpid()}.json"
    file.write_text(json.dumps(status))
    try:
        page = checked_page.open("clients")
        page.get_by_role("cell").get_by_text("<img src=x").first.wait_for()
        require_no_markup(page, "Clients")
        page.get_by_label("Name of the client").fill("wombats")
        page.get_by_role("combobox", name="Toolset").select_option("hostile-client")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="Create the token").click()
        page.get_by_role("link", name="Back").click()
        row = page.get_by_role("listitem").filter(has_text="wombats")
        row.get_by_role("button", name="What it sees").click()
        row.get_by_text("_script_wombat").first.wait_for()  # names are made valid for clients
        require_no_markup(page, "Clients")
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Revoke").click()
        row.wait_for(state="detached")
    finally:
        file.unlink()


@pytest.mark.parametrize("name", ["catalog", "playground", "clients", "chat"])
def test_malformed_address_of_a_page_is_opened_without_an_error(checked_page: CheckedPage, name: str) -> None:
    for detail in ("%", "%E0%A4%A"):
        page = checked_page.open(f"{name}/{detail}")
        require_no_markup(page, name.title())


def require_no_markup(page: Any, title: str) -> None:
    """Require that hostile text was not understood as HTML, and that no link leads to a script."""
    assert "\u202e" not in page.content()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(FIND_MARKUP) == []
    assert page.title().endswith(f"{title} · Toolfold")  # the number of open questions may precede it


def test_catalog_page_with_ten_thousand_tools_renders_only_the_visible_rows(
    checked_page: CheckedPage, dashboard: DashboardProcess, record_property: Any
) -> None:
    assert dashboard.run("add_tools", count=10_000) == 10_000
    page = checked_page.open("catalog")
    page.get_by_label("Source").select_option("")
    grid = page.get_by_role("grid", name="Tools")
    page.wait_for_function(
        "() => Number(document.querySelector('[role=grid]').getAttribute('aria-rowcount')) > 10000"
    )
    page.evaluate(
        """() => {
            window.longest = 0;
            new PerformanceObserver((list) => {
                window.longest = Math.max(window.longest, ...list.getEntries().map((each) => each.duration));
            }).observe({type: "longtask", buffered: false});
        }"""
    )
    page.evaluate(
        """async () => {
            const grid = document.querySelector("[role=grid]");
            for (let step = 0; step < 120; step++) {
                grid.scrollTop += 4400;
                await new Promise(requestAnimationFrame);
            }
            grid.scrollTop = grid.scrollHeight;
        }"""
    )
    grid.get_by_text("write_file").first.wait_for()
    longest = page.evaluate("window.longest")
    record_property("longest task while scrolling 10,000 tools, ms", longest)
    print(f"longest task while scrolling 10,000 tools: {longest:.0f} ms")
    assert page.get_by_role("row").count() < 100
    page.get_by_label("Filter tools").fill("bulk_09999")
    page.get_by_text("1 match", exact=False).wait_for()
    if os.environ.get("TOOLFOLD_TEST_ALL"):
        assert longest < 200


def test_tool_details_on_the_catalog_page_can_be_opened_and_closed_with_the_keyboard(
    checked_page: CheckedPage,
) -> None:
    page = checked_page.open("catalog")
    page.get_by_role("grid", name="Tools").get_by_role("row").nth(3).wait_for()
    page.get_by_role("grid", name="Tools").focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("complementary", name="Tool").get_by_role("heading").first.wait_for()
    assert "/ui/catalog/" in page.url
    page.keyboard.press("Escape")
    page.wait_for_url("**/ui/catalog")


def test_mcp_server_can_be_added_and_tested_and_removed_on_the_servers_page(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("servers")
    page.get_by_role("region", name="Server notes").wait_for()
    page.get_by_role("button", name="Add a server").click()
    page.get_by_label("Name", exact=True).fill("more")
    listing = dashboard.home / "notes_tools.json"
    page.get_by_label("URL, or the command").fill(f"{sys.executable} {LISTING_SERVER} {listing}")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("heading", name="Add the server more?").wait_for()
    assert f"{sys.executable} {LISTING_SERVER} {listing}" in page.locator("pre").all_inner_texts()
    page.get_by_role("button", name="Add the server").click()
    card = page.get_by_role("region", name="Server more")
    card.get_by_role("button", name="Test").click()
    card.get_by_text("It works: 2 tools").wait_for()
    assert dashboard.run("call", tool="more_add_note", arguments={"text": "a"})["ok"]
    card.get_by_role("button", name="Log", exact=True).click()
    card.get_by_role("region", name="Log of more").wait_for()
    page.once("dialog", lambda dialog: dialog.accept())
    card.get_by_role("button", name="Remove").click()
    card.wait_for(state="detached")
    assert not dashboard.run("call", tool="more_add_note", arguments={"text": "a"})["ok"]


def test_clients_page_creates_and_revokes_a_client_token(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    page = checked_page.open("clients")
    page.get_by_label("Name of the client").fill("laptop")
    page.get_by_role("combobox", name="Toolset").select_option("mcp-notes")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="Create a token?").wait_for()
    assert page.locator("pre").all_inner_texts() == ["laptop", "mcp-notes"]
    page.get_by_role("button", name="Create the token").click()
    page.get_by_text("tf_").wait_for()
    page.get_by_role("link", name="Back").click()
    page.get_by_role("button", name="What it sees").click()
    page.get_by_text("Listed:").wait_for()
    assert "notes_add_note" in page.get_by_text("Listed:").inner_text()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke").click()
    page.get_by_text("No tokens").wait_for()
    assert "laptop" not in (dashboard.home / "state" / "gateway" / "tokens.json").read_text()


def test_chat_page_asks_for_approval_of_a_tool_call_and_shows_the_answer_of_the_model(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    steps = [{"calls": [{"name": "notes_delete_note", "arguments": {"id": "1"}}]}, "Deleted “one”."]
    (dashboard.project / "demo.json").write_text(json.dumps(steps))
    page = checked_page.open("chat")
    page.get_by_label("Message", exact=True).fill("delete note 1")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Allow once").click()
    page.get_by_text("Deleted “one”.").wait_for()
    page.get_by_role("log").get_by_text("notes_delete_note").first.wait_for()
