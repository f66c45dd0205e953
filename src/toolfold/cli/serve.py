"""`toolfold serve` and `toolfold mcp serve`: the gateway, over HTTP and for one client over stdio."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.app import Invocation
from toolfold.cli.show import counted, note, plain
from toolfold.errors import ConfigError
from toolfold.provenance import find_tool_call

if TYPE_CHECKING:
    from collections.abc import Callable

    import uvicorn

    from toolfold.config import Config
    from toolfold.gateway.server import Gateway
    from toolfold.runtime import Runtime

log = logging.getLogger(__name__)

_toolsets = click.option(
    "--toolset", "toolsets", multiple=True, metavar="NAME", help="Only this toolset; may be given again."
)
SWITCH_INTERVAL_S = 0.001
"""How long a thread that reads a large result may keep the interpreter from the loops that serve clients."""
_HOSTS = "With --host: 127.0.0.1 for programs of this machine alone, 0.0.0.0 for those of others as well."


@click.command("serve")
@click.option("--host", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port; 0 for a free one.")
@_toolsets
@click.pass_obj
def command(invocation: Invocation, host: str | None, port: int | None, toolsets: tuple[str, ...]) -> None:
    """Serve all MCP servers as one, over Streamable HTTP."""
    config = invocation.config()
    settings = config.gateway
    listening = _listening(host or settings.host, settings.port if port is None else port)
    with listening, invocation.runtime(behind_gateway=True) as runtime:
        granted = _known(runtime, tuple(toolsets) or settings.toolsets)
        _keep()
        status = _Status(runtime, config, _address(listening))
        with status.file, suppress(KeyboardInterrupt):  # that is how it is meant to be ended
            asyncio.run(_serve_http(runtime, config, listening, granted, status.watch))


@click.command("serve", short_help="Serve all of them as one, to the client that starts this.")
@_toolsets
@click.pass_obj
def serve_stdio(invocation: Invocation, toolsets: tuple[str, ...]) -> None:
    """Serve all MCP servers as one, to the client that started this (over stdio)."""
    from toolfold.gateway.stdio import serve

    config = invocation.config()
    if sys.stdin.isatty():
        note("This speaks MCP on its input and output: a client starts it. `toolfold connect` sets one up.")
    with invocation.runtime(behind_gateway=True) as runtime:
        granted = _known(runtime, tuple(toolsets) or config.gateway.toolsets)
        _keep()
        _tell_listing(runtime, granted)
        status = _Status(runtime, config, "")
        serving = serve(
            runtime,
            toolsets=granted,
            early=invocation.early,
            record=_record_file(invocation),
            on_start=status.watch,
        )
        with status.file:
            asyncio.run(_until_told(serving))


class _Status:
    """What `toolfold mcp status` shows of this gateway."""

    def __init__(self, runtime: Runtime, config: Config, address: str) -> None:
        from toolfold.gateway.status import StatusFile, now
        from toolfold.redaction import Redaction

        self._runtime, self._address, self._started = runtime, address, now()
        self._redact = Redaction(config.secret_values())
        self._gateway: Gateway | None = None
        self.file = StatusFile(config.paths.state_dir / "gateway" / "status", self._describe)

    def watch(self, gateway: Gateway) -> None:
        """Report the clients of this gateway from now on."""
        self._gateway = gateway

    def _describe(self) -> dict[str, Any]:
        from toolfold.gateway.status import describe_gateway

        about = {"address": self._address, "started": self._started}
        return describe_gateway(self._runtime, self._gateway, self._redact, **about)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/mcp" if ":" in host else f"http://{host}:{port}/mcp"


def _record_file(invocation: Invocation) -> Path | None:
    """Return where answers for the next start are kept; none for a process that a tool call has started."""
    from toolfold.gateway.listing_record import record_file

    return None if find_tool_call() else record_file(invocation.arguments, os.environ)


def _known(runtime: Runtime, toolsets: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The toolsets, looked at before the first client comes: it could do nothing about a wrong name."""
    runtime.toolsets().require(toolsets or ())
    return toolsets


