"""Every command of the tutorials works, and prints what the tutorial shows."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from tests.console import Command, compare_output, find_commands, find_files, run_commands

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
PORT = re.compile(r"\b87\d\d\b")


def use_free_ports(text: str) -> str:
    """Return a page with free ports in the place of those that it names or that are the default."""
    text = text.replace("toolfold serve >", "toolfold serve --port 8765 >")
    named = sorted(set(PORT.findall(text)))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in named]
        for free in sockets:  # all stay open until the last is bound, so that no port is chosen twice
            free.bind(("127.0.0.1", 0))
        ports = {port: str(free.getsockname()[1]) for port, free in zip(named, sockets, strict=True)}
    return PORT.sub(lambda found: ports[found[0]], text)


def build_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a new user with Toolfold installed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"HOME": str(directory), "TOOLFOLD_HOME": str(directory / "home"), "PATH": path, "COLUMNS": "100"}


def follow_page(text: str, directory: Path) -> list[str]:
    """Write the files and run the commands of a page, and return what differs from it."""
    for name, content in find_files(text).items():
        (directory / name).write_text(content, encoding="utf-8")
    commands = find_commands(text)
    results = run_commands(commands, directory, build_environment(directory))
    problems = [compare_output(command, *result) for command, result in zip(commands, results, strict=False)]
    problems += [f"marked as injected: {text}" for text, _ in results if "⟦" in text or "suspicious" in text]
    missing = [f"did not end: {each.text}" for each in commands[len(results) :]]
    return [each for each in problems if each] + missing


@pytest.mark.thorough(keep=("library",))
@pytest.mark.parametrize("name", ["gateway", "library", "server"])
def test_commands_of_each_tutorial_print_the_documented_output(name: str, tmp_path: Path) -> None:
    text = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    assert "\n\n".join(follow_page(use_free_ports(text), tmp_path)) == ""


def test_every_tutorial_page_is_tested() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} == {"index", "gateway", "library", "server"}


def test_tutorial_check_accepts_ellipses_and_reports_wrong_output_or_exit_code() -> None:
    command = Command("list", "first ... line\n...\nlast")
    assert compare_output(command, "first and only line\nmore\n\nlast\n", 0) is None
    assert compare_output(command, "first and only line\n", 0) is not None
    assert compare_output(Command("quiet", ""), "", 0) is None
    assert compare_output(Command("quiet", ""), "a warning\n", 0) is not None
    assert compare_output(Command("quiet", ""), "", 1) is not None
