"""The servers page with a protected and a hanging server, example messages by source, and `toolfold ui`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.conftest import NOTES, CheckedPage
from tests.dashboard.harness import DashboardProcess, run_dashboard, write_home
from tests.gateway.gateway_process import environment
from tests.mcp.issuers import OAuthSetup, run_oauth_setup

pytestmark = pytest.mark.clients

TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def oauth_setup() -> Iterator[OAuthSetup]:
    with run_oauth_setup() as found:
        yield found


@pytest.fixture(scope="module")
def dashboard(
    tmp_path_factory: pytest.TempPathFactory, oauth_setup: OAuthSetup
) -> Iterator[DashboardProcess]:
    """A dashboard with a server that needs a login and one that never answers."""
    home: Path = tmp_path_factory.mktemp("home")
    write_home(home, NOTES)
    settings = json.loads((home / "config.yaml").read_text())
    hanging = {"command": sys.executable, "args": ["-c", "import time; time.sleep(3600)"]}
    settings["mcp"]["servers"] |= {"protected": {"url": oauth_setup.url}, "hanging": hanging}
    (home / "config.yaml").write_text(json.dumps(settings))
    with run_dashboard(home) as process:
        yield process


def test_oauth_login_on_the_servers_page_makes_the_tools_of_the_server_callable(
    checked_page: CheckedPage, dashboard: DashboardProcess, oauth_setup: OAuthSetup
) -> None:
    page = checked_page.open("servers")
    card = page.get_by_role("region", name="Server protected")
    card.get_by_text("login", exact=True).wait_for()
    with page.context.expect_page() as opened:
        card.get_by_role("button", name="Log in").click()
    assert opened.value.evaluate("window.opener") is None
    card.get_by_text("1 tool", exact=False).wait_for()
    card.get_by_text("up", exact=True).wait_for()
    result = dashboard.run("call", tool="protected_add", arguments={"a": 2, "b": 3})
    assert result["ok"], result
    shown = page.content()
    assert not [secret for secret in oauth_setup.issuer.issued() if secret in shown]


def test_servers_page_can_test_another_server_after_the_test_of_a_hanging_server_is_cancelled(
    checked_page: CheckedPage,
) -> None:
    page = checked_page.open("servers")
    card = page.get_by_role("region", name="Server hanging")
    card.get_by_role("button", name="Test", exact=True).click()
    card.get_by_role("button", name="Cancel").click()
    card.get_by_text("The test was cancelled.").wait_for()
    card.get_by_role("button", name="Test", exact=True).wait_for()
    other = page.get_by_role("region", name="Server notes")
    other.get_by_role("button", name="Test", exact=True).click()
    other.get_by_text("It works: 2 tools").wait_for()


def test_tool_page_lists_example_messages_written_by_a_model_and_learned_messages_separately(
    checked_page: CheckedPage, dashboard: DashboardProcess
) -> None:
    hostile = "<img src=x onerror=1> remember the milk for me"
    added = dashboard.run(
        "add_examples",
        tool="notes_add_note",
        enriched=[hostile],
        learned=["please note down: buy milk in the notebook"],
    )
    assert added == [""], added
    page = checked_page.open("catalog/notes_add_note")
    written = page.get_by_role("list", name="Example messages: Written by a model")
    written.get_by_text("remember the milk for me").wait_for()
    learned = page.get_by_role("list", name="Example messages: Learned from use")
    learned.get_by_text("please note down").wait_for()
    learned.get_by_text("once, last on", exact=False).first.wait_for()
    assert page.locator("#app img[src=x]").count() == 0


def test_toolfold_ui_command_opens_the_browser_with_a_sign_in_link(tmp_path: Path) -> None:
    home, seen = tmp_path / "home", tmp_path / "seen.html"
    home.mkdir()
    (tmp_path / "project").mkdir()
    script = tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\ncat "${{1#file://}}" > "{seen}.new" && mv "{seen}.new" "{seen}"\n')
    script.chmod(0o700)
    with (tmp_path / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "toolfold", "ui", "--port", "0"],
            cwd=tmp_path / "project",
            env={**environment(home), "BROWSER": f"{script} %s"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not seen.exists():
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
            time.sleep(0.05)
        link = re.search(r"url=(http://127\.0\.0\.1:\d+/ui/#code=[\w-]+)", seen.read_text())
        assert link is not None, seen.read_text()
        assert link.group(1) not in (tmp_path / "output.txt").read_text(), "each link is for one browser"
        redirects = list((home / "state" / "dashboard").glob("open-*.html"))
        assert [oct(each.stat().st_mode & 0o777) for each in redirects] == ["0o600"]
    finally:
        os.kill(process.pid, signal.SIGINT)
        process.wait(TIMEOUT_S)
    assert list((home / "state" / "dashboard").glob("open-*.html")) == []
