"""Control socket through which CLI commands, such as `enrich --through CLIENT`, reach a running gateway.

Each gateway has a Unix socket in the state directory, which only the user can open. A connection carries one
request and one response, each a line of JSON; closing it cancels the request. Processes of tool calls are
refused where the system tells who has connected (SO_PEERCRED on Linux, LOCAL_PEERPID on macOS). There are
three requests: `list_clients`; `sample`, which has a client's model write a text (`sampling/createMessage`),
for which the client asks its own user for consent; and `follow`, after which both ends send lines until one
of them closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolfold.config.atomic import make_private_directory
from toolfold.core.errors import ToolfoldError, shorten
from toolfold.core.tool_processes import find_tool_call
from toolfold.core.types import Json, read_json

if TYPE_CHECKING:
    from mcp.server.connection import Connection

    from toolfold.serving.gateway.client_sessions import ClientSession
    from toolfold.serving.gateway.server import Gateway

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20
FOLLOW_REQUEST: Json = {"request": "follow"}
MAX_CONNECTIONS = 16
MAX_SAMPLING_TOKENS = 8_192
MAX_SAMPLING_CHARS = 200_000
SAMPLING_TIMEOUT_S = 300.0
"""The client's user needs time to read the request and to consent."""
PING_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 10.0
REFUSAL_DELAY_S = 1.0
"""Longest time that a refused process keeps a connection."""
PROBE_TIMEOUT_S = 1.0
MIN_STALE_AGE_S = 10.0
"""A gateway that starts has a socket for a moment before it accepts connections."""
MAX_CLIENTS_LISTED = 200
MAX_ERROR_CHARS = 500
_MAX_SOCKET_PATH_BYTES = 100
"""Longer paths of Unix sockets are refused by some systems."""
_CREDENTIALS = struct.Struct("3i")
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2  # of macOS, which Python has no names for


class ControlError(ToolfoldError):
    """The gateway or its client refused a request from the control socket."""


def control_directory(state_dir: Path) -> Path:
    """Return the directory with the control sockets of all running gateways."""
    return state_dir / "gateway" / "control"


@contextmanager
def short_socket_path(directory: Path, name: str) -> Iterator[str]:
    """Yield a path to a socket that is within the system's length limit, valid during the `with` block."""
    path = str(directory / name)
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        yield path
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


@asynccontextmanager
async def serve_control(gateway: Gateway) -> AsyncIterator[None]:
    """Serve requests of CLI processes in the gateway's event loop, during an `async with` block.

    A gateway without this socket works as well, so a failure to open it is only logged.
    """
    directory = control_directory(gateway.runtime.config.paths.state_dir)
    name = f"{os.getpid()}-{secrets.token_hex(4)}.sock"
    try:
        server = await _open_server(directory, name, _ControlRequests(gateway))
    except (OSError, ToolfoldError, AttributeError) as error:  # AttributeError: a system without such sockets
        log.info("commands such as `toolfold enrich --through` cannot connect to this gateway: %s", error)
        yield
        return
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(OSError):
            (directory / name).unlink(missing_ok=True)


async def _open_server(directory: Path, name: str, requests: _ControlRequests) -> asyncio.Server:
    make_private_directory(directory)
    _remove_stale_sockets(directory)
    with short_socket_path(directory, name) as path:
        server = await asyncio.start_unix_server(requests.accept, path, limit=MAX_LINE_BYTES)
    (directory / name).chmod(0o600)  # until then, the mode of the directory keeps others out
    return server


