"""`toolfold serve FILE.py` and `toolfold mcp serve FILE.py`: real processes and a real client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateway_process import environment, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S, fault_server, result_text
from toolfold.config import load_config
from toolfold.serving.gateway.client_tokens import open_tokens

TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
MODULE = '''
from harbour_data import BOATS
from toolfold import tool

print("standard output belongs to the protocol")

@tool
def count_boats(pier: str) -> dict[str, object]:
    """Count the boats at a pier."""
    return {"pier": pier, "boats": BOATS}

@tool
def read_file(path: str) -> str:
    """A function with the name of a built-in tool."""
    return "own " + path

@tool(effects=["destructive"])
def sink(boat: str) -> str:
    """Sink a boat."""
    return "sunk"
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user with a configured server, in whose working directory there is a module with tools."""
    (tmp_path / "my_tools.py").write_text(MODULE)
    (tmp_path / "harbour_data.py").write_text("BOATS = 3\n")
    servers = {"a": fault_server("--tools", "2")}
    settings: dict[str, Any] = {"mcp": {"servers": servers, "wait_seconds": 60}}
    write_settings(tmp_path / "home", settings | {"gateway": {"allow_anonymous": True}})
    return tmp_path / "home"


def stdio_client(home: Path, *words: str) -> Client:
    parameters = StdioServerParameters(
        command=TOOLFOLD, args=["mcp", "serve", *words], env=environment(home), cwd=home.parent
    )
    return Client(parameters)


async def use_functions(client: Client) -> None:
    """Use the functions of the module as a client that has only these."""
    assert {each.name for each in (await client.list_tools()).tools} == {"count_boats", "read_file", "sink"}
    assert '"boats":3' in result_text(await client.call_tool("count_boats", {"pier": "north"}))
    assert "own x" in result_text(await client.call_tool("read_file", {"path": "x"}))
    assert "not run" in result_text(await client.call_tool("sink", {"boat": "Alma"}))
    for name, arguments in (("terminal", {"command": "id"}), ("write_file", {"path": "x", "content": "y"})):
        assert "not available in this session" in result_text(await client.call_tool(name, arguments))


async def test_client_over_stdio_gets_the_functions_of_a_file_and_nothing_else(home: Path) -> None:
    async with stdio_client(home, "my_tools.py") as client:
        await use_functions(client)


async def test_client_over_http_gets_the_functions_of_a_dotted_module_and_nothing_else(home: Path) -> None:
    with gateway_process(home, "my_tools", cwd=home.parent) as gateway:
        async with Client(gateway.url) as client:
            await use_functions(client)
        assert "Serving 3 functions at http" in gateway.log.read_text()


@pytest.mark.parametrize("toolsets", [None, ["terminal", "file", "todo"]])
async def test_client_with_a_token_gets_no_more_than_the_functions(
    home: Path, toolsets: list[str] | None
) -> None:
    config = load_config(project=home.parent, env=environment(home))
    token = open_tokens(config, None).add("ci", toolsets)
    with gateway_process(home, "my_tools", cwd=home.parent) as gateway:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
            Client(streamable_http_client(gateway.url, http_client=http)) as client,
        ):
            names = {each.name for each in (await client.list_tools()).tools}
            refused = result_text(await client.call_tool("terminal", {"command": "id"}))
    assert names <= {"count_boats", "read_file", "sink"}
    assert "not available in this session" in refused


async def test_functions_are_served_beside_the_configured_servers_if_asked(home: Path) -> None:
    file = home.parent / "my_tools.py"
    file.write_text(MODULE.replace("def read_file", "def read_own_file"))
    async with stdio_client(home, "my_tools.py", "--with-settings") as client:
        names = {each.name for each in (await client.list_tools()).tools}
    assert names >= {"count_boats", "read_own_file", "sink"}
    assert any(name.startswith("a_") for name in names)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("bad.py", "x = 1\nimport nowhere\n", "No module named 'nowhere' (…/bad.py, line 2)"),
        ("bad.py", "\ndef f(:\n", "bad.py, line 2"),
        ("bad.py", "raise SystemExit(1)\n", "bad.py cannot be imported: SystemExit"),
        ("bad.py", "x = 1\n", "bad.py defines no tools"),
        ("nowhere.py", "", "there is no file nowhere.py"),
        ("bad.py", "from toolfold import tool\n@tool(effects=['reed'])\ndef f(): ...", "Did you mean read?"),
        (
            "bad.py my_tools.py",
            MODULE,
            "two tools are named 'count_boats': one of bad.py and one of my",
        ),
        ("my_tools.py --with-settings", "", "'read_file' is already registered by toolset 'file'"),
        ("--with-settings", "", "needs a module"),
        ("my_tools.py --toolset file", "", "--toolset needs --with-settings"),
    ],
)
def test_module_that_cannot_be_served_is_reported(home: Path, words: str, code: str, problem: str) -> None:
    (home.parent / "bad.py").write_text(code)
    done = subprocess.run(
        [TOOLFOLD, "mcp", "serve", *words.split()],
        cwd=home.parent,
        env=os.environ | environment(home) | {"COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert problem in done.stderr.replace(f"{home.parent}", "…")
    assert done.stdout == ""
