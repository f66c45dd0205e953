"""`toolfold enrich --through CLIENT`: the model of a connected client writes messages, with consent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process, write_settings
from tests.gateway.harness import TIMEOUT_S
from toolfold.serving.gateway.control import _remove_stale_sockets, control_directory, identify_peer

TOOL = "read_file"
MESSAGE = "please show me what the file at this path says"
SETTINGS = {"gateway": {"toolsets": ["file"]}}


class Sampler:
    """A client's sampling callback: writes one message for each tool, refuses, or waits until cancelled."""

    def __init__(self) -> None:
        self.requests: list[mcp_types.CreateMessageRequestParams] = []
        self.refusal = ""
        self.waits = False
        self.is_asked, self.is_cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(
        self, context: Any, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
        self.requests.append(params)
        self.is_asked.set()
        if self.waits:
            await self._wait_until_cancelled()
        if self.refusal:
            return mcp_types.ErrorData(code=-1, message=self.refusal)
        reply = json.dumps({"1": [MESSAGE]})
        content = mcp_types.TextContent(type="text", text=f"Here they are:\n{reply}")
        return mcp_types.CreateMessageResult(role="assistant", content=content, model="model-of-client")

    async def _wait_until_cancelled(self) -> None:
        try:
            await asyncio.sleep(TIMEOUT_S)
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("gateway")
    write_settings(home, SETTINGS)
    with gateway_process(home) as running:
        yield running


@asynccontextmanager
async def connect_http(gateway: GatewayProcess, name: str, sampler: Sampler | None) -> AsyncIterator[Client]:
    about = mcp_types.Implementation(name=name, version="1")
    transport = streamable_http_client(gateway.url)
    async with Client(transport, mode="legacy", sampling_callback=sampler, client_info=about) as client:
        await client.list_tools()
        yield client


async def enrich(home: Path, *words: str) -> tuple[int, str, str]:
    """Run `toolfold enrich` as the user does in another terminal; return its exit code and output."""
    process = await start_enrich(home, *words)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def start_enrich(home: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toolfold", "enrich", "--yes", "--again", *words),
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


async def test_enrich_command_stores_example_messages_that_an_http_client_writes_by_mcp_sampling(
    gateway: GatewayProcess,
) -> None:
    sampler, home = Sampler(), gateway.log.parent
    async with connect_http(gateway, "notebook", sampler):
        code, out, err = await enrich(home, TOOL, "terminal", "--through", "notebook")
    assert code == 0, err
    assert out == "wrote messages for 1 tool\n"
    assert (
        "left out: 2 tools that the client notebook may not use" in err
    )  # the client may not use the terminal
    (asked,) = sampler.requests
    assert asked.system_prompt is not None
    assert "example messages" in asked.system_prompt
    assert "terminal" not in str(asked.messages)
    assert asked.max_tokens < 1_000
    (record,) = (home / "state/messages/messages.jsonl").read_text(encoding="utf-8").splitlines()
    stored = json.loads(record)
    assert stored["messages"] == [MESSAGE]
    assert stored["model"] == "notebook:model-of-client"


async def test_enrich_command_fails_if_the_user_of_the_mcp_client_rejects_the_sampling_request(
    gateway: GatewayProcess,
) -> None:
    sampler = Sampler()
    sampler.refusal = "User rejected sampling request"
    async with connect_http(gateway, "reluctant", sampler):
        code, _, err = await enrich(
            gateway.log.parent, TOOL, "write_file", "--batch", "1", "--through", "reluctant"
        )
    assert code == 1
    assert "declined the sampling request: User rejected sampling request" in err
    assert len(sampler.requests) == 1


async def test_stopping_the_enrich_command_cancels_its_sampling_request_to_the_mcp_client(
    gateway: GatewayProcess,
) -> None:
    sampler = Sampler()
    sampler.waits = True
    async with connect_http(gateway, "slow", sampler), asyncio.timeout(TIMEOUT_S):
        process = await start_enrich(gateway.log.parent, TOOL, "--through", "slow")
        await sampler.is_asked.wait()
        process.terminate()
        await sampler.is_cancelled.wait()
        await process.communicate()
    assert process.returncode != 0


@pytest.mark.thorough
async def test_enrich_command_reports_that_the_mcp_client_is_not_connected_or_does_not_support_sampling(
    gateway: GatewayProcess,
) -> None:
    home = gateway.log.parent
    async with connect_http(gateway, "plain", None):
        code, _, err = await enrich(home, TOOL, "--through", "plain")
        assert code == 1
        assert "does not offer its model" in err
        code, _, err = await enrich(home, TOOL, "--through", "nobody")
        assert code != 0
        assert "no client 'nobody' is connected" in err


def test_control_socket_refuses_processes_started_by_a_tool_call_and_unknown_requests(
    gateway: GatewayProcess,
) -> None:
    home = gateway.log.parent
    (file,) = control_directory(home / "state").glob("*.sock")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from toolfold.serving.gateway.control_client import _ask\n"
        "print(asyncio.run(_ask(Path(sys.argv[1]), {'request': sys.argv[2]}, 60)))"
    )

    def send_request(request: str, **variables: str) -> str:
        command = [sys.executable, "-c", program, str(file), request]
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert "a tool call has started this process" in send_request("list_clients", TOOLFOLD_RUN="1")
    assert "does not support the request" in send_request("stop")


def test_remove_stale_sockets_deletes_control_sockets_of_killed_gateways_and_keeps_active_ones(
    tmp_path: Path,
) -> None:
    killed, running = tmp_path / "1-killed.sock", tmp_path / "2-running.sock"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(killed))
        ended.listen()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as starting:
        listening.bind(str(running))
        listening.listen()
        starting.bind(str(tmp_path / "3-starting.sock"))
        for file in (killed, running):
            os.utime(file, (0, 0))
        _remove_stale_sockets(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["2-running.sock", "3-starting.sock"]


def test_identify_peer_returns_the_process_id_of_the_peer_of_a_unix_socket() -> None:
    class MacSocket(socket.socket):
        def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
            assert (level, option, size) == (0, 2, 4)  # SOL_LOCAL, LOCAL_PEERPID
            return struct.pack("i", 4711)

    ours, theirs = socket.socketpair()
    with ours, theirs, MacSocket(socket.AF_UNIX) as mac:
        assert identify_peer(ours) == (os.getpid(), os.getuid())
        assert identify_peer(mac, "darwin") == (4711, None)


def test_control_connection_is_refused_if_the_process_that_opened_it_has_ended(
    gateway: GatewayProcess,
) -> None:
    (path,) = control_directory(gateway.log.parent / "state").glob("*.sock")
    program = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
if not (child := os.fork()):
    connection.connect(sys.argv[1])
    os._exit(0)
os.waitpid(child, 0)
connection.sendall(b'{"request": "list_clients"}\\n')
print(connection.recv(10_000).decode())
"""
    command = [sys.executable, "-c", program, path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=True)
    assert "the process that opened the connection has ended" in done.stdout


@pytest.mark.thorough
async def test_enrich_command_uses_the_model_of_a_stdio_client_and_leaves_no_control_socket(
    tmp_path: Path,
) -> None:
    write_settings(tmp_path, SETTINGS)
    sampler = Sampler()
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "toolfold", "mcp", "serve"],
        env=environment(tmp_path),
        cwd=str(tmp_path),
    )
    about = mcp_types.Implementation(name="editor", version="1")
    async with Client(command, mode="legacy", sampling_callback=sampler, client_info=about) as client:
        await client.list_tools()
        code, out, err = await enrich(tmp_path, TOOL, "--json", "--through", "editor")
    assert code == 0, err
    assert json.loads(out)["written"] == 1
    assert "the model of client editor, which asks its user first" in err
    assert len(sampler.requests) == 1
    assert list(control_directory(tmp_path / "state").iterdir()) == []