def _keep() -> None:
    """What is there now stays to the end: going over it for garbage would hold up every client's call."""
    from toolfold.sources.mcp.sdk import load_sdk

    load_sdk()  # it will be needed at once, and is the largest part of it
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def _listening(host: str, port: int) -> socket.socket:
    """The port, taken before any server is started: whoever cannot have it need not wait."""
    from toolfold.gateway.http_connections import detect_vanished_peers

    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Without its name the loop does not know TCP, and lets small answers wait for each other's receipt.
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            detect_vanished_peers(listening)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a machine is written so
        key, hint = _advice(error)
        why = getattr(error, "strerror", None) or error
        problem = f"{host} port {port} cannot be listened on: {why}"
        raise ConfigError(problem, key=key, hint=hint) from None
    return listening


def _advice(error: Exception) -> tuple[str, str]:
    """The setting that is at fault, and what to do about it."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "gateway.host", f"No machine is found by that name. {_HOSTS}"
    number = getattr(error, "errno", None)
    if number in (errno.EADDRNOTAVAIL, errno.EINVAL):
        return "gateway.host", f"It is no address of this machine. {_HOSTS}"
    if number == errno.EACCES:
        return "gateway.port", "That port is the system's own. Choose one above 1023 with --port."
    return "gateway.port", "Is another gateway running? Choose another port with --port."


async def _serve_http(
    runtime: Runtime,
    config: Config,
    listening: socket.socket,
    toolsets: tuple[str, ...] | None,
    on_start: Callable[[Gateway], object],
) -> None:
    from toolfold.config.record import SettingsRecord
    from toolfold.gateway.http_connections import AcceptErrors
    from toolfold.gateway.tokens import Tokens
    from toolfold.gateway.web import app, door

    host, port = listening.getsockname()[:2]
    state = config.paths.state_dir
    tokens = Tokens(state / "gateway" / "tokens.json", SettingsRecord(state))
    settings = config.gateway
    guard = door(
        host,
        tokens,
        toolsets=toolsets,
        hosts=settings.hosts,
        origins=settings.origins,
        allow_anonymous=settings.allow_anonymous,
    )
    needs_token = guard.requires_token
    AcceptErrors().install(asyncio.get_running_loop())
    server = _server(
        app(runtime, guard, on_start=on_start),
        lambda: _tell(runtime, host, port, toolsets, needs_token=needs_token),
    )
    await server.serve([listening])


def _server(app: Any, tell: Callable[[], None]) -> uvicorn.Server:
    import uvicorn

    from toolfold.gateway.http_connections import MAX_PENDING_CONNECTIONS
    from toolfold.gateway.web import server_config

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.should_exit:  # told to end meanwhile: it would leave the app open, which complains
                await self.lifespan.shutdown()
            else:
                tell()

    config = server_config(
        app,
        log_config=None,  # its records go where all others go, and lose their secrets there
        backlog=MAX_PENDING_CONNECTIONS,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_goodbye)
    return Server(config)


def _is_no_goodbye(record: logging.LogRecord) -> bool:
    """To be told to end is no error, at whatever moment it comes."""
    return "CancelledError" not in record.getMessage()


def _tell(
    runtime: Runtime, host: str, port: int, toolsets: tuple[str, ...] | None, *, needs_token: bool
) -> None:
    shown = f"[{host}]" if ":" in host else host
    states = runtime.mcp.states()
    tools = sum(each.tools for each in states)
    note(f"Serving {counted(tools, 'tool')} of {counted(len(states), 'server')} at http://{shown}:{port}/mcp")
    _tell_listing(runtime, toolsets)
    for each in states:
        if each.error:
            note(f"[yellow]{plain(each.name)}:[/yellow] {plain(each.error)}")
    if needs_token:
        note("Every client needs a token: `toolfold token add NAME`.")
    note("Ctrl-C ends it.")


def _tell_listing(runtime: Runtime, toolsets: tuple[str, ...] | None) -> None:
    """Say what clients are shown, in a thread: nobody waits for it, and checks of tools may take a while."""
    from toolfold.gateway.listing_size import measure_listing
    from toolfold.gateway.server import open_session

    def tell() -> None:
        try:
            size = measure_listing(open_session(runtime, toolsets))
            if size.shown or size.deferred:
                note(plain(f"To clients, {size}."))
        except Exception:
            log.debug("what clients are shown could not be measured", exc_info=True)

    threading.Thread(target=tell, name="toolfold-listing-size", daemon=True).start()


async def _until_told(work: Any) -> None:
    """Run until the work ends or somebody asks us to end."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(each, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
