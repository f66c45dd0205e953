"""Silent, half-open and too many connections to a real `toolfold serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process
from tests.gateway.harness import TIMEOUT_S, wait_until
from tests.gateway.test_attacks import HELLO
from toolfold.cli.serve import open_listening_socket
from toolfold.core.errors import ConfigError
from toolfold.serving.gateway import bounded_protocol
from toolfold.serving.gateway import listening as listening_module

SHORT_DEADLINES = """
import sys
from toolfold.serving.gateway import bounded_protocol
bounded_protocol.HEADER_TIMEOUT_S = 1.0
bounded_protocol.BODY_CONNECTION_TIMEOUT_S = 1.0
from toolfold.cli import main
sys.argv[0] = "toolfold"
main()
"""
RARE_LOG = """
import sys
from toolfold.serving.gateway import uvicorn_connections as http_connections
http_connections.ACCEPT_LOG_INTERVAL_S = 3_600.0
from toolfold.cli import main
sys.argv[0] = "toolfold"
main()
"""
HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
ACCEPT = b"Accept: application/json, text/event-stream\r\n"


@pytest.fixture(scope="module")
def short_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with timeouts of one second."""
    with gateway_process(tmp_path_factory.mktemp("short_timeouts"), code=("-c", SHORT_DEADLINES)) as gateway:
        yield gateway


def connect(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S)


def read_until_closed(connection: socket.socket) -> bytes:
    """Return everything the server sends until it closes the connection; fail if it does not."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65_536):
            received += chunk
    return received


def initialize(gateway: GatewayProcess) -> bytes:
    """Return the status line of the response to `initialize`."""
    body = json.dumps(HELLO).encode()
    head = HEAD + ACCEPT + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with connect(gateway) as connection:
        connection.sendall(head + body)
        return connection.recv(65_536).split(b"\r\n")[0]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /mcp HT",
        HEAD + b"X-Slow: 1",
        HEAD + b"Content-Length: 1000\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{\r\n",
    ],
    ids=["nothing", "request-line", "half-a-head", "half-a-body", "half-a-chunk"],
)
def test_connection_with_an_incomplete_http_request_is_closed_after_the_timeout(
    short_timeouts: GatewayProcess, sent: bytes
) -> None:
    with connect(short_timeouts) as connection:
        connection.sendall(sent)
        read_until_closed(connection)
    assert b" 200 " in initialize(short_timeouts)


def test_connection_with_an_incomplete_second_http_request_is_closed_after_the_timeout(
    short_timeouts: GatewayProcess,
) -> None:
    with connect(short_timeouts) as connection:
        connection.sendall(b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nPOST /mcp HTTP/1.1\r\nHo")
        assert b" 404 " in read_until_closed(connection)


@pytest.mark.thorough
def test_open_event_stream_is_not_closed_by_the_idle_connection_timeout(
    short_timeouts: GatewayProcess,
) -> None:
    body = json.dumps(HELLO).encode()
    with connect(short_timeouts) as connection:
        connection.sendall(HEAD + ACCEPT + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = connection.recv(65_536).decode()
    session = next(
        line.split(": ")[1] for line in answer.split("\r\n") if line.lower().startswith("mcp-session-id")
    )
    with connect(short_timeouts) as stream:
        stream.sendall(
            f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
            f"Mcp-Session-Id: {session}\r\n\r\n".encode()
        )
        assert b" 200 " in stream.recv(65_536)
        for _ in range(2):  # twice as long as the timeout of a silent connection
            with connect(short_timeouts) as silent:
                read_until_closed(silent)
        stream.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            assert stream.recv(1) != b""


def test_connections_accepted_by_the_gateway_use_tcp_keepalive_to_detect_vanished_clients() -> None:
    with socket.socket() as listening:
        listening_module.detect_vanished_peers(listening)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as _client:
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    limit = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                    assert limit == listening_module.PEER_TIMEOUT_S * 1_000


def test_running_gateway_refuses_requests_without_a_token_after_the_first_token_is_created(
    tmp_path: Path,
) -> None:
    with gateway_process(tmp_path) as gateway:
        assert b" 200 " in initialize(gateway)
        words = [sys.executable, "-m", "toolfold", "token", "add", "first"]
        subprocess.run(words, env=environment(tmp_path), cwd=tmp_path, check=True, capture_output=True)
        assert b" 401 " in initialize(gateway)


@contextlib.contextmanager
def limited_gateway(home: Path, files: int) -> Iterator[GatewayProcess]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    with gateway_process(home, preexec=limit) as gateway:
        yield gateway


def test_gateway_answers_a_client_while_idle_connections_exceed_the_connection_limit(
    tmp_path: Path,
) -> None:
    with limited_gateway(tmp_path, 120) as gateway, contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(gateway))
        assert b" 200 " in initialize(gateway)


@asynccontextmanager
async def uvicorn_server(body: bytes = b"") -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Run a server with the gateway's protocol in this process; yield it and its port."""

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    config = uvicorn.Config(
        answer, http=bounded_protocol.make_bounded_protocol(), lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # also of accepted connections
        listening.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listening]))
        async with asyncio.timeout(TIMEOUT_S):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        yield server, listening.getsockname()[1]
        server.should_exit = True
        await task


