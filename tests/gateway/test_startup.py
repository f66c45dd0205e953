"""Answers of `toolfold mcp serve` while it starts: real processes over real pipes."""

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
from hypothesis import given
from hypothesis import strategies as st

from tests.known_vectors import LIGHT_MODEL
from toolfold.gateway.early_answers import _EarlyConversation
from toolfold.gateway.listing_record import FORMAT, ListingRecord, digest_json

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

    @property
    def record(self) -> Path:
        (found,) = (self.folder / "cache" / "gateway").glob("*.json")
        return found

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

    def initialize(self) -> None:
        assert "result" in self.ask("hello", "initialize", HELLO)
        self.send("notifications/initialized")

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


def test_gateway_answers_list_requests_during_startup_with_the_lists_recorded_in_its_last_run(
    home: GatewayHome,
) -> None:
    first = run_once(home)
    assert [tool["name"] for tool in first["tools/list"]["tools"]] == ["a_echo", "a_tool_2"]
    assert len(first["resources/list"]["resources"]) == 2
    with home.start(held=True) as gateway:
        gateway.initialize()
        assert {method: gateway.ask(method, method)["result"] for method in LISTS} == first
        assert gateway.ask("ping", "ping")["result"] == {}
        gateway.release()
        assert gateway.tools("again") == ["a_echo", "a_tool_2"]
        assert gateway.end() == 0, gateway.errors
        assert all(len(gateway.answers(id_)) == 1 for id_ in ("hello", *LISTS, "ping", "again"))
        assert not any(map(gateway.count_notifications, ("tools", "resources", "prompts")))


@pytest.mark.thorough
def test_client_without_initialize_handshake_receives_the_recorded_tool_list_during_startup(
    home: GatewayHome,
) -> None:
    with home.start() as gateway:
        first = {each: gateway.ask(each, each, MODERN) for each in ("server/discover", "tools/list")}
        assert gateway.end() == 0, gateway.errors
    assert len(first["tools/list"]["result"]["tools"]) == 2
    with home.start(held=True) as gateway:
        assert {each: gateway.ask(each, each, MODERN) for each in first} == first
        gateway.release()
        assert gateway.end() == 0, gateway.errors
        assert all(len(gateway.answers(each)) == 1 for each in first)


@pytest.mark.thorough
def test_tool_call_sent_during_gateway_startup_is_answered_when_the_startup_has_finished(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True) as gateway:
        gateway.initialize()
        gateway.send("tools/call", {"name": "a_echo", "arguments": {"text": "hello"}}, 7)
        assert len(gateway.tools("list")) == 2
        gateway.wait_until_held()
        assert not gateway.answers(7)
        gateway.release()
        assert gateway.answer(7)["result"]["content"][0]["text"] == "hello"


@pytest.mark.thorough
def test_client_is_notified_once_if_the_tool_list_after_startup_differs_from_the_recorded_list(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True, env=EXTRA) as gateway:
        gateway.initialize()
        assert gateway.tools("early") == ["a_echo", "a_tool_2"]
        gateway.release()
        gateway.wait_until(lambda: gateway.count_notifications("tools") > 0)
        assert gateway.tools("late") == ["a_echo", "a_tool_2", "extra"]
        assert gateway.end() == 0
        assert gateway.count_notifications("tools") == 1
        assert len(gateway.answers("early")) == 1
    with home.start(held=True, env=EXTRA) as gateway:
        gateway.initialize()
        assert "extra" in gateway.tools("next")
        gateway.release()
        assert gateway.end() == 0
        assert gateway.count_notifications("tools") == 0


@pytest.mark.thorough
def test_call_of_a_tool_in_the_recorded_tool_list_that_no_longer_exists_is_refused(home: GatewayHome) -> None:
    run_once(home, EXTRA)
    with home.start(held=True) as gateway:
        gateway.initialize()
        assert "extra" in gateway.tools("early")
        gateway.send("tools/call", {"name": "extra", "arguments": {}}, 7)
        gateway.release()
        assert "not available" in json.dumps(gateway.answer(7))


@pytest.mark.thorough
def test_recorded_tool_lists_are_not_used_after_a_change_of_settings_or_lock_file_or_plugins(
    home: GatewayHome,
) -> None:
    run_once(home)
    folder, record = home.folder, ListingRecord(home.record)
    inputs = [
        folder / "config.yaml",
        folder / "toolfold.lock",
        *(folder / "cache" / "mcp").glob("*.json"),
        folder / "plugins" / "hold.py",
        folder / "toolfold.yaml",
        folder / "state" / "trust.json",
    ]
    assert len(inputs) == 7
    for file in inputs:
        assert record.read()
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((before or b"{}") + b"\n")
        assert not record.read(), file
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
    (folder / "plugins" / "more.py").touch()
    assert not record.read()


@pytest.mark.thorough
def test_gateway_answers_only_after_startup_if_settings_changed_since_tool_lists_were_recorded(
    home: GatewayHome,
) -> None:
    run_once(home)
    settings = json.loads((home.folder / "config.yaml").read_text())
    settings["mcp"]["servers"]["a"]["exclude"] = ["echo"]
    home.write(settings)
    with home.start(held=True) as gateway:
        gateway.send("initialize", HELLO, "hello")
        gateway.send("notifications/initialized")
        gateway.wait_until_held()
        time.sleep(0.3)  # enough time for an early answer
        assert gateway.messages == []
        gateway.release()
        assert gateway.tools("list") == ["a_tool_2"]