def _remove_stale_sockets(directory: Path) -> None:
    """Remove the sockets of killed gateways, on which no process accepts connections."""
    for file in directory.glob("*.sock"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > MIN_STALE_AGE_S and _is_refused(file):
                file.unlink(missing_ok=True)


def _is_refused(file: Path) -> bool:
    """Return True if no process accepts connections on a socket. Raises OSError if the check fails."""
    with short_socket_path(file.parent, file.name) as path, socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


class _ControlRequests:
    """Handles the requests that arrive at a gateway's control socket."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the single request of a control connection, and close the connection."""
        self._open += 1
        try:
            response = await self._respond(reader, writer)
            if response is not None:
                writer.write(json.dumps(response, ensure_ascii=False).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the command or the gateway has ended
        finally:
            self._open -= 1
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Json | None:
        """Return the response to a CLI process's request; None if that process disconnects first."""
        try:
            if self._open > MAX_CONNECTIONS:
                raise ControlError("the gateway is busy with other commands; try again later")
            connection = writer.get_extra_info("socket")
            try:
                await asyncio.to_thread(require_user, connection)
            except ControlError:  # a response before its request would break the connection
                with contextlib.suppress(ValueError, TimeoutError):
                    async with asyncio.timeout(REFUSAL_DELAY_S):
                        await reader.readline()
                raise
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = read_json((await reader.readline()).decode())
            await asyncio.to_thread(require_user, connection)  # it may have left the connection to another
            if request == FOLLOW_REQUEST and self._gateway.follow is not None:
                await self._gateway.follow(reader, writer)
                return None
            return await _run_until_closed(self._answer(request), reader)
        except ControlError as error:
            return {"error": shorten(str(error), MAX_ERROR_CHARS)}
        except (ValueError, TimeoutError, RecursionError):
            return {"error": "the request is not valid"}

    async def _answer(self, request: Any) -> Json:
        match request:
            case {"request": "list_clients"}:
                sessions = self._gateway.client_sessions()[:MAX_CLIENTS_LISTED]
                return {"clients": [_describe_client(each) for each in sessions]}
            case {"request": "sample", "client": str(key), "system": str(system), "text": str(text)}:
                session = next((each for each in self._gateway.client_sessions() if each.key == key), None)
                if session is None:
                    raise ControlError("the client has disconnected from the gateway")
                return await _sample(session, system, text, request.get("max_tokens"))
        raise ControlError("this gateway does not support the request; restart it if Toolfold was updated")


async def _run_until_closed(answering: Any, reader: asyncio.StreamReader) -> Json | None:
    """Await and return a response; cancel it and return None if the CLI process disconnects first."""
    answer = asyncio.ensure_future(answering)
    closing = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((answer, closing), return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        for task in (answer, closing):
            task.cancel()
        await asyncio.gather(answer, closing, return_exceptions=True)


def require_user(connection: socket.socket) -> None:
    """Raise ControlError if the process at the other end belongs to another user or to a tool call."""
    try:
        peer = identify_peer(connection)
    except OSError:
        raise ControlError("the connection of a command to the gateway was closed") from None
    if peer is None:
        return  # only the permissions of the directory keep others out
    pid, user = peer
    if user not in (None, os.getuid(), 0):
        raise ControlError("this gateway belongs to another user")
    if find_tool_call(pid):
        raise ControlError("a tool call has started this process, so it cannot send requests to the gateway")
    if not _is_running(pid):  # checked last: what was read about a process that ends meanwhile is incomplete
        raise ControlError("the process that opened the connection has ended or is in another container")


def identify_peer(connection: socket.socket, platform: str = sys.platform) -> tuple[int, int | None] | None:
    """Return the id of the process connected to a Unix socket, and its user; None if it is unknown.

    Raises OSError if the connection is closed.
    """
    if platform == "darwin":
        (pid,) = struct.unpack("i", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, struct.calcsize("i")))
        return pid, None
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def _is_running(pid: int) -> bool:
    if not Path("/proc/self/stat").exists():  # macOS
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def _describe_client(session: ClientSession) -> Json:
    connection, problem = _find_channel(session)
    return {
        "id": session.key,
        "name": session.display_name,
        "program": _program_name(connection),
        "problem": problem,
        "tools": sorted(session.session.granted()),
    }


def _program_name(connection: Connection | None) -> str:
    params = connection.client_params if connection else None
    return params.client_info.name[:200] if params else ""


def _find_channel(session: ClientSession) -> tuple[Connection | None, str]:
    """Return the client connection that accepts sampling requests, or the reason why none does."""
    if not session.connections:
        return None, (
            "it has no open connection for requests of a server (protocol revision 2026-07-28 has none)"
        )
    for connection in session.connections:
        capabilities = connection.client_capabilities
        if capabilities is not None and capabilities.sampling is not None:
            return connection, ""
    return session.connections[0], "it does not offer its model to servers (no sampling capability)"


async def _sample(session: ClientSession, system: str, text: str, max_tokens: Any) -> Json:
    """Let the client's model generate a text. Raises ControlError if the client refuses or times out."""
    import mcp_types
    from mcp import MCPError
    from pydantic import ValidationError

    connection, problem = _find_channel(session)
    if connection is None or problem:
        raise ControlError(f"the model of client {session.display_name} cannot be used: {problem}")
    if not isinstance(max_tokens, int) or len(system) + len(text) > MAX_SAMPLING_CHARS:
        raise ControlError("the request is too large to be sent to a client")
    await _require_listening(session, connection)
    content = mcp_types.TextContent(type="text", text=text)
    params = mcp_types.CreateMessageRequestParams(
        messages=[mcp_types.SamplingMessage(role="user", content=content)],
        system_prompt=system,
        max_tokens=max(1, min(max_tokens, MAX_SAMPLING_TOKENS)),
        include_context="none",
    )
    log.info("asking client %s to send a text of %d characters to its model", session.display_name, len(text))
    try:
        async with asyncio.timeout(SAMPLING_TIMEOUT_S):
            result = await connection.send_request(mcp_types.CreateMessageRequest(params=params))
    except TimeoutError:
        raise ControlError(
            f"the client {session.display_name} did not answer within {SAMPLING_TIMEOUT_S:.0f} s"
        ) from None
    except MCPError as error:
        raise ControlError(
            f"the client {session.display_name} declined the sampling request: {error.error.message}"
        ) from None
    except (ValidationError, OSError) as error:
        raise ControlError(f"the answer of client {session.display_name} cannot be read: {error}") from None
    return {"text": _text_of(result)[:MAX_SAMPLING_CHARS], "model": str(result.model)[:200]}


async def _require_listening(session: ClientSession, connection: Connection) -> None:
    """Raise ControlError if the client does not answer a ping and so cannot receive requests now.

    Without this check, the request for its model would wait for an answer until it times out.
    """
    from mcp import MCPError

    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await connection.ping()
    except (TimeoutError, OSError, MCPError):
        raise ControlError(
            f"the client {session.display_name} cannot receive requests at the moment. A client that"
            " connects over HTTP must keep a GET stream open for requests"
        ) from None


def _text_of(result: Any) -> str:
    blocks = result.content if isinstance(result.content, list) else [result.content]
    return "\n".join(block.text for block in blocks if getattr(block, "type", "") == "text")
