"""Toolfold beside version 1 of the package `mcp`, which some agent frameworks need."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pydantic
import pytest

from tests.mcp.servers import client_libraries_python

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.INFO)
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[2])
from importlib.metadata import version
from toolfold import open_runtime
assert version("mcp").startswith("1."), version("mcp")
with open_runtime(user_settings=True) as runtime:
    session = runtime.session(["file"])
    print("tools:", len(session.definitions()))
    print("called:", session.call_sync("read_file", {"path": "notes.txt"}).ok)
"""


def test_local_tools_work_and_mcp_servers_are_reported_as_unusable_with_an_older_mcp_package(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "toolfold" / "config.yaml"
    settings.parent.mkdir()
    settings.write_text("mcp: {servers: {clock: {command: 'true'}}}\n")
    (tmp_path / "notes.txt").write_text("hello")
    done = subprocess.run(
        [
            str(client_libraries_python()),
            "-c",
            PROGRAM,
            str(ROOT / "src"),
            str(Path(pydantic.__file__).parents[1]),
        ],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "called: True" in done.stdout, done.stderr
    assert "of the package mcp. Install version 2 or newer" in done.stderr