@pytest.mark.thorough
def test_recorded_tool_lists_are_not_used_for_another_environment_or_other_client_capabilities(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True, env={"TOOLFOLD_LOG_LEVEL": "error"}) as gateway:
        gateway.send("initialize", HELLO, 1)
        gateway.wait_until_held()
        assert gateway.messages == []
    with home.start(held=True) as gateway:
        gateway.send("initialize", {**HELLO, "capabilities": {"roots": {}}}, 1)
        gateway.send("notifications/initialized")
        gateway.send("tools/list", None, 2)
        gateway.wait_until_held()
        assert gateway.messages == []


def test_file_of_recorded_tool_lists_is_ignored_if_damaged_or_symlinked_or_readable_by_others(
    home: GatewayHome,
) -> None:
    run_once(home)
    file, other = home.record, home.folder / "other"
    text = file.read_text()
    content = json.loads(text)
    assert file.stat().st_mode & 0o077 == 0
    other.write_text(text)
    other.chmod(0o600)
    damages: dict[str, Callable[[], object]] = {
        "garbage": lambda: file.write_bytes(b"\xff{" * 100),
        "method": lambda: file.write_text(json.dumps({**content, "clients": {"x": {"tools/call": "{}"}}})),
        "result": lambda: file.write_text(json.dumps({**content, "clients": {"x": {"tools/list": "["}}})),
        "format": lambda: file.write_text(json.dumps({**content, "format": FORMAT + 1})),
        "large": lambda: file.write_text(text + " " * 9_000_000),
        "link": lambda: file.symlink_to(other),
        "pipe": lambda: os.mkfifo(file, 0o600),
        "readable": lambda: file.write_text(text),
    }
    for name, damage in damages.items():
        file.unlink()
        if name not in ("link", "pipe"):
            file.touch(0o644 if name == "readable" else 0o600)
        damage()
        assert not ListingRecord(file).read(), name
    with home.start() as gateway:
        gateway.initialize()
        assert gateway.tools(2) == ["a_echo", "a_tool_2"]
        assert gateway.end() == 0, gateway.errors
        assert len(gateway.answers("hello")) == 1
    assert ListingRecord(home.record).read()


@pytest.mark.thorough
def test_gateway_skips_invalid_input_lines_during_startup_and_answers_valid_lines(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True) as gateway:
        gateway.initialize()
        gateway.write(b"no message", b"\xff\xfe{}", b"[" * 50_000, b"[]", b"7", b"")
        gateway.write(b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}')
        gateway.write(b'{"jsonrpc": "2.0", "id": 9, "method": "ping", "params": {"a": "' + b"x" * 3_000_000)
        assert len(gateway.tools("list")) == 2
        gateway.release()
        assert len(gateway.tools("again")) == 2
        assert gateway.end() == 0
        assert len(gateway.answers("list")) == 1


@pytest.mark.thorough
def test_gateway_answers_requests_after_a_very_long_input_line_was_sent_during_its_startup(
    home: GatewayHome,
) -> None:
    run_once(home)
    with home.start(held=True) as gateway:
        gateway.initialize()
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
        gateway.initialize()
        gateway.send("tools/list", None, 2)
        gateway.send("logging/setLevel", {"level": "info"}, 3)
        gateway.wait_until_held()
        gateway.release()
        assert gateway.end() == 0, gateway.errors
        assert [len(gateway.answers(id_)) for id_ in ("hello", 2, 3)] == [1, 1, 1]


@pytest.mark.thorough
def test_file_of_recorded_tool_lists_is_unchanged_if_the_client_disconnects_during_startup(
    home: GatewayHome,
) -> None:
    run_once(home)
    before = home.record.read_bytes()
    with home.start() as gateway:
        gateway.initialize()
        gateway.tools(2)
        assert gateway.end() == 0, gateway.errors
    assert home.record.read_bytes() == before


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_or_sigint_during_startup_ends_the_gateway(home: GatewayHome, number: signal.Signals) -> None:
    run_once(home)
    with home.start(held=True) as gateway:
        gateway.initialize()
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
    home.record.unlink()
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


@pytest.mark.thorough
def test_clients_are_notified_of_tools_of_a_slow_new_server_when_it_has_started(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    servers = {"slow": fault_server("--fault", "slow-at-start", "--until", str(ready))}
    home = GatewayHome(tmp_path, servers)
    with home.start() as gateway:
        gateway.initialize()
        assert gateway.tools("early") == []
        ready.touch()
        gateway.wait_until(lambda: gateway.count_notifications("tools") > 0)
        assert gateway.tools("late") == ["slow_echo"]
        assert gateway.end() == 0
        assert gateway.count_notifications("tools") == 1


@given(
    st.lists(
        st.binary(max_size=200) | st.from_regex(rb'\{"jsonrpc":"2.0","id":.{0,9},"method":"tools/list"}')
    )
)
def test_initialize_request_during_gateway_startup_is_answered_after_arbitrary_input_lines(
    lines: list[bytes],
) -> None:
    record = ListingRecord(Path("unused"), {digest_json(HELLO): {"initialize": "{}", "tools/list": "{}"}})
    conversation = _EarlyConversation(record)
    for line in lines:
        conversation.answer(line)
    hello = json.dumps({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": HELLO})
    assert json.loads(conversation.answer(hello.encode())) == {"jsonrpc": "2.0", "id": "hello", "result": {}}


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
MAPS = st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
JSON = PLAIN | MAPS | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=5), MAPS, max_size=3)


@given(JSON, JSON)
def test_reading_a_file_of_recorded_tool_lists_with_arbitrary_json_raises_no_error(
    tmp_path_factory: pytest.TempPathFactory, inputs: Any, clients: Any
) -> None:
    file = tmp_path_factory.mktemp("records") / "record.json"
    file.touch(0o600)
    for content in (inputs, {"format": FORMAT, "inputs": inputs, "clients": clients}):
        file.write_text(json.dumps(content))
        record = ListingRecord(file)
        if not record.read():
            assert record.clients == {}
