"""Upgrades of real servers: each changed tool is accepted, or held for review with a reason."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mcp import servers
from toolfold.config import load_config
from toolfold.core.registry import Registry
from toolfold.mcp.pool import McpServers

OLDER = Path(sys.prefix, "test_tools/mcp/older")
FILESYSTEM = "@modelcontextprotocol/server-filesystem"
INSTALL_TIMEOUT_S = 150


def install_once(place: Path, command: list[str]) -> None:
    """Run a command that installs packages into a directory. Skips the test if that fails."""
    OLDER.mkdir(parents=True, exist_ok=True)
    with (OLDER / "lock").open("w") as lock:  # tests may run in parallel
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / ".complete").exists():
            return
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"the older version cannot be installed: {error}")
        (place / ".complete").touch()


def older_filesystem(version: str, folder: Path) -> dict[str, Any]:
    node, _, *words = servers.stdio_command("filesystem", folder).argv
    place = OLDER / f"filesystem-{version}"
    npm = str(Path(node).parents[1] / "lib/node_modules/npm/bin/npm-cli.js")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel", "error"]
    install_once(place, [node, npm, "install", "--prefix", str(place), *options, f"{FILESYSTEM}@{version}"])
    return {"command": node, "args": [str(place / f"node_modules/{FILESYSTEM}/dist/index.js"), *words]}


def older_git(version: str, folder: Path) -> dict[str, Any]:
    """Return the command of an older git server, which uses the dependencies of the newer server."""
    program, *words = servers.stdio_command("git", folder).argv
    place = OLDER / f"git-{version}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    install_once(place, [*pip, "--no-deps", "--target", str(place), f"mcp-server-git=={version}"])
    python = str(Path(program).with_name("python"))
    return {
        "command": python,
        "args": ["-m", "mcp_server_git", *words],
        "env": {"PYTHONPATH": str(place)},
    }


def held_after_upgrade(
    home: Path, name: str, older: dict[str, Any], newer: dict[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Accept the tools of the older version, start the newer one, and return the tools held for review."""
    for command in (older, newer):
        config = load_config(
            env={"TOOLFOLD_HOME": str(home)}, project=home, overrides={"mcp": {"servers": {name: command}}}
        )
        pool = McpServers(config, Registry(), behind_gateway=True)
        try:
            assert pool.refresh_listing(name).tools
            held = {each.tool.name: each.changes for each in pool.held_tools(name)}
        finally:
            pool.close()
    return held


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("name", "older", "version", "held"),
    [
        ("filesystem", older_filesystem, "2025.11.25", {"read_media_file": "base64-encoded content block"}),
        ("git", older_git, "2025.9.25", {"git_show": "{+commit, or of a file or directory given as"}),
        (
            "git",
            older_git,
            "2025.1.14",
            {"git_show": "{+commit, or of a file or directory given as", "git_branch": ""},
        ),
    ],
)
def test_only_new_and_changed_tools_need_a_review_after_the_upgrade_of_a_real_server(
    tmp_path: Path,
    name: str,
    older: Callable[[str, Path], dict[str, Any]],
    version: str,
    held: dict[str, str],
) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    newer = servers.stdio_command(name, folder).entry
    found = held_after_upgrade(home, name, older(version, folder), newer)
    assert found.keys() == held.keys()
    for tool, text in held.items():
        assert text in " ".join(found[tool])
