"""Real servers from PyPI and npm, listed by a runtime and called through a session, over every transport."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import wave
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.mcp import servers
from toolfold import Runtime, Session, ToolResult, open_runtime
from toolfold.config import load_config
from toolfold.core.types import CallContext
from toolfold.mcp.call_relay import CallRelay

TIMEOUT_S = 60.0
CALLED = (
    "everything",
    "filesystem",
    "memory",
    "git",
    "git-npm",
    "time",
    "fetch",
    "sqlite",
    "sequential-thinking",
)


def opened(folder: Path, found: Mapping[str, object]) -> Runtime:
    """Open a runtime with the given servers and all their tools, in which every call is approved."""
    home = folder / "home"
    home.mkdir(parents=True)
    known = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    settings = {"mcp.servers": found, "mcp.wait_seconds": TIMEOUT_S}
    config = load_config(project=folder, env=known, overrides=settings)
    return open_runtime(config, approver=lambda _request: True)


@contextmanager
def open_single_server(name: str, folder: Path, **more: Any) -> Iterator[Session]:
    """Open a session with one server, which works in `folder`."""
    place = folder / "place"
    place.mkdir()
    entry = servers.stdio_command(name, place).entry
    with opened(folder, {name: {**entry, **more}}) as runtime:
        yield runtime.session(["all"])


@pytest.fixture(scope="module", params=["stdio", "http", "sse"])
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """The reference server "everything", over each transport."""
    folder, way = tmp_path_factory.mktemp("everything"), request.param
    with ExitStack() as stack:
        if way == "stdio":
            entry: dict[str, object] = servers.stdio_command("everything", folder).entry
        else:
            listening = stack.enter_context(servers.everything_over_http(way, folder / "log"))
            entry = {"url": listening.url, "transport": way}
        runtime = stack.enter_context(opened(folder, {"it": {**entry, "call_timeout_seconds": TIMEOUT_S}}))
        yield runtime.session(["all"])


def value(result: ToolResult) -> Any:
    assert not result.error, result.error
    found = json.loads(result.text)
    return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", CALLED)
def test_every_expected_tool_of_a_real_mcp_server_is_offered_to_the_session(
    name: str, tmp_path: Path
) -> None:
    with open_single_server(name, tmp_path) as session:
        offered = session.assemble().offered_names
    assert {f"mcp_{name}_{tool}" for tool in servers.REAL[name].tools} <= offered


def test_call_to_the_mcp_reference_server_everything_returns_text(everything: Session) -> None:
    assert value(everything.call_sync("mcp_it_echo", {"message": "hello"})) == "Echo: hello"
    assert "5" in value(everything.call_sync("mcp__it__get-sum", {"a": 2, "b": 3}))


def test_call_to_the_mcp_reference_server_everything_returns_structured_values(everything: Session) -> None:
    weather = value(everything.call_sync("mcp_it_get-structured-content", {"location": "Chicago"}))
    assert {"temperature", "conditions", "humidity"} <= set(weather)


def test_call_to_the_mcp_reference_server_everything_returns_an_image(everything: Session) -> None:
    result = everything.call_sync("mcp_it_get-tiny-image", {})
    assert [(media.kind, media.mime_type) for media in result.media] == [("image", "image/png")]
    assert "image 1" in value(result)


def test_call_to_the_mcp_reference_server_everything_returns_resources_and_resource_links(
    everything: Session,
) -> None:
    asked = {"resourceType": "Text", "resourceId": 1}
    assert "plaintext resource" in value(everything.call_sync("mcp_it_get-resource-reference", asked))
    links = value(everything.call_sync("mcp_it_get-resource-links", {"count": 3}))
    assert links.count("demo://resource/") == 3


def test_resources_of_the_mcp_reference_server_everything_are_listed_and_read(everything: Session) -> None:
    listed = value(everything.call_sync("mcp_it_list_resources", {}))
    address = listed["resources"][0]["uri"]
    assert value(everything.call_sync("mcp_it_read_resource", {"uri": address}))


def test_prompts_of_the_mcp_reference_server_everything_are_listed_and_filled_with_arguments(
    everything: Session,
) -> None:
    listed = value(everything.call_sync("mcp_it_list_prompts", {}))
    assert "args-prompt" in {prompt["name"] for prompt in listed["prompts"]}
    asked = {"name": "args-prompt", "arguments": {"city": "Lisbon"}}
    assert "Lisbon" in json.dumps(value(everything.call_sync("mcp_it_get_prompt", asked)))


def test_error_of_the_mcp_reference_server_everything_contains_the_name_of_a_missing_argument(
    everything: Session,
) -> None:
    assert "message" in (everything.call_sync("mcp_it_echo", {}).error or "")


def test_call_to_a_real_server_succeeds_after_a_long_call_was_cancelled(everything: Session) -> None:
    async def cancelled() -> ToolResult:
        asked = {"duration": 10 * TIMEOUT_S, "steps": 600}
        work = everything.call("mcp_it_trigger-long-running-operation", asked)
        call = asyncio.create_task(work)
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.wait({call})
        return await everything.call("mcp_it_echo", {"message": "hello"})

    async def bounded() -> ToolResult:
        async with asyncio.timeout(TIMEOUT_S):
            return await cancelled()

    assert value(asyncio.run(bounded())) == "Echo: hello"


@pytest.mark.thorough
def test_progress_notifications_of_a_real_server_are_received_and_extend_the_call_timeout(
    tmp_path: Path,
) -> None:
    heard: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None, _message: str | None) -> None:
        heard.append((done, total))

    async def call(runtime: Runtime) -> Any:
        context = CallContext(session_id="s", surface=CallRelay(client="", progress=progress))
        asked = {"duration": 5, "steps": 10}
        answer = await runtime.mcp.call_tool("it", "trigger-long-running-operation", asked, context)
        async with asyncio.timeout(TIMEOUT_S):
            while (10, 10) not in heard:  # noqa: ASYNC110 - it is told on another way than the answer
                await asyncio.sleep(0.02)
        return answer

    entry = servers.stdio_command("everything", tmp_path).entry
    with opened(tmp_path, {"it": {**entry, "call_timeout_seconds": 4}}) as runtime:
        answer = asyncio.run(call(runtime))
    assert "completed" in answer.content[0].text
    assert heard == sorted(heard)


def test_real_filesystem_server_reads_a_file_that_it_wrote(tmp_path: Path) -> None:
    with open_single_server("filesystem", tmp_path) as session:
        file = tmp_path / "place" / "note.txt"
        written = session.call_sync(
            "mcp_filesystem_write_file", {"path": str(file), "content": "tea at five"}
        )
        assert not written.error
        assert file.read_text() == "tea at five"
        assert "tea at five" in str(
            value(session.call_sync("mcp_filesystem_read_text_file", {"path": str(file)}))
        )
        outside = session.call_sync("mcp_filesystem_read_text_file", {"path": str(tmp_path / "other.txt")})
        assert "denied" in (outside.error or "").lower()


@pytest.mark.thorough
def test_real_filesystem_server_returns_an_audio_file_as_audio_content(tmp_path: Path) -> None:
    with open_single_server("filesystem", tmp_path) as session:
        file = tmp_path / "place" / "beep.wav"
        with wave.open(str(file), "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(1)
            sound.setframerate(8_000)
            sound.writeframes(b"\x80" * 800)
        result = session.call_sync("mcp_filesystem_read_media_file", {"path": str(file)})
    assert not result.error
    assert [(media.kind, media.mime_type) for media in result.media] == [("audio", "audio/wav")]


@pytest.mark.thorough
def test_entity_stored_in_the_mcp_reference_server_memory_is_found_by_its_search_tool(tmp_path: Path) -> None:
    ada = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    with open_single_server("memory", tmp_path) as session:
        assert not session.call_sync("mcp_memory_create_entities", {"entities": [ada]}).error
        found = value(session.call_sync("mcp_memory_search_nodes", {"query": "tea"}))
    assert [each["name"] for each in found["entities"]] == ["Ada"]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "argument"), [("git", "repo_path"), ("git-npm", "path")])
def test_git_status_tool_of_two_real_git_servers_lists_a_new_file(
    tmp_path: Path, name: str, argument: str
) -> None:
    with open_single_server(name, tmp_path) as session:
        place = tmp_path / "place"
        (place / "new.txt").write_text("new")
        told = value(session.call_sync(f"mcp_{name}_git_status", {argument: str(place)}))
    assert "new.txt" in str(told)


@pytest.mark.thorough
def test_git_status_tool_of_a_real_git_server_over_http_lists_a_changed_file(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with servers.git_over_http(place, tmp_path / "log") as listening:
        (place / "new.txt").write_text("new")
        with opened(tmp_path, {"git": {"url": listening.url}}) as runtime:
            told = value(runtime.session(["all"]).call_sync("mcp_git_git_status", {"path": str(place)}))
    assert "new.txt" in str(told)


@pytest.mark.thorough
def test_mcp_reference_server_time_converts_a_time_between_time_zones(tmp_path: Path) -> None:
    asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    with open_single_server("time", tmp_path) as session:
        told = value(session.call_sync("mcp_time_convert_time", asked))
    assert "21:00" in json.dumps(told)


def test_real_sqlite_server_runs_sql_queries(tmp_path: Path) -> None:
    with open_single_server("sqlite", tmp_path) as session:
        for tool, query in (
            ("create_table", "CREATE TABLE numbers (n int)"),
            ("write_query", "INSERT INTO numbers VALUES (41)"),
        ):
            assert not session.call_sync(f"mcp_sqlite_{tool}", {"query": query}).error
        told = value(session.call_sync("mcp_sqlite_read_query", {"query": "SELECT n + 1 FROM numbers"}))
        memo = session.call_sync("mcp_sqlite_read_resource", {"uri": "memo://insights"})
    assert "42" in str(told)
    assert "insights" in str(value(memo))


@pytest.mark.thorough
def test_real_sequential_thinking_server_accepts_a_thought(tmp_path: Path) -> None:
    thought = {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    with open_single_server("sequential-thinking", tmp_path) as session:
        told = value(session.call_sync("mcp_sequential-thinking_sequentialthinking", thought))
    assert told["thoughtHistoryLength"] == 1


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>Tea</h1><p>Served at five.</p></body></html>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.mark.thorough
def test_real_fetch_server_fetches_a_web_page(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as page, open_single_server("fetch", tmp_path) as session:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            address = f"http://127.0.0.1:{page.server_port}/"
            told = session.call_sync("mcp_fetch_fetch", {"url": address})
        finally:
            page.shutdown()
            thread.join()
    assert "Served at five." in told.text


def test_real_server_that_was_killed_is_restarted_for_the_next_call(tmp_path: Path) -> None:
    with open_single_server("memory", tmp_path) as session:
        assert not session.call_sync("mcp_memory_read_graph", {}).error
        for pid in find_processes(tmp_path):
            os.kill(pid, 9)
        end = time.monotonic() + TIMEOUT_S
        while session.call_sync("mcp_memory_read_graph", {}).error:
            assert time.monotonic() < end
            time.sleep(0.1)


def find_processes(folder: Path) -> list[int]:
    """Return the server processes that have the given directory in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MEMORY_FILE_PATH={folder}".encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found
