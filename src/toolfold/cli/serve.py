"""`toolfold serve` and `toolfold mcp serve`: run the gateway over HTTP, or over stdio for one client."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from toolfold import __version__
from toolfold.cli.app import Invocation
from toolfold.cli.output import escape_text, format_count, print_note
from toolfold.core.errors import ConfigError
from toolfold.core.loops import make_network_loop
from toolfold.core.tool_processes import find_tool_call
from toolfold.serving.gateway.health import MetricsApp, ReplicaReadiness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    import uvicorn

    from toolfold.config import Config
    from toolfold.core.types import Tool
    from toolfold.runtime.runtime import Runtime
    from toolfold.serving.dashboard.approval_routes import PageApprover
    from toolfold.serving.dashboard.dashboard_app import DashboardApp
    from toolfold.serving.dashboard.local_gateways import GatewayFeed
    from toolfold.serving.gateway.client_tokens import TokenStore
    from toolfold.serving.gateway.http_app import AccessPolicy, MountedApp
    from toolfold.serving.gateway.login_pages import LoginPages
    from toolfold.serving.gateway.oauth import OAuthResource
    from toolfold.serving.gateway.server import Gateway
    from toolfold.serving.proxy import Proxy

log = logging.getLogger(__name__)

_toolset_option = click.option(
    "--toolset", "toolsets", multiple=True, metavar="NAME", help="Serve only this toolset. Repeatable."
)
_modules_argument = click.argument("modules", nargs=-1, metavar="[FILE.py | MODULE]...")
_with_settings_option = click.option(
    "--with-settings", is_flag=True, help="With modules: serve the configured servers and tools too."
)
SWITCH_INTERVAL_S = 0.001
"""Limits how long a thread that parses a large result can block the event loops that serve clients."""
_HOST_HINT = (
    "Use --host 127.0.0.1 for programs on this machine only, or --host 0.0.0.0 for other machines too."
)


@click.command("serve")
@click.option("--host", help="Address to listen on. Default: gateway.host.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 for a free port. Default: gateway.port.",
)
@_toolset_option
@_modules_argument
@_with_settings_option
@click.pass_obj
def command(
    invocation: Invocation,
    host: str | None,
    port: int | None,
    toolsets: tuple[str, ...],
    modules: tuple[str, ...],
    with_settings: bool,
) -> None:
    """Serve all MCP servers as one server over Streamable HTTP; or the @tool functions of Python modules."""
    served = _load_modules(modules, toolsets, with_settings=with_settings)
    invocation = invocation.with_overrides(served.overrides)
    config = invocation.load_config()
    settings = config.gateway
    wanted = host or settings.host, settings.port if port is None else port
    listening = open_listening_socket(*wanted)
    address = _gateway_url(listening)
    approver = _make_approver(config)
    with (
        listening,
        _log_to_file(config, address),
        invocation.open_runtime(behind_gateway=True, approver=approver, build_index=True) as runtime,
    ):
        granted = _require_toolsets(runtime, served.add_to(runtime, tuple(toolsets) or settings.toolsets))
        _prepare_process()
        status = _GatewayStatus(runtime, config, address)
        with status.file, suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop it
            serving = _serve_http(runtime, config, listening, granted, status.watch, approver)
            with asyncio.Runner(loop_factory=make_network_loop) as runner:
                runner.run(serving)


@click.command("serve", short_help="Serve all MCP servers as one over stdio.")
@_toolset_option
@_modules_argument
@_with_settings_option
@click.pass_obj
def serve_stdio(
    invocation: Invocation, toolsets: tuple[str, ...], modules: tuple[str, ...], with_settings: bool
) -> None:
    """Serve all MCP servers as one server, over stdio, to the client that starts this command.

    With FILE.py or MODULE, serve the @tool functions of these modules.
    """
    from toolfold.serving.gateway.stdio import serve

    with redirect_stdout(sys.stderr):  # a module may print, and standard output belongs to the protocol
        served = _load_modules(modules, toolsets, with_settings=with_settings)
    invocation = invocation.with_overrides(served.overrides)
    config = invocation.load_config()
    if sys.stdin.isatty():
        print_note(
            "This command speaks MCP on standard input and output and is meant to be started by a client."
            " Set one up with `toolfold connect`."
        )
    approver = _make_approver(config)
    with (
        _log_to_file(config, "standard input and output"),
        invocation.open_runtime(behind_gateway=True, approver=approver, build_index=True) as runtime,
        _open_feed(runtime, approver) as feed,
    ):
        granted = _require_toolsets(
            runtime, served.add_to(runtime, tuple(toolsets) or config.gateway.toolsets)
        )
        _prepare_process()
        _print_listing_size(runtime, granted)
        status = _GatewayStatus(runtime, config, "")

        def on_start(gateway: Gateway) -> None:
            status.watch(gateway)
            gateway.follow = feed.serve if feed else None

        serving = serve(runtime, toolsets=granted, on_start=on_start)
        with status.file:
            asyncio.run(_run_until_signal(serving))


@dataclass(frozen=True, slots=True)
class _ServedModules:
    """Tools of the modules named on the command line."""

    tools: list[Tool]
    with_settings: bool

    @property
    def overrides(self) -> list[str]:
        """Return the settings with which only these tools exist, for clients with a token too."""
        from toolfold.core.scope import TOOL_RULE

        if not self.tools or self.with_settings:
            return []
        own = json.dumps([TOOL_RULE + each.name for each in self.tools])
        return ["mcp.enabled=false", "plugins.enabled=false", "apis={}", f"tools.enabled_toolsets={own}"]

    def add_to(self, runtime: Runtime, toolsets: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Register the tools and return the toolsets to serve. Raises NameTaken."""
        from toolfold.core.errors import NameTaken
        from toolfold.core.scope import TOOL_RULE

        registered = runtime.registry.snapshot()
        for each in self.tools if self.with_settings else ():
            if each.name in registered:
                raise NameTaken(each.name, registered[each.name].toolset)
        own = tuple(TOOL_RULE + each.name for each in runtime.registry.add_all(self.tools))
        if own and not self.with_settings:
            return own
        return toolsets if toolsets is None else (*toolsets, *own)


