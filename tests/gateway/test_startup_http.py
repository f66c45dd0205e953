"""Answers of `toolfold serve` while it starts: real processes, real sockets, and the SDK's client."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.known_vectors import LIGHT_MODEL
from toolfold import open_runtime
from toolfold.config import load_config
from toolfold.gateway.http_recorder import HttpListings
from toolfold.gateway.listing_record import MAX_CLIENTS, HttpStart, ListingRecord
from toolfold.gateway.listing_recorder import SAVE_DELAY_S
from toolfold.gateway.request_bodies import replay_body
from toolfold.gateway.server import CLIENT_SCOPE_KEY, Gateway
from toolfold.gateway.tokens import ANONYMOUS, GatewayClient

from .harness import REVISIONS, TIMEOUT_S, fault_server, free_port, result_text, wait_until
from .test_startup import EXTRA, HELLO, PLUGIN, TOOLFOLD

LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}


def server_tools(listed: Any) -> list[str]:
    """Return the names of the tools that are not built in."""
    return [tool.name for tool in listed.tools if tool.name.startswith("a_")]


class HttpGatewayHome:
    """The settings of a gateway over HTTP, and the file that lets a process continue that was held."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._release, self.port = folder / "home", folder / "release", free_port()
        (self.folder / "plugins").mkdir(parents=True)
        (self.folder / "plugins" / "hold.py").write_text(PLUGIN)
        server = fault_server("--tools", "2", trust="off")
        self.settings: dict[str, Any] = {"mcp": {"servers": {"a": server}, "wait_seconds": 60}}
        self.write(self.settings)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def write(self, settings: dict[str, Any]) -> None:
        (self.folder / "config.yaml").write_text(json.dumps(settings))

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "TOOLFOLD_HOME": str(self.folder), **LIGHT_MODEL, **more}

    def count_recorded_clients(self) -> int:
        files = list((self.folder / "cache" / "gateway").glob("*.json"))
        clients = [json.loads(each.read_bytes())["clients"].values() for each in files]
        return sum("tools/list" in answers for each in clients for answers in each)

    def record_lists(self) -> None:
        """Connect the SDK's client in both revisions, and a raw client, so that their lists are recorded."""

        async def list_tools(revision: str) -> None:
            async with Client(self.url, mode=revision) as client:
                assert server_tools(await client.list_tools()) == ["a_echo", "a_tool_2"]

        end = time.monotonic() + 2 * TIMEOUT_S
        while True:  # a list that changes meanwhile is recorded at the next request
            for revision in REVISIONS:
                asyncio.run(list_tools(revision))
            self._list_raw()
            time.sleep(4 * SAVE_DELAY_S)
            if self.count_recorded_clients() == len(REVISIONS) + 1:
                return
            assert time.monotonic() < end, "the lists were not recorded"

    def _list_raw(self) -> None:
        with raw_client(self.port) as client:
            client.send(INITIALIZE)
            session = client.read()[1]["mcp-session-id"]
            client.send({"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)
            client.read()
            client.send(LIST, mcp_session_id=session)
            assert client.read()[0] == 200

    @property
    def record(self) -> Path:
        (found,) = (self.folder / "cache" / "gateway").glob("*.json")
        return found

    def release(self) -> None:
        """Let a held gateway finish its start."""
        self._release.touch()

    @contextmanager
    def start(self, *, held: bool = True, env: dict[str, str] | None = None) -> Iterator[None]:
        """Run the gateway. A held one stops while loading its plugins until it is released."""
        self._release.unlink(missing_ok=True)
        is_held = self._release.with_name("release.held")
        is_held.unlink(missing_ok=True)
        hold = {"HOLD_UNTIL": str(self._release)} if held else {}
        with (self.folder / "errors.log").open("wb") as errors:
            process = subprocess.Popen(
                [TOOLFOLD, "serve", "--port", str(self.port)],
                stderr=errors,
                cwd=self.folder,
                env=self.environment(**hold, **(env or {})),
            )
        try:
            wait_until(is_held.exists if held else self._is_serving)
            yield
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0, (self.folder / "errors.log").read_text()
        finally:
            process.kill()
            process.wait()

    def _is_serving(self) -> bool:
        return "Serving" in (self.folder / "errors.log").read_text()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> HttpGatewayHome:
    """A gateway that has recorded the lists of the SDK's client in both revisions."""
    made = HttpGatewayHome(tmp_path_factory.mktemp("gateway"))
    with made.start(held=False):
        made.record_lists()
    return made


class RawClient:
    """Sends messages over one connection, to see which of them are answered while the gateway starts."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def send(self, message: dict[str, Any], **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", "/mcp", json.dumps(message), {**HEADERS, **named})

    def is_answered(self, seconds: float) -> bool:
        """Return True if a response has arrived after some seconds."""
        assert self._connection.sock is not None
        self._connection.sock.settimeout(seconds)
        try:
            return bool(self._connection.sock.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self._connection.sock.settimeout(TIMEOUT_S)

    def read(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers of the response."""
        response = self._connection.getresponse()
        response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}

    def close(self) -> None:
        self._connection.close()


@contextmanager
def raw_client(port: int) -> Iterator[RawClient]:
    with contextlib.closing(RawClient(port)) as client:
        yield client


@pytest.mark.thorough
@pytest.mark.parametrize("revision", REVISIONS)
async def test_http_client_gets_the_recorded_tool_list_during_startup_and_call_results_after_startup(
    home: HttpGatewayHome, revision: str
) -> None:
    with home.start():
        async with asyncio.timeout(2 * TIMEOUT_S), Client(home.url, mode=revision) as client:
            early = await client.list_tools()
            assert server_tools(early) == ["a_echo", "a_tool_2"]
            call = asyncio.create_task(client.call_tool("a_echo", {"text": "hello"}))
            assert not (await asyncio.wait({call}, timeout=0.3))[0]
            home.release()
            assert result_text(await call) == "hello"
            assert (await client.list_tools(cache_mode="bypass")).tools == early.tools
            assert result_text(await client.call_tool("a_echo", {"text": "again"})) == "again"


@pytest.mark.thorough
async def test_http_client_is_notified_if_the_tool_list_after_startup_differs_from_the_recorded_list(
    home: HttpGatewayHome,
) -> None:
    changed = asyncio.Event()

    async def note(message: Any) -> None:
        if type(message).__name__ == "ToolListChangedNotification":
            changed.set()

    with home.start(env=EXTRA):  # the variable is not part of what the record depends on
        async with (
            asyncio.timeout(2 * TIMEOUT_S),
            Client(home.url, mode="legacy", message_handler=note) as client,
        ):
            assert server_tools(await client.list_tools()) == ["a_echo", "a_tool_2"]
            home.release()
            await changed.wait()
            later = await client.list_tools(cache_mode="bypass")
            assert "extra" in [tool.name for tool in later.tools]
    with home.start(held=False):  # records the lists without the variable again
        await asyncio.to_thread(home.record_lists)


def test_recorded_tool_list_is_not_sent_to_a_request_with_a_wrong_host_header_or_origin_or_token(
    home: HttpGatewayHome,
) -> None:
    wrong: list[tuple[dict[str, str], int]] = [
        ({"host": "attacker.example"}, 421),
        ({"origin": "http://attacker.example"}, 403),
        ({"authorization": "Bearer tf_unknown"}, 401),
        ({"accept": "text/html"}, 406),
    ]
    unknown = {"mcp_session_id": "0" * 32}
    with home.start(), contextlib.ExitStack() as stack:
        accepted = stack.enter_context(raw_client(home.port))
        accepted.send(INITIALIZE, origin="http://localhost:3000")
        assert accepted.read()[0] == 200
        clients = [stack.enter_context(raw_client(home.port)) for _ in wrong]
        for client, (headers, _) in zip(clients, wrong, strict=True):
            client.send(INITIALIZE, **headers)
        without_session = stack.enter_context(raw_client(home.port))
        without_session.send(LIST, **unknown)
        assert not any(client.is_answered(0.1) for client in (*clients, without_session))
        home.release()
        assert without_session.read()[0] == 404
        assert [client.read()[0] for client in clients] == [status for _, status in wrong]


def test_recorded_tool_lists_are_not_sent_to_http_clients_after_a_change_of_settings(
    home: HttpGatewayHome,
) -> None:
    record = ListingRecord(home.record)
    assert record.read()
    home.write({**home.settings, "gateway": {"origins": ["http://page.example"]}})
    assert not record.read()
    home.write(home.settings)
    assert record.read()


def test_recorded_tool_lists_are_not_sent_without_a_token_after_the_first_token_was_created(
    home: HttpGatewayHome,
) -> None:
    token = [sys.executable, "-m", "toolfold", "token"]
    with home.start(), raw_client(home.port) as client:
        client.send(INITIALIZE)
        assert client.read()[0] == 200
        subprocess.run([*token, "add", "laptop"], env=home.environment(), check=True, capture_output=True)
        client.send(INITIALIZE)
        assert not client.is_answered(0.3)
        home.release()
        assert client.read()[0] == 401
    (home.folder / "state" / "gateway" / "tokens.json").unlink()  # does not make tokens unnecessary again
    assert not ListingRecord(home.record).read()


def test_tool_lists_are_recorded_only_for_the_most_recently_connected_clients(tmp_path: Path) -> None:
    record = ListingRecord(tmp_path / "record.json")
    names = [f"client-{number}" for number in range(3 * MAX_CLIENTS)]
    for name in names:
        assert record.record_result(name, "tools/list", "{}")
    assert list(record.clients) == names[-MAX_CLIENTS:]
    assert not record.record_result(names[-2], "tools/list", "{}"), "the same result changes nothing"
    assert list(record.clients)[-1] == names[-2]


async def test_tool_list_of_a_request_without_a_session_is_not_recorded_for_an_earlier_client(
    tmp_path: Path,
) -> None:
    async def answer(_scope: Any, receive: Any, send: Any) -> None:
        request = json.loads((await receive())["body"])
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {}}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def receive_nothing() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def discard(_message: Any) -> None:
        return

    file = tmp_path / "record.json"
    start = HttpStart(host="127.0.0.1", port=0, path="/mcp", hosts=(), origins=(), token_file="")
    config = load_config(project=tmp_path, env={"TOOLFOLD_HOME": str(tmp_path / "home")})
    with open_runtime(config) as runtime:
        listings = HttpListings(file, start, None, lambda: False)
        app = listings.observe(answer, Gateway(runtime))
        for method in ("initialize", "tools/list"):
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode()
            scope = {"method": "POST", "headers": [], CLIENT_SCOPE_KEY: GatewayClient(ANONYMOUS)}
            await app(scope, replay_body(body, receive_nothing), discard)
        await listings.close()
    (answers,) = json.loads(file.read_text())["clients"].values()
    assert list(answers) == ["initialize"]
