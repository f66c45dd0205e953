"""Expensive results, lines and streams are refused or truncated while other servers keep responding."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import free_port
from tests.mcp.load_server import BODIES, LINES
from tests.mcp.servers import run_at_port
from toolfold import load_config
from toolfold.core.types import ToolResult
from toolfold.mcp.content import McpResponse
from toolfold.mcp.result_limits import MAX_PARTS, truncate_result
from toolfold.runtime.dispatch import MAX_FILES
from toolfold.runtime.runtime import Runtime, open_runtime

LOAD = str(Path(__file__).parent / "load_server.py")


def raw_of(result: ToolResult) -> Any:
    assert isinstance(result.raw, McpResponse)
    return result.raw.result


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("load")
    port = free_port()
    pipe = {"command": sys.executable, "args": [LOAD], "call_timeout_seconds": 120}
    servers = {
        "pipe": pipe,
        "other": pipe,
        **{f"pipe{number}": pipe for number in range(len(LINES))},
        "web": {"url": f"http://127.0.0.1:{port}/mcp", "call_timeout_seconds": 120},
    }
    config = load_config(
        overrides={"mcp.servers": servers, "mcp.wait_seconds": 60.0},
        env={"TOOLFOLD_HOME": str(folder), "PATH": "/usr/bin:/bin"},
    )
    argv = [sys.executable, LOAD, "--port", str(port)]
    with (
        run_at_port(port, argv, folder / "web.log"),
        open_runtime(config, behind_gateway=True) as opened,
    ):
        opened.mcp.settle()
        yield opened


async def load(runtime: Runtime, kind: str, *, server: str = "pipe", scale: float = 1.0) -> ToolResult:
    """Call the load server, and assert that another server responds during the call."""
    session = runtime.session()
    await session.prepare()
    expensive = asyncio.create_task(session.call(f"{server}_load", {"kind": kind, "scale": scale}))
    harmless = await session.call("other_load", {"kind": "hello"})
    assert json.loads(harmless.text) == {"result": "hello"}
    return await expensive


def stored(runtime: Runtime) -> int:
    return sum(1 for each in (runtime.config.paths.state_dir).rglob("*") if each.is_file())


@pytest.mark.parametrize("server", ["pipe", "web"])
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("images", "has more than 200,000 JSON values and keys"),
        ("resources", "has more than 200,000 JSON values and keys"),
        ("lists", "has more than 200,000 JSON values and keys"),
        ("strings", "has more than 200,000 JSON values and keys"),
        ("keys", "has more than 200,000 JSON values and keys"),
        ("deep", "has more than 200,000 JSON values and keys"),
        ("integers", "has a number of more than 1,000 digits"),
    ],
)
async def test_call_fails_if_the_server_response_contains_too_many_json_values_or_too_long_numbers(
    runtime: Runtime, server: str, kind: str, problem: str
) -> None:
    before = stored(runtime)
    result = await load(runtime, kind, server=server)
    assert problem in (result.error or "")
    assert stored(runtime) <= before + 1


@pytest.mark.parametrize("kind", ["images", "sounds", "resources", "links", "texts"])
async def test_tool_result_with_too_many_content_blocks_is_truncated_and_stores_few_files(
    runtime: Runtime, kind: str
) -> None:
    before = stored(runtime)
    result = await load(runtime, kind, scale=0.05)
    assert result.ok
    assert len(raw_of(result).content) == MAX_PARTS + 1
    assert raw_of(result).content[-1].text.endswith("more items were dropped)")
    assert len(result.media) <= MAX_PARTS
    assert stored(runtime) <= before + MAX_FILES + 1


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "kind", ["newlines", "tabs", "escapes", "zero-width", "surrogates", "csv", "prose", "json text"]
)
async def test_very_long_tool_result_is_truncated_and_its_full_text_is_stored_in_one_file(
    runtime: Runtime, kind: str
) -> None:
    before = stored(runtime)
    result = await load(runtime, kind)
    assert result.ok
    assert json.loads(result.text)["truncated"] is True
    assert stored(runtime) == before + 1


async def test_tool_results_with_a_large_image_or_90000_numbers_are_accepted(runtime: Runtime) -> None:
    image = await load(runtime, "one image")
    assert image.ok
    assert len(raw_of(image).content[0].data) == 4 * 2_300_000
    table = await load(runtime, "many numbers")
    assert table.value == {"x": [12345] * 90_000}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", list(LINES))
async def test_flood_of_output_lines_from_a_server_is_dropped_or_ends_the_connection(
    runtime: Runtime, kind: str
) -> None:
    server = f"pipe{list(LINES).index(kind)}"  # one each: a server that floods is given up
    result = await load(runtime, kind, server=server, scale=0.02)
    endings = ("disconnected", "unknown request id", "that is not a message")
    assert result.ok or any(each in (result.error or "") for each in endings), result.error


async def test_very_long_error_text_of_a_server_is_truncated_in_the_error_of_the_call(
    runtime: Runtime,
) -> None:
    result = await load(runtime, "error")
    assert (result.error or "").endswith("… (cut)")
    assert len(result.error or "") < 3_000


async def test_call_fails_if_the_http_response_of_the_server_arrives_in_tiny_chunks(runtime: Runtime) -> None:
    result = await load(runtime, "chunks", server="web", scale=0.1)
    assert "in small pieces, more than 1,000 of less than 16 bytes in a second" in (result.error or "")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("event lines", "has more than 10,000 lines"),
        ("event lists", "has more than 200,000 JSON values and keys"),
    ],
)
async def test_call_fails_if_a_server_sent_event_has_too_many_json_values(
    runtime: Runtime, kind: str, problem: str
) -> None:
    result = await load(runtime, kind, server="web")
    assert problem in (result.error or "")


@pytest.mark.parametrize("kind", ["comments", "blank events", "tiny events"])
async def test_call_succeeds_if_the_event_stream_contains_many_comments_or_empty_events(
    runtime: Runtime, kind: str
) -> None:
    result = await load(runtime, kind, server="web", scale=0.05)
    assert json.loads(result.text) == {"result": kind}


async def test_call_fails_if_the_event_stream_of_the_server_arrives_in_tiny_chunks(runtime: Runtime) -> None:
    result = await load(runtime, "event chunks", server="web")
    assert result.error
    again = await load(runtime, "hello", server="web")
    assert json.loads(again.text) == {"result": "hello"}


async def test_call_fails_if_the_http_server_sends_endless_response_headers(runtime: Runtime) -> None:
    result = await load(runtime, "headers", server="web")
    assert result.error


def test_list_of_tested_response_bodies_includes_tiny_chunks_and_comments_and_empty_events() -> None:
    assert set(BODIES) >= {"chunks", "comments", "blank events", "tiny events", "event lines", "event lists"}


def test_truncate_result_shortens_content_lists_above_the_limit_and_states_the_number_removed() -> None:
    result: dict[str, Any] = {
        "contents": [{}] * (MAX_PARTS + 2),
        "messages": [{}] * MAX_PARTS,
    }
    cut = truncate_result(result)
    assert cut["contents"][-1]["text"] == "(2 more items were dropped)"
    assert len(cut["messages"]) == MAX_PARTS
    assert truncate_result("nothing") == "nothing"