def _load_modules(
    names: tuple[str, ...], toolsets: tuple[str, ...], *, with_settings: bool
) -> _ServedModules:
    from toolfold.tools.tool_modules import load_tool_modules

    if with_settings and not names:
        raise click.UsageError("--with-settings needs a module: without one, the settings are served anyway")
    if names and toolsets and not with_settings:
        raise click.UsageError("--toolset needs --with-settings: only the modules' functions are served")
    return _ServedModules(load_tool_modules(names), with_settings)


@contextmanager
def _open_feed(runtime: Runtime, approver: PageApprover | None) -> Iterator[GatewayFeed | None]:
    """Record the usage of a gateway without pages, and offer its questions and events to dashboards."""
    from toolfold.serving.dashboard.local_gateways import open_feed

    if approver is None:
        yield None
        return
    with open_feed(runtime, approver) as feed:
        yield feed


@contextmanager
def _log_to_file(config: Config, address: str) -> Iterator[None]:
    """Write the gateway's log to its file during a `with` block, in which the gateway runs."""
    from toolfold.safety.redaction import Redaction
    from toolfold.serving.gateway.log_file import gateway_log_path, log_to_file

    file, started = gateway_log_path(config.paths.state_dir), time.monotonic()
    with log_to_file(file, Redaction(config.secret_values())):
        enabled = (name for name, each in config.mcp.servers.items() if each.enabled and config.mcp.enabled)
        servers = ", ".join(enabled) or "none"
        log.info("gateway %s started at %s; servers: %s", __version__, address, servers)
        try:
            yield
        finally:
            log.info("gateway ended after %.0f s", time.monotonic() - started)


class _GatewayStatus:
    """Status of the running gateway as `toolfold mcp status` shows it."""

    def __init__(self, runtime: Runtime, config: Config, address: str) -> None:
        from toolfold.safety.redaction import Redaction
        from toolfold.serving.gateway.status import StatusFile, format_local_time

        self._runtime, self._address, self._started = runtime, address, format_local_time()
        self._redact = Redaction(config.secret_values())
        self._gateway: Gateway | None = None
        self.file = StatusFile(config.paths.state_dir / "gateway" / "status", self._describe)

    def watch(self, gateway: Gateway) -> None:
        """Start to record the connected clients of this gateway in the status file."""
        self._gateway = gateway

    def _describe(self) -> dict[str, Any]:
        from toolfold.serving.gateway.status import describe_gateway

        about = {"address": self._address, "started": self._started}
        return describe_gateway(self._runtime, self._gateway, self._redact, **about)


