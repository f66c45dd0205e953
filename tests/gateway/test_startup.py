"""`toolfold mcp serve` at its start: real processes over real pipes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.known_vectors import LIGHT_MODEL

from .harness import TIMEOUT_S, fault_server, wait_until

TOOLFOLD = str(Path(sys.executable).with_name("toolfold"))
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
MODERN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}
LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
EXTRA = {"WITH_EXTRA": "1"}
PLUGIN = '''
"""Plugin that delays the opening of the runtime until a file exists."""
import os, time
from pathlib import Path
from toolfold import tool

if hold := os.environ.get("HOLD_UNTIL"):
    Path(hold + ".held").touch()
    while not Path(hold).exists():
        time.sleep(0.02)

@tool(toolset="extra")
def extra() -> str:
    """A tool that exists in some runs."""
    return "extra"

def register(plugin):
    if os.environ.get("WITH_EXTRA"):
        plugin.add(extra)
'''


class GatewayHome:
    """The settings of a gateway, and the file that lets a process continue that was held during startup."""

    def __init__(self, folder: Path, servers: dict[str, Any], **mcp: Any) -> None:
        self.folder, self.release = folder / "home", folder / "release"
        (self.folder / "plugins").mkdir(parents=True)
        (self.folder / "plugins" / "hold.py").write_text(PLUGIN)
        self.write({"mcp": {"servers": servers, **mcp}})

    def write(self, settings: dict[str, Any]) -> None:
        (self.folder / "config.yaml").write_text(json.dumps(settings))

    @contextmanager
    def start(self, *, held: bool = False, env: dict[str, str] | None = None) -> Iterator[Process]:
        """Start the gateway. A held one stops while loading its plugins until it is released."""
        hold = {"HOLD_UNTIL": str(self.release)} if held else {}
        self.release.unlink(missing_ok=True)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [TOOLFOLD, "mcp", "serve"],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=self.folder,
            env={**os.environ, "TOOLFOLD_HOME": str(self.folder), **LIGHT_MODEL, **hold, **(env or {})},
        )
        started = Process(process, self.release)
        try:
            yield started
        finally:
            process.kill()
            started.join()


class Process:
    """A gateway process that gets raw messages; everything that it sends is collected."""

    def __init__(self, process: subprocess.Popen[bytes], release: Path) -> None:
        self.process, self._release = process, release
        self.messages: list[dict[str, Any]] = []
        self.errors = b""
        self._threads = [threading.Thread(target=each) for each in (self._read, self._read_errors)]
        for each in self._threads:
            each.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def write(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any] | None = None, id_: int | str | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}
        self.write(json.dumps(message if id_ is None else {**message, "id": id_}).encode())

    def answer(self, id_: int | str) -> dict[str, Any]:
        self.wait_until(lambda: bool(self.answers(id_)))
        return self.answers(id_)[0]

    def answers(self, id_: int | str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each.get("id") == id_ and "method" not in each]

    def ask(self, id_: int | str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self.send(method, params, id_)
        return self.answer(id_)

    def count_notifications(self, kind: str) -> int:
        return sum(each.get("method") == f"notifications/{kind}/list_changed" for each in self.messages)

    def greet(self) -> None:
        self.send("initialize", HELLO, "hello")
        self.send("notifications/initialized")

    def initialize(self) -> None:
        self.greet()
        assert "result" in self.answer("hello")

    def tools(self, id_: int | str) -> list[str]:
        return [tool["name"] for tool in self.ask(id_, "tools/list")["result"]["tools"]]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 2 * TIMEOUT_S
        while not condition():
            assert self.process.poll() is None or self._is_reading, (self.messages, self.errors)
            assert time.monotonic() < end, self.messages
            time.sleep(0.02)

    @property
    def _is_reading(self) -> bool:
        return any(each.is_alive() for each in self._threads)

    def wait_until_held(self) -> None:
        self.wait_until(self._release.with_name(self._release.name + ".held").exists)

    def release(self) -> None:
        self._release.touch()

    def end(self) -> int:
        """Close the input and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(4 * TIMEOUT_S)
        self.join()
        return code

    def join(self) -> None:
        for each in self._threads:
            each.join(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait(TIMEOUT_S)


@pytest.fixture
def home(tmp_path: Path) -> GatewayHome:
    """A gateway with one server, which has recorded no lists yet."""
    server = fault_server("--tools", "2", "--resources", "2", "--diary", str(tmp_path / "diary"), trust="off")
    return GatewayHome(tmp_path, {"a": server}, wait_seconds=60)


def run_once(home: GatewayHome, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a client that lists everything, and return the answers."""
    with home.start(env=env) as gateway:
        gateway.initialize()
        found = {method: gateway.ask(method, method)["result"] for method in LISTS}
        assert gateway.end() == 0, gateway.errors
    return found


def test_tool_call_sent_during_gateway_startup_is_answered_when_the_startup_has_finished(
    home: GatewayHome,
) -> None:
    with home.start(held=True) as gateway:
        gateway.greet()
        gateway.send("tools/call", {"name": "a_echo", "arguments": {"text": "hello"}}, 7)
        gateway.wait_until_held()
        assert not gateway.answers(7)
        gateway.release()
        assert gateway.answer(7)["result"]["content"][0]["text"] == "hello"


@pytest.mark.thorough
def test_gateway_skips_invalid_input_lines_during_startup_and_answers_valid_lines(
    home: GatewayHome,
) -> None:
    with home.start(held=True) as gateway:
        gateway.greet()
        gateway.write(b"no message", b"\xff\xfe{}", b"[" * 20_000, b"[]", b"7", b"")
        gateway.write(b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}')
        gateway.send("tools/list", None, "list")
        gateway.wait_until_held()
        gateway.release()
        assert len(gateway.answer("list")["result"]["tools"]) == 2
        assert gateway.end() == 0


@pytest.mark.thorough
def test_gateway_answers_requests_after_a_very_long_input_line_was_sent_during_its_startup(
    home: GatewayHome,
) -> None:
    with home.start(held=True) as gateway:
        gateway.greet()
        line = b'{"jsonrpc": "2.0", "id": 9, "method": "ping", "params": {"a": "' + b"x" * 12_000_000
        writing = threading.Thread(target=gateway.write, args=(line,))
        writing.start()
        gateway.wait_until_held()
        gateway.release()
        writing.join(4 * TIMEOUT_S)
        assert len(gateway.tools("list")) == 2


@pytest.mark.thorough
def test_gateway_whose_input_ends_during_startup_answers_all_requests_and_then_exits(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True) as gateway:
        gateway.greet()
        gateway.send("tools/list", None, 2)
        gateway.send("logging/setLevel", {"level": "info"}, 3)
        gateway.wait_until_held()
        gateway.release()
        assert gateway.end() == 0, gateway.errors
        assert [len(gateway.answers(id_)) for id_ in ("hello", 2, 3)] == [1, 1, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_or_sigint_during_startup_ends_the_gateway(home: GatewayHome, number: signal.Signals) -> None:
    with home.start(held=True) as gateway:
        gateway.wait_until_held()
        gateway.process.send_signal(number)
        assert gateway.process.wait(TIMEOUT_S) in (-number, 130)


@pytest.mark.thorough
def test_listing_cached_resources_and_prompts_does_not_start_their_server(
    home: GatewayHome, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    first = run_once(home)
    before = diary.read_text().count("start")
    with home.start() as gateway:
        gateway.initialize()
        assert {method: gateway.ask(method, method)["result"] for method in LISTS} == first
        assert gateway.end() == 0
    assert diary.read_text().count("start") == before


@pytest.mark.thorough
def test_clients_are_not_notified_when_a_server_with_unchanged_tools_has_started(
    home: GatewayHome, tmp_path: Path
) -> None:
    run_once(home)
    asked = (tmp_path / "diary").read_text().count("resources/list")
    with home.start() as gateway:
        gateway.initialize()
        for method in LISTS:
            gateway.ask(method, method)
        gateway.ask(7, "tools/call", {"name": "a_echo", "arguments": {"text": "hello"}})
        wait_until(lambda: (tmp_path / "diary").read_text().count("resources/list") > asked)
        gateway.tools("after")
        assert gateway.end() == 0
        assert not any(map(gateway.count_notifications, ("tools", "resources", "prompts")))


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "kind"), [("changing-list", "tools"), ("more-resources", "resources")])
def test_clients_are_notified_once_when_a_running_server_adds_a_tool_or_resource(
    tmp_path: Path, fault: str, kind: str
) -> None:
    server = fault_server("--fault", fault, "--resources", "2", trust="off")
    home = GatewayHome(tmp_path, {"a": server, "b": fault_server("--resources", "1")}, wait_seconds=60)
    first = run_once(home)
    with home.start() as gateway:
        gateway.initialize()
        for method in LISTS:
            gateway.ask(method, method)
        gateway.ask(7, "tools/call", {"name": "a_echo", "arguments": {"text": "now"}})
        gateway.wait_until(lambda: gateway.count_notifications(kind) > 0)
        gateway.ask(8, "tools/call", {"name": "b_echo", "arguments": {"text": "hello"}})
        listed = gateway.ask("late", f"{kind}/list")["result"][kind]
        assert len(listed) == len(first[f"{kind}/list"][kind]) + 1
        assert gateway.end() == 0
        assert {each: gateway.count_notifications(each) for each in ("tools", "resources", "prompts")} == {
            each: int(each == kind) for each in ("tools", "resources", "prompts")
        }


def test_gateway_lists_search_tools_and_a_call_waits_while_its_server_starts(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    servers = {"slow": fault_server("--fault", "slow-at-start", "--until", str(ready))}
    home = GatewayHome(tmp_path, servers, wait_seconds=0)
    call = {"name": "slow_echo", "arguments": {"text": "hello"}}
    bridged = {"name": "tool_call", "arguments": call}
    with home.start() as gateway:
        gateway.initialize()
        assert gateway.tools("early") == ["tool_search", "tool_describe", "tool_call"]
        for request in (call, bridged):
            refused = gateway.ask(str(request), "tools/call", request)["result"]
            assert refused["isError"]
            assert "still starting. Call the tool again in a few seconds." in refused["content"][0]["text"]
        assert gateway.end() == 0
    home.write({"mcp": {"servers": servers, "wait_seconds": 60}})
    with home.start() as gateway:
        gateway.initialize()
        gateway.send("tools/call", call, "waits")
        gateway.send("tools/call", bridged, "waits too")
        assert gateway.tools("early") == ["tool_search", "tool_describe", "tool_call"]
        ready.touch()
        for id_ in ("waits", "waits too"):
            assert gateway.answer(id_)["result"]["content"][0]["text"] == "hello"
        assert gateway.tools("late") == ["slow_echo"]


def test_call_of_a_tool_of_a_server_that_cannot_start_says_so(tmp_path: Path) -> None:
    home = GatewayHome(tmp_path, {"broken": fault_server("--fault", "crash-at-start")}, wait_seconds=60)
    with home.start() as gateway:
        gateway.initialize()
        refused = gateway.ask(1, "tools/call", {"name": "broken_echo", "arguments": {}})["result"]
        assert "MCP server 'broken' could not be started" in refused["content"][0]["text"]


@pytest.mark.thorough
def test_clients_are_notified_of_tools_of_a_slow_new_server_when_it_has_started(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    servers = {"slow": fault_server("--fault", "slow-at-start", "--until", str(ready))}
    home = GatewayHome(tmp_path, servers)
    with home.start() as gateway:
        gateway.initialize()
        assert gateway.tools("early") == ["tool_search", "tool_describe", "tool_call"]
        ready.touch()
        gateway.wait_until(lambda: gateway.count_notifications("tools") > 0)
        assert gateway.tools("late") == ["slow_echo"]
        assert gateway.end() == 0
        assert gateway.count_notifications("tools") == 1