async def test_number_of_open_connections_stays_within_the_limit_after_bursts_of_new_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All connections of a burst are accepted in one turn of the loop."""
    limit = 20
    monkeypatch.setattr(bounded_protocol, "MAX_CONNECTIONS", limit)
    async with uvicorn_server() as (server, port):
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                for _ in range(60):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", port))
                await _wait_until_settled(server)
                assert len(server.server_state.connections) == limit


def connect_without_reading(port: int, requests: int) -> socket.socket:
    """Send requests whose responses are never read, over a connection with a small buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
    return client


LARGE = bytes(1_000_000)


async def test_new_client_is_served_although_clients_that_never_read_responses_occupy_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 10
    monkeypatch.setattr(bounded_protocol, "MAX_CONNECTIONS", limit)
    async with uvicorn_server(LARGE) as (server, port):
        with contextlib.ExitStack() as stack:
            for _ in range(limit + 2):
                stack.enter_context(connect_without_reading(port, requests=2))
            await _wait_until_settled(server)
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.sleep(0.1)  # until the server has accepted the connection
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert LARGE in await reader.read()
                writer.close()


@pytest.mark.parametrize("requests", [1, 2])
async def test_connection_is_closed_after_a_timeout_if_the_client_does_not_read_a_large_response(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(bounded_protocol, "STALLED_TIMEOUT_S", 0.2)
    async with uvicorn_server(LARGE) as (server, port), asyncio.timeout(TIMEOUT_S):
        with connect_without_reading(port, requests):
            while not server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            while server.server_state.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def _wait_until_settled(server: uvicorn.Server) -> None:
    """Wait until the loop has accepted and closed connections."""
    previous: set[Any] | None = None
    while previous != (previous := set(server.server_state.connections)):  # noqa: ASYNC110
        await asyncio.sleep(0.3)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process need Linux")
def test_gateway_logs_exhausted_file_descriptors_once_and_answers_when_descriptors_are_free_again(
    tmp_path: Path,
) -> None:
    """The limit on open files leaves room for only a few connections."""
    with gateway_process(tmp_path, code=("-c", RARE_LOG)) as gateway:
        assert b" 200 " in initialize(gateway)  # everything that is opened lazily is open now
        pid = gateway.process.pid
        files = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 10
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, files))
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(connect(gateway))
            wait_until(lambda: "cannot accept a connection" in gateway.log.read_text())
        wait_until(lambda: b" 200 " in initialize(gateway))
        log = gateway.log.read_text()
    assert log.count("cannot accept a connection") == 1
    assert "ulimit -n" in log
    assert "Traceback" not in log


@pytest.mark.thorough
def test_opening_a_second_listening_socket_on_the_same_port_raises_config_error() -> None:
    with open_listening_socket("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        with (
            socket.create_connection(address, timeout=30),
            pytest.raises(ConfigError, match="already in use"),
        ):
            open_listening_socket(*address)