def _gateway_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/mcp" if ":" in host else f"http://{host}:{port}/mcp"


def _require_toolsets(runtime: Runtime, toolsets: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the toolsets unchanged if all of them exist. Raises UnknownToolset.

    Checked at startup, because a client could not correct a wrong name.
    """
    runtime.toolsets().require(toolsets or ())
    return toolsets


def _prepare_process() -> None:
    """Tune garbage collection and thread switching of the process for faster responses."""
    from toolfold.mcp.sdk_compat import load_sdk

    load_sdk()  # the largest part of the heap, and needed at once
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Open the listening socket; called first, before slow imports and the start of MCP servers.

    A port in use is reported at once, and a client that connects early waits instead of being refused.
    """
    from toolfold.serving.gateway.listening import listen_on

    try:
        return listen_on(host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        key, hint = _bind_error_hint(error)
        why = getattr(error, "strerror", None) or error
        problem = f"cannot listen on {host} port {port}: {why}"
        raise ConfigError(problem, key=key, hint=hint) from None


def _bind_error_hint(error: Exception) -> tuple[str, str]:
    """Return the setting that caused an error in binding the socket, and advice for the user."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return "gateway.host", f"The host name was not found. {_HOST_HINT}"
    number = getattr(error, "errno", None)
    if number in (errno.EADDRNOTAVAIL, errno.EINVAL):
        return "gateway.host", f"It is not an address of this machine. {_HOST_HINT}"
    if number == errno.EACCES:
        return (
            "gateway.port",
            "Ports below 1024 are reserved for the system. Choose a higher one with --port.",
        )
    return "gateway.port", "Is another gateway running? Choose another port with --port."


async def _serve_http(
    runtime: Runtime,
    config: Config,
    listening: socket.socket,
    toolsets: tuple[str, ...] | None,
    on_start: Callable[[Gateway], object],
    approver: PageApprover | None,
) -> None:
    from toolfold.serving.gateway.client_tokens import open_tokens
    from toolfold.serving.gateway.http_app import make_access_policy, make_app

    host, port = listening.getsockname()[:2]
    tokens = open_tokens(config, runtime.database)
    settings = config.gateway
    guard = make_access_policy(
        host,
        tokens,
        toolsets=toolsets,
        hosts=settings.hosts,
        origins=settings.origins,
        allow_anonymous=settings.allow_anonymous,
        oauth=_open_oauth(config, tokens),
    )
    needs_token = guard.requires_token
    _reload_on_hangup(runtime)
    proxies = _open_proxy(runtime, guard, host, port)
    dashboards, feed = _open_dashboard(runtime, approver, guard, host, port)
    login_pages = _open_login_pages(runtime, guard, dashboards, host, port)

    def start_following(gateway: Gateway) -> None:
        on_start(gateway)
        gateway.follow = feed.serve if feed else None

    def on_ready() -> None:
        _print_startup(runtime, host, port, toolsets)
        _print_access(config, needs_token=needs_token)
        for each in dashboards:
            print_link(host, port, each.sign_in.create_code())
        print_note("Press Ctrl-C to stop.")

    readiness = ReplicaReadiness(runtime.database)
    metrics = [MetricsApp(runtime.events, readiness, tokens)] if config.telemetry.prometheus else []
    beside: list[MountedApp] = [*proxies, *login_pages, *dashboards, *readiness.make_apps(), *metrics]
    server = build_server(
        make_app(runtime, guard, on_start=start_following, beside=beside),
        on_ready,
        drain=Drain(readiness, settings.drain_seconds),
    )
    await server.serve([listening])


def _open_oauth(config: Config, tokens: TokenStore) -> OAuthResource | None:
    """Return the verifier for access tokens from an identity provider; None if none is configured."""
    from toolfold.serving.gateway.oauth import OAuthResource

    settings = config.gateway.oauth
    return OAuthResource(settings, tokens.users) if settings.issuer else None


def _reload_on_hangup(runtime: Runtime) -> None:
    """Read the settings files again when the process gets SIGHUP; open connections and streams stay open.

    In a terminal SIGHUP means that the terminal was closed, and ends the gateway.
    """

    def reload() -> None:
        changes = runtime.check_settings()
        log.info(
            "the settings were read again after SIGHUP; changed settings: %s", ", ".join(changes) or "nothing"
        )

    if hasattr(signal, "SIGHUP") and not sys.stdin.isatty():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, reload))


def _open_proxy(runtime: Runtime, guard: AccessPolicy, host: str, port: int) -> list[Proxy]:
    """Return a one-element list with the model proxy; an empty list if the proxy is turned off."""
    from toolfold.serving.proxy import Proxy

    if not runtime.config.proxy.enabled:
        return []
    proxy = Proxy(runtime, guard)
    proxy.upstreams.require_other_address(host, port)
    return [proxy]


def _make_approver(config: Config) -> PageApprover | None:
    """Return the approver that asks for approval in the dashboard; None if there is no dashboard.

    In a tool call there is none: the tool call could sign in with the printed link.
    """
    from toolfold.serving.dashboard.approval_routes import make_page_approver

    has_dashboard = config.dashboard.enabled and not find_tool_call()
    if not has_dashboard:
        return None
    return make_page_approver(config.secret_values(), is_announced=bool(config.approval.ask_by))


def _open_dashboard(
    runtime: Runtime, approver: PageApprover | None, guard: AccessPolicy, host: str, port: int
) -> tuple[list[DashboardApp], GatewayFeed | None]:
    """Return a one-element list with the dashboard, and its feed for other dashboards of the user.

    The list is empty if the dashboard is turned off.
    """
    from toolfold.cli.demo import make_dashboard_demo
    from toolfold.serving.dashboard.dashboard import Dashboard

    if approver is None:
        return [], None
    dashboard = Dashboard(runtime, approver, demo=make_dashboard_demo())

    def show_link(code: str) -> None:
        print_link(host, port, code)

    app = dashboard.make_app(guard, port=port, print_link=show_link, has_logins=True)
    return [app], dashboard.gateway_feed


def _open_login_pages(
    runtime: Runtime, guard: AccessPolicy, dashboards: list[DashboardApp], host: str, port: int
) -> list[LoginPages]:
    """Return a one-element list with the MCP login pages; an empty list if their URL is not known."""
    from toolfold.serving.gateway.login_pages import LoginPages

    url = _find_public_url(runtime.config, guard, host, port)
    if not url:
        return []
    find_user = dashboards[0].find_user if dashboards else (lambda _headers: "")
    pages = LoginPages(runtime, guard, url, find_user)
    runtime.mcp.user_logins.make_link = pages.make_link
    return [pages]


def _find_public_url(config: Config, guard: AccessPolicy, host: str, port: int) -> str:
    """Return the gateway's URL without a path, as browsers reach it; empty if it is not known."""
    for known in (config.gateway.url, config.dashboard.oidc.url, config.gateway.oauth.resource):
        if known:
            parts = urlsplit(known)
            return f"{parts.scheme}://{parts.netloc}"
    return make_link(host, port, "").partition("/ui/")[0] if guard.is_local else ""


def print_link(host: str, port: int, code: str) -> None:
    """Print the one-time link with which a browser signs in to the dashboard."""
    print_note(f"Dashboard, valid once within 10 minutes: {escape_text(make_link(host, port, code))}")


def make_link(host: str, port: int, code: str) -> str:
    """Return the address of the dashboard with a one-time code.

    The code is behind a `#`, which browsers do not send to servers and do not log.
    """
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound to
    shown = f"[{reachable}]" if ":" in reachable else reachable
    return f"http://{shown}:{port}/ui/#code={code}"


def build_server(
    app: Any,
    on_ready: Callable[[], None],
    *,
    drain: Drain | None = None,
) -> uvicorn.Server:
    """Return a server for the gateway or the dashboard, which calls `on_ready` once it accepts requests.

    With `drain`, it answers requests for a while after SIGTERM.
    """
    import uvicorn

    from toolfold.serving.gateway.http_app import make_server_config
    from toolfold.serving.gateway.listening import MAX_PENDING_CONNECTIONS
    from toolfold.serving.gateway.uvicorn_connections import AcceptErrors, ConnectionAcceptor, make_connection

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            errors, loop = AcceptErrors(), asyncio.get_running_loop()
            errors.install(loop)
            if isinstance(loop, asyncio.BaseEventLoop):
                await super().startup(sockets)
            else:
                await self._start_acceptors(sockets or [], errors)
            if self.should_exit:  # stopped during startup: the app must be closed here
                await self.lifespan.shutdown()
                return
            on_ready()

        async def _start_acceptors(self, sockets: list[socket.socket], errors: AcceptErrors) -> None:
            """Accept connections outside uvloop, which drops them when file descriptors run out."""
            await super().startup([])

            for each in () if self.should_exit else sockets:
                acceptor = ConnectionAcceptor(each, lambda: make_connection(self), errors)
                self.servers.append(acceptor)  # type: ignore[arg-type]

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if drain is None or sig != signal.SIGTERM or not drain.start(lambda: stop(sig, frame)):
                stop(sig, frame)

    config = make_server_config(
        app,
        log_config=None,  # its records use Toolfold's handler, which redacts secrets
        backlog=MAX_PENDING_CONNECTIONS,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_not_cancellation)
    server = Server(config)
    stop = super(Server, server).handle_exit
    return server


@dataclass(slots=True)
class Drain:
    """Drain period at shutdown, in which the gateway still answers requests for some seconds."""

    readiness: ReplicaReadiness
    seconds: float

    def start(self, stop: Callable[[], object]) -> bool:
        """Start the drain period and call `stop` at its end; return False if the gateway must stop now."""
        if not self.seconds or self.readiness.is_draining:  # a second signal ends the waiting
            return False
        self.readiness.is_draining = True
        log.info(
            "the gateway stops in %g s; until then it answers requests, and /readyz reports that it stops",
            self.seconds,
        )
        timer = threading.Timer(self.seconds, stop)
        timer.daemon = True
        timer.start()
        return True


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Log filter: return False for errors about cancelled tasks, which a requested shutdown causes."""
    return "CancelledError" not in record.getMessage()


def _print_startup(runtime: Runtime, host: str, port: int, toolsets: tuple[str, ...] | None) -> None:
    shown = f"[{host}]" if ":" in host else host
    states = runtime.mcp.states()
    own = sum(tool.source.kind == "user" for tool in runtime.registry.snapshot().values())
    served = [format_count(own, "function")] if own else []
    if states or not own:
        tools = sum(each.tools for each in states)
        served.append(f"{format_count(tools, 'tool')} of {format_count(len(states), 'server')}")
    print_note(f"Serving {' and '.join(served)} at http://{shown}:{port}/mcp")
    _print_listing_size(runtime, toolsets)
    if runtime.config.proxy.enabled:
        print_note(f"Model APIs for clients of OpenAI and Anthropic at http://{shown}:{port}/v1")
    for each in states:
        if each.error:
            print_note(f"[yellow]{escape_text(each.name)}:[/yellow] {escape_text(each.error)}")


def _print_access(config: Config, *, needs_token: bool) -> None:
    """Print how clients get access to the gateway."""
    oauth = config.gateway.oauth
    if oauth.issuer:
        print_note(
            f"Clients log in at {escape_text(oauth.issuer)} to use {escape_text(oauth.resource)}, or have a"
            " token: `toolfold token add NAME`."
        )
        if not oauth.create_users:
            print_note("Only known users may log in: `toolfold user add NAME --issuer URL --subject ID`.")
    elif needs_token:
        print_note("Every client needs a token: `toolfold token add NAME`.")


def _print_listing_size(runtime: Runtime, toolsets: tuple[str, ...] | None) -> None:
    """Print the size of the tool list for clients, in a thread because measuring takes a while."""
    from toolfold.serving.gateway.listing_size import measure_listing
    from toolfold.serving.gateway.server import open_session

    def on_ready() -> None:
        try:
            size = measure_listing(open_session(runtime, toolsets))
            if size.shown or size.deferred:
                log.info("tools for clients: %s", size)
                print_note(escape_text(f"Tools for clients: {size}."))
        except Exception:
            log.debug("the size of the tool list for clients could not be measured", exc_info=True)

    threading.Thread(target=on_ready, name="toolfold-listing-size", daemon=True).start()


async def _run_until_signal(work: Any) -> None:
    """Run a coroutine until it ends or a termination signal arrives."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        with suppress(AttributeError, NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(getattr(signal, name), task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return
