"""A process of a tool call that connects to a gateway as a client cannot approve its own calls.

The gateway, the runtime and the clients are separate processes, because every process that is started while
this process has a runtime counts as started by a tool call.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cases import check_cases
from tests.gateway.gateway_process import GatewayProcess, environment, gateway_process, write_settings
from tests.gateway.harness import REVISIONS, TIMEOUT_S, wait_until
from tests.test_provenance import DETACH, read_log
from toolfold.core.tool_processes import find_tool_call
from toolfold.serving.gateway.peers import PeerConnection, PeerOrigin, PeerProcesses, find_origin, find_socket

CLIENT = str(Path(__file__).with_name("approving_client.py"))
IN_TOOL_CALL = """import sys, toolfold
with toolfold.open_runtime(user_settings=True, approver=lambda request: True) as runtime:
    result = runtime.session(["terminal"]).call_sync("terminal", {"command": sys.argv[1], "timeout": 120})
    print(result.text or result.error)
"""
STARTS = {"directly": [], "detached and without an environment": [sys.executable, "-c", DETACH]}
pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
both_revisions = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway started by the user, in an unrelated directory."""
    home, work = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("work")
    write_settings(home, {"gateway": {"allow_anonymous": True}})
    with gateway_process(home, "--toolset", "terminal", cwd=work) as process:
        yield process


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    (folder / "inner").mkdir(parents=True)
    return folder


def client_words(gateway: GatewayProcess, revision: str, victim: Path, *token: str) -> tuple[list[str], Path]:
    """Return the command that starts the client, and the file that it writes."""
    answer = victim.parent / "answer.json"
    return [sys.executable, CLIENT, gateway.url, revision, f"rm -rf {victim}", str(answer), *token], answer


def run_in_tool_call(words: list[str], file: Path, home: Path) -> str:
    """Run a command as a tool call of another runtime, which stays open until the file is written."""
    wait = f"for i in $(seq 600); do [ -e {shlex.quote(str(file))} ] && break; sleep 0.1; done"
    command = [sys.executable, "-c", IN_TOOL_CALL, f"{shlex.join(words)} && {wait}"]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def decisions(home: Path, victim: Path) -> list[tuple[str, bool]]:
    found = [each for each in read_log(home) if each["command"] == f"rm -rf {victim}"]
    return [(each["by"], each["allowed"]) for each in found]


def read_answer(file: Path, output: str = "") -> Any:
    wait_until(lambda: file.exists() or "Traceback" in output)
    assert file.exists(), output
    return json.loads(file.read_text())


@pytest.mark.thorough(keep=1)
@both_revisions
@pytest.mark.parametrize("start", STARTS)
def test_client_process_started_by_a_tool_call_is_not_asked_to_approve_calls(
    gateway: GatewayProcess, tmp_path: Path, victim: Path, revision: str, start: str
) -> None:
    words, file = client_words(gateway, revision, victim)
    answer = read_answer(file, run_in_tool_call([*STARTS[start], *words], file, tmp_path / "other"))
    assert answer["asked"] == 0
    assert answer["is_error"]
    assert "was started by a tool call" in answer["text"]
    assert victim.exists()
    assert decisions(gateway.log.parent, victim) == [("nobody to ask (started by a tool call)", False)]


def test_process_started_by_a_tool_call_cannot_approve_calls_even_with_a_client_token(
    gateway: GatewayProcess, tmp_path: Path, victim: Path
) -> None:
    words, file = client_words(gateway, "legacy", victim, add_token(gateway, "stolen"))
    answer = read_answer(file, run_in_tool_call(words, file, tmp_path / "other"))
    assert "was started by a tool call" in answer["text"]
    assert victim.exists()


def add_token(gateway: GatewayProcess, name: str) -> str:
    words = [sys.executable, "-m", "toolfold", "token", "add", name, "--toolset", "terminal"]
    done = subprocess.run(
        words, env=environment(gateway.log.parent), capture_output=True, text=True, check=True
    )
    return next(word for word in done.stdout.split() if word.startswith("tf_"))


@pytest.mark.thorough(keep=1)
@both_revisions
@pytest.mark.parametrize("with_token", [False, True])
def test_client_process_started_by_the_user_can_approve_calls_and_appears_in_the_audit_log(
    gateway: GatewayProcess, tmp_path: Path, victim: Path, revision: str, with_token: bool
) -> None:
    name = f"desk-{revision}"
    words, file = client_words(gateway, revision, victim, *([add_token(gateway, name)] if with_token else []))
    subprocess.run(words, env=environment(tmp_path / "user"), check=True, timeout=TIMEOUT_S)
    answer = read_answer(file)
    assert (answer["asked"], answer["is_error"]) == (1, False), answer
    assert not victim.exists()
    assert decisions(gateway.log.parent, victim) == [
        (f"client {name}" if with_token else "anonymous client", True)
    ]


