"""Start a dashboard process and a real browser for tests and screenshots."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TIMEOUT_S = 120.0
LISTING_SERVER = Path(__file__).parent.parent / "mcp" / "listing_server.py"
ROOT = Path(__file__).parent.parent.parent


class DashboardProcess:
    """A running dashboard, and the commands that it accepts."""

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self._process, self.home, self.project = process, home, find_project(home)
        self._ids = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._started: queue.Queue[dict[str, Any]] = queue.Queue()
        self.printed: queue.Queue[str] = queue.Queue()
        """Codes of links that the dashboard has printed on request."""
        threading.Thread(target=self._read_lines, daemon=True).start()
        self.port: int = self._started.get(timeout=TIMEOUT_S)["port"]
        self.url = f"http://127.0.0.1:{self.port}/ui/"

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "port" in message:
                self._started.put(message)
            elif "printed" in message:
                self.printed.put(message["printed"])
            else:
                self._answers[message["id"]].put(message)

    def start(self, do: str, **arguments: Any) -> queue.Queue[dict[str, Any]]:
        """Send a command and return the queue that gets its answer."""
        number = next(self._ids)
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers[number] = answers
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, "with": arguments}) + "\n")
        self._process.stdin.flush()
        return answers

    def run(self, do: str, **arguments: Any) -> Any:
        """Send a command and return its answer."""
        return read_answer(self.start(do, **arguments))


def read_answer(answers: queue.Queue[dict[str, Any]]) -> Any:
    """Wait for the answer to a command."""
    message = answers.get(timeout=TIMEOUT_S)
    assert "problem" not in message, message
    return message["answer"]


def find_project(home: Path) -> Path:
    """Return the project directory, which must not contain the settings."""
    return home.with_name(f"{home.name}-project")


def write_home(home: Path, tools: list[dict[str, Any]], *, embedder: str = "light") -> Path:
    """Write settings with the MCP server `notes`; return the file from which it reads its tools."""
    find_project(home).mkdir(parents=True, exist_ok=True)
    listing = home / "notes_tools.json"
    listing.write_text(json.dumps({"tools/list": {"tools": tools}}))
    server = {"command": sys.executable, "args": [str(LISTING_SERVER), str(listing)]}
    settings = {
        "mcp": {"servers": {"notes": server}},
        "tools": {"tool_search": {"enabled": "on"}, "rag_embed_model": embedder},
        "agent": {"model": "scripted:demo.json"},
    }
    (home / "config.yaml").write_text(json.dumps(settings))
    return listing


@contextmanager
def run_dashboard(home: Path) -> Iterator[DashboardProcess]:
    """Run a dashboard until the block ends."""
    with (home / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.dashboard.dashboard_process", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=find_project(home),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield DashboardProcess(process, home)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def find_chromium() -> str:
    """Return the path of Chromium; empty if it is not installed."""
    import shutil

    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), "")