def test_stdio_gateway_started_by_a_tool_call_refuses_risky_calls_without_asking_its_client(
    tmp_path: Path, victim: Path
) -> None:
    script = tmp_path / "stdio_client.py"
    answer = tmp_path / "answer.json"
    script.write_text(
        f"""import asyncio, json, sys
import mcp_types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

async def accept(context, params):
    return mcp_types.ElicitResult(action="accept", content={{"answer": "once"}})

async def main():
    env = {environment(tmp_path / "home")!r}
    words = ["-m", "toolfold", "mcp", "serve", "--toolset", "terminal"]
    server = StdioServerParameters(command=sys.executable, args=words, env=env, cwd={str(tmp_path)!r})
    async with Client(stdio_client(server), mode="legacy", elicitation_callback=accept) as client:
        result = await client.call_tool("terminal", {{"command": "rm -rf {victim}"}})
    open({str(answer)!r}, "w").write(json.dumps(result.content[0].text))

asyncio.run(main())
"""
    )
    output = run_in_tool_call(["env", "-i", sys.executable, str(script)], answer, tmp_path / "other")
    assert answer.exists(), output
    assert "refused" in answer.read_text()
    assert victim.exists()
    assert decisions(tmp_path / "home", victim) == [("nobody to ask (started by a tool call)", False)]


def test_process_with_the_environment_variable_toolfold_run_is_classified_as_started_by_a_tool_call() -> None:
    words = ["sleep", "60"]
    for marks, is_marked in (({"TOOLFOLD_RUN": "x"}, True), ({}, False)):
        with subprocess.Popen(words, env={"PATH": os.environ["PATH"], **marks}) as process:
            try:
                wait_until(lambda pid=process.pid: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
                assert bool(find_tool_call(process.pid)) is is_marked
            finally:
                process.kill()


@contextmanager
def connected(host: str, listening_on: str) -> Iterator[tuple[socket.socket, PeerConnection]]:
    family = socket.AF_INET6 if ":" in listening_on else socket.AF_INET
    try:
        server = socket.create_server((listening_on, 0), family=family, dualstack_ipv6=listening_on == "::")
    except OSError as error:
        pytest.skip(f"{listening_on}: {error}")
    with server, socket.create_connection((host, server.getsockname()[1])) as client:
        accepted, address = server.accept()
        with accepted:
            yield client, PeerConnection(address[:2], accepted.getsockname()[:2])


@check_cases(("host", "listening_on"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::")])
def test_process_of_a_local_client_is_identified_by_its_connection_socket(
    host: str, listening_on: str
) -> None:
    with connected(host, listening_on) as (client, connection):
        inode = find_socket(connection)
        assert str(Path(f"/proc/self/fd/{client.fileno()}").readlink()) == f"socket:[{inode}]"
        assert find_origin(inode) is PeerOrigin.USER


async def test_client_that_closed_its_connection_is_not_trusted_to_approve_calls() -> None:
    with connected("127.0.0.1", "127.0.0.1") as (client, connection):
        client.close()
        for has_token in (False, True):
            with pytest.raises(Exception, match="closed the connection"):
                await PeerProcesses().require_user(connection.client, connection.server, has_token=has_token)


async def test_client_on_another_machine_can_approve_calls_with_a_token() -> None:
    await PeerProcesses().require_user(("192.0.2.7", 40_000), ("192.0.2.8", 443), has_token=True)


@pytest.mark.parametrize("address", [None, ("testclient", 50_000), ("", 0)])
async def test_client_without_an_ip_address_can_approve_calls_only_with_a_token(address: Any) -> None:
    peers, server = PeerProcesses(), ("127.0.0.1", 80)
    with pytest.raises(Exception, match="create a token"):
        await peers.require_user(address, server, has_token=False)
    await peers.require_user(address, server, has_token=True)


def test_process_origin_of_a_client_running_as_another_system_user_is_unknown() -> None:
    if os.getuid():
        pytest.skip("needs root")
    with connected("127.0.0.1", "127.0.0.1") as (client, connection):
        assert find_as_nobody(connection, client) in (
            "UNKNOWN",
            "TOOL_CALL",
        )  # processes of other tool calls may run


def test_client_is_treated_as_a_tool_call_while_sockets_of_a_tool_call_process_are_unreadable() -> None:
    """The file descriptors of such a process cannot be read, so it may be the client."""
    if os.getuid():
        pytest.skip("needs root")
    words = ["sh", "-c", "ulimit -m 4503599627370497 && exec sleep 60"]
    with connected("127.0.0.1", "127.0.0.1") as (client, connection), subprocess.Popen(words) as marked:
        try:
            wait_until(lambda: find_tool_call(marked.pid))
            assert find_as_nobody(connection, client) == "TOOL_CALL"
        finally:
            marked.kill()


def find_as_nobody(connection: PeerConnection, client: socket.socket) -> str:
    """Return what another user can find out about a socket that only this process holds."""
    inode = find_socket(connection)
    reading, writing = os.pipe()
    child = os.fork()  # forked, because another user may not be able to read the package
    if not child:
        try:
            client.close()
            os.setuid(65_534)
            os.write(writing, find_origin(inode).name.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        found = stream.read()
    os.waitpid(child, 0)
    return found
