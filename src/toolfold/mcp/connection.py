"""Connection to one MCP server: open it, send requests, and report when it ends.

Wraps the SDK's client, which supports every protocol revision, and adds the limits that it lacks. Everything
runs in one event loop. A connection is never repaired: its supervisor opens a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.errors import error_message, shorten
from toolfold.core.invisible_characters import remove_invisible
from toolfold.core.types import Json, Progress
from toolfold.mcp import server_process
from toolfold.mcp.call_relay import CallRelay
from toolfold.mcp.error_mapping import (
    CHECK_URL_ADVICE,
    UNKNOWN_EFFECT_ADVICE,
    as_start_failure,
    describe_error,
    log_advice,
    map_error,
    redact_error_result,
    unwrap_group,
)
from toolfold.mcp.faults import (
    ConnectionLost,
    InvalidResponse,
    NotStarted,
    RequestRejected,
    ResponseTimeout,
    ServerFailed,
)
from toolfold.mcp.list_results import MAX_PROBLEMS, list_problems
from toolfold.mcp.notifications import NotificationSubscription, ResourceSubscriptions
from toolfold.mcp.sdk_compat import RawRequests, wrap_raw_requests
from toolfold.mcp.session_hooks import repair_list_results, stamp_client_capabilities
from toolfold.mcp.stdio_transport import StdioTransport
from toolfold.mcp.tool_listing import MAX_LISTED_TOOLS, Listing, parse_tools

if TYPE_CHECKING:
    from toolfold.mcp.direct_calls import DirectCalls

MAX_TOOL_PAGES = 100
MAX_LISTING_CHARS = 30_000_000  # characters of JSON
CLOSE_TIMEOUT_S = 8.0
SETTLE_TIMEOUT_S = 1.0
EXIT_TIMEOUT_S = 2.0
"""Time that a process which has closed its output has to exit before it is reported without an exit code."""
PROBE_TIMEOUT_S = 3.0
"""Time to wait for the response to a method of a newer revision before the server counts as an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionDeps:
    """Settings and callbacks that a connection to an MCP server needs."""

    settings: McpServerSettings
    """Settings of the server, with all references resolved."""
    environment: Mapping[str, str]
    """All environment variables of the server's process."""
    log: server_process.ServerLog
    auth: Any = None
    elicit: Any = None
    sample: Any = None
    on_change: Callable[[str], None]
    """Called with `tools`, `resources` or `prompts` when the server reports that this list has changed."""
    on_update: Callable[[str], None]
    """Called with the URI of a resource that has changed."""
    is_awaiting_user: Callable[[], bool] = bool
    """Function that returns True while a person is being asked on behalf of the server."""
    on_log: Any = None
    legacy: bool = False
    """True if the server is known to use an older protocol revision; the newest one is then not tried."""


class ServerConnection:
    """Connection to one MCP server; `open` must be called first."""

    def __init__(self, server: str, deps: ConnectionDeps) -> None:
        self.server, self.settings, self._deps = server, deps.settings, deps
        self._client: Any = None
        self._direct_calls: DirectCalls | None = None
        self._process: server_process.ServerProcess | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._was_ready = self._closes_gracefully = self._is_task_cancelled = False
        self._close_requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_received = time.monotonic()
        self._pending_count = 0
        self._disconnected = asyncio.Event()
        self._list_subscription: NotificationSubscription | None = None
        self._resource_subscriptions: ResourceSubscriptions | None = None
        self._has_listed_tools = False

    @property
    def is_alive(self) -> bool:
        return self._client is not None and not self._disconnected.is_set()

    @property
    def run_task(self) -> asyncio.Task[None]:
        """Return the task that runs the connection; it finishes when the connection ends."""
        assert self._task is not None  # noqa: S101 - set by `open`
        return self._task

    @property
    def idle_seconds(self) -> float:
        """Return the seconds since the last message from the server."""
        return time.monotonic() - self._last_received

    @property
    def is_busy(self) -> bool:
        """Return True while the response to a request is pending."""
        return self._pending_count > 0

    @property
    def is_legacy(self) -> bool:
        """Return True if the server uses an older revision of the protocol."""
        return not self._is_modern

    @property
    def protocol(self) -> str:
        return str(self._client.protocol_version) if self._client else ""

    async def open(self, seconds: float) -> None:
        """Start the server or connect to it, and initialize the MCP session.

        Raises NotStarted, NeedsLogin or ConnectionLost, and cleans up before it does.
        """
        self._task = asyncio.create_task(self._run(), name=f"mcp {self.server}")
        self._task.add_done_callback(_retrieve_exception)
        try:
            await asyncio.wait({self._task, self._ready}, timeout=seconds, return_when="FIRST_COMPLETED")
            if self._ready.done() and not self._ready.cancelled():
                self._ready.result()
                return
            if self._task.done():
                raise await self._to_fault(self._task.exception(), NotStarted)
            advice = f"Check `toolfold mcp logs {self.server}`, or raise its connect_timeout_seconds."
            problem = f"was not ready within {seconds:g} s.{self._log_tail}"
            raise NotStarted(self.server, problem, advice=advice)
        except BaseException:
            await self.close()
            raise

    async def close(self, *, force: bool = False) -> None:
        """Close the connection within a limited time. Never raises.

        With `force` the server is not given time to exit by itself.
        """
        self._closes_gracefully = self._closes_gracefully and not force
        self._close_requested.set()
        if self._task is None:
            return
        is_graceful = self._client is not None and self._closes_gracefully
        _, pending = await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S if is_graceful else 0.05)
        if pending:
            if not self._is_task_cancelled:  # a second cancellation would interrupt closing the sockets
                self._is_task_cancelled = True
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
        if self._process is not None:
            await self._process.close(0.0)

    async def list_tools(self, seconds: float) -> Listing:
        """Fetch all tools page by page, and find out whether the server has resources and prompts."""
        from mcp_types import Implementation

        async with self._limit_startup(seconds, "to list its tools"):
            tools: list[Json] = []
            problems: list[str] = []
            capabilities = self._client.server_capabilities
            if capabilities.tools is not None or self._declares_nothing(capabilities):
                await self._wait_for_list_subscription()
                self._has_listed_tools = True
                tools, problems = await self._fetch_tool_pages()
            has_resources, has_prompts = await asyncio.gather(
                self._has_entries(capabilities.resources, "resources/list", "resources/templates/list"),
                self._has_entries(capabilities.prompts, "prompts/list"),
            )
        parsed, invalid = parse_tools(tools)
        for problem in invalid[:MAX_PROBLEMS]:
            self._deps.log.note(f"({problem})")
        info: Implementation | None = self._client.server_info
        return Listing(
            tools=parsed,
            instructions=shorten(self._client.instructions or "", 20_000),
            has_resources=has_resources,
            has_prompts=has_prompts,
            protocol=self.protocol,
            version=shorten(f"{info.name} {info.version}", 200) if info else "",
            problems=(*problems, *invalid)[:MAX_PROBLEMS],
        )

    async def _has_entries(self, capability: Any, *methods: str) -> bool:
        """Return True if one of the list methods returns entries; also True if a request times out."""
        from mcp import MCPError

        if capability is None:
            return False
        for method in methods:
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    page = await self._dispatch_request(method, {}, None)
            except TimeoutError:
                return True
            except MCPError:  # many servers do not know all of these methods
                continue
            except Exception as error:
                self._deps.log.note(f"({method} failed: {shorten(error_message(error), 200)})")
                continue
            entries = page.model_dump(include={"resources", "resource_templates", "prompts"})
            if any(entries.values()) or page.next_cursor is not None:
                return True
        return False

    def _declares_nothing(self, capabilities: Any) -> bool:
        return not any((capabilities.tools, capabilities.resources, capabilities.prompts))

    async def _wait_for_list_subscription(self) -> None:
        """Wait briefly until the subscription to list changes is active, so that no change is missed."""
        if self._list_subscription is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SETTLE_TIMEOUT_S):
                    await self._list_subscription.wait_until_open()

    async def _fetch_tool_pages(self) -> tuple[list[Json], list[str]]:
        tools: list[Json] = []
        problems: list[str] = []
        cursors: set[str] = set()
        cursor: str | None = None
        left = MAX_LISTING_CHARS
        for _ in range(MAX_TOOL_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            problems += list_problems(page)[: max(0, MAX_PROBLEMS - len(problems))]
            new = [each.model_dump(by_alias=True, exclude_none=True, mode="json") for each in page.tools]
            left -= len(json.dumps(new))
            if left < 0:
                return tools, [
                    *problems,
                    f"its list of tools exceeds {MAX_LISTING_CHARS:,} characters; the rest is ignored",
                ]
            tools += new
            cursor = page.next_cursor
            if cursor is None:
                return tools, problems
            if cursor in cursors or len(tools) > MAX_LISTED_TOOLS:
                break
            cursors.add(cursor)
        return tools, [*problems, "its list of tools never ends; only the first pages are used"]

    async def call_tool(
        self,
        tool: str,
        args: Json,
        relay: CallRelay | None = None,
        report_progress: Progress | None = None,
    ) -> Any:
        """Call a tool of the server. Progress notifications extend the timeout, up to `max_call_seconds`."""
        settings = self.settings
        deadline = _ResponseDeadline(
            settings.call_timeout_seconds, settings.max_call_seconds, self._deps.is_awaiting_user
        )

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            deadline.restart()
            if relay is not None and relay.progress is not None:
                relay.send(relay.progress(done, total, message))
            if report_progress is not None:
                report_progress(remove_invisible(message or ""), done, total)

        work = _run_for_client(relay, self._send_call(tool, args, on_progress, relay))
        answer = await self._await_response(work, deadline, f"a call of {tool!r}")
        return redact_error_result(answer, self._deps.log.redact)

    def _send_call(self, tool: str, args: Json, on_progress: Any, relay: CallRelay | None) -> Any:
        if relay is None or not relay.handles_input_requests or not self._is_modern:
            return self._client.call_tool(tool, args, progress_callback=on_progress)
        return self._client.session.call_tool(
            tool,
            args,
            progress_callback=on_progress,
            input_responses=relay.input_responses,
            request_state=relay.request_state,
            allow_input_required=True,
        )

    async def send_request(
        self, method: str, params: Json, seconds: float, relay: CallRelay | None = None
    ) -> Any:
        """Send a request other than a tool call, such as `resources/read`, to the server."""
        work = _run_for_client(relay, self._dispatch_request(method, params, relay))
        return await self._await_response(work, _ResponseDeadline(seconds, seconds), method)

    def _dispatch_request(self, method: str, params: Json, relay: CallRelay | None) -> Any:
        client, session, cursor = self._client, self._client.session, params.get("cursor")
        inputs: Json = {}
        if relay is not None and relay.handles_input_requests and self._is_modern:
            client, inputs = (
                session,
                {"input_responses": relay.input_responses, "request_state": relay.request_state},
            )
            inputs["allow_input_required"] = True
        senders: Mapping[str, Callable[[], Any]] = {
            "resources/list": lambda: self._client.list_resources(cursor=cursor, cache_mode="refresh"),
            "resources/templates/list": lambda: self._client.list_resource_templates(
                cursor=cursor, cache_mode="refresh"
            ),
            "resources/read": lambda: client.read_resource(params["uri"], **inputs),
            "resources/subscribe": lambda: self._set_subscription(params["uri"], subscribe=True),
            "resources/unsubscribe": lambda: self._set_subscription(params["uri"], subscribe=False),
            "prompts/list": lambda: self._client.list_prompts(cursor=cursor, cache_mode="refresh"),
            "prompts/get": lambda: client.get_prompt(
                params["name"], params.get("arguments") or None, **inputs
            ),
            "completion/complete": lambda: self._client.complete(**params),
        }
        return senders[method]()

    async def resubscribe(self, uris: Iterable[str], seconds: float) -> None:
        """Subscribe again to the resources of an earlier connection, and report each resource as updated.

        Updates may have been missed in between.
        """
        for uri in uris:
            if not self.is_alive:
                return  # the next connection subscribes to all of them
            with contextlib.suppress(ServerFailed):
                await self.send_request("resources/subscribe", {"uri": uri}, seconds)
                self._deps.on_update(uri)

    def _set_subscription(self, uri: str, *, subscribe: bool) -> Any:
        if self._resource_subscriptions is not None:
            return self._resource_subscriptions.set_subscribed(uri, subscribe=subscribe)
        return _send_subscription(self._client.session, uri, subscribe=subscribe)

    async def check_alive(self, seconds: float) -> None:
        """Ping the server. Raises ServerFailed if it does not respond."""
        session = self._client.session
        if self._is_modern:
            work = self._client.list_tools(cache_mode="bypass")
        else:
            from mcp_types import EmptyResult, PingRequest

            work = session.send_request(PingRequest(), EmptyResult)
        try:
            await self._await_response(work, _ResponseDeadline(seconds, seconds), "a keepalive")
        except (RequestRejected, InvalidResponse):
            return  # an error response shows that it is alive

    @property
    def _is_modern(self) -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.protocol in MODERN_PROTOCOL_VERSIONS

    async def _run(self) -> None:
        """Keep the transport and the SDK's client open, both in a single task as the SDK requires."""
        try:
            async with self._open_transport() as transport, self._open_client(transport) as client:
                self._client = client
                self._patch_session()
                if not self._ready.done():
                    self._ready.set_result(None)
                    self._was_ready = self._closes_gracefully = True
                if self._is_modern:
                    self._list_subscription = self._subscribe_to_lists()
                    self._resource_subscriptions = ResourceSubscriptions(client.listen, self._deps.on_update)
                try:
                    await self._wait_until_closed()
                finally:
                    self._close_subscriptions()
        finally:
            self._client = None

    def _close_subscriptions(self) -> None:
        for each in (self._list_subscription, self._resource_subscriptions):
            if each is not None:
                each.close()

    def _patch_session(self) -> None:
        session = self._client.session
        if self._direct_calls is not None:
            wrap_raw_requests(session, partial(self._direct_calls.wrap, requests=RawRequests(session)))
        repair_list_results(session, lambda: self.protocol, self._deps.log.note)
        if self._is_modern:
            stamp_client_capabilities(session, self._client_capabilities)

    def _client_capabilities(self) -> Json | None:
        """Return the capabilities of the gateway client that made the current request, or None."""
        relay = _CALL_RELAY.get()
        declared = None if relay is None else relay.capabilities
        return None if declared is None else self._filter_capabilities(declared)

    def _filter_capabilities(self, capabilities: Json) -> Json:
        refused = {
            name
            for name, is_refused in (
                ("sampling", self.settings.sampling == "deny"),
                ("elicitation", self.settings.elicitation == "decline"),
            )
            if is_refused
        }
        return {name: each for name, each in capabilities.items() if name not in refused}

    async def _wait_until_closed(self) -> None:
        """Wait until `close` is called or the server has disconnected."""
        close_requested = asyncio.create_task(self._close_requested.wait())
        disconnected = asyncio.create_task(self._disconnected.wait())
        try:
            await asyncio.wait({close_requested, disconnected}, return_when="FIRST_COMPLETED")
        finally:
            close_requested.cancel()
            disconnected.cancel()

    def _subscribe_to_lists(self) -> NotificationSubscription:
        """Subscribe to changes of the server's lists of tools, resources and prompts."""
        lists = ("tools_list_changed", "prompts_list_changed", "resources_list_changed")

        def on_event(event: Any) -> None:
            self._deps.on_change(_changed_list_kind(type(event).__name__))

        def on_open(_reopened: bool) -> None:
            if self._has_listed_tools:  # changes since then were not reported
                self._deps.on_change("tools")

        return NotificationSubscription(
            partial(self._client.listen, **dict.fromkeys(lists, True)), on_event, on_open
        )

    @asynccontextmanager
    async def _open_transport(self) -> AsyncIterator[Any]:
        if self.settings.effective_transport != "stdio":
            from toolfold.mcp.http_transport import open_http_transport

            opened = open_http_transport(
                self.settings, self._deps, self._disconnected, lambda: self._was_ready
            )
            async with opened as (transport, self._direct_calls):
                yield transport
            return
        self._process = await server_process.start_server(
            self.server,
            self.settings.command,
            self.settings.args,
            environment=self._deps.environment,
            cwd=self.settings.cwd,
            log=self._deps.log,
        )
        try:
            limits = {"server/discover": PROBE_TIMEOUT_S}
            yield StdioTransport(
                self._process, self._deps.log.note, self._disconnected, limits=limits
            ).open_streams()
        finally:
            grace = server_process.EXIT_GRACE_S if self._closes_gracefully else 0.0
            await asyncio.shield(self._process.close(grace))

    @asynccontextmanager
    async def _open_client(self, transport: Any) -> AsyncIterator[Any]:
        from mcp import Client
        from mcp_types import Implementation

        client = Client(
            transport,
            mode="legacy" if self._deps.legacy else "auto",
            client_info=Implementation(name="toolfold", version=version("toolfold")),
            elicitation_callback=self._deps.elicit,
            sampling_callback=self._deps.sample,
            logging_callback=self._deps.on_log,
            message_handler=self._handle_message,
        )
        async with client:
            yield client

    async def _handle_message(self, message: Any) -> None:
        self._last_received = time.monotonic()
        name = type(message).__name__
        if name == "ResourceUpdatedNotification":
            self._deps.on_update(str(message.params.uri))
        elif kind := _changed_list_kind(name):
            self._deps.on_change(kind)

    async def _await_response(self, work: Any, deadline: _ResponseDeadline, request: str) -> Any:
        """Return the response to a request. Raises ServerFailed if no response arrives."""
        wakeup = _Wakeup()
        task = asyncio.ensure_future(wakeup.run(work))
        task.add_done_callback(_retrieve_exception)
        task.add_done_callback(wakeup.notify)  # it may be cancelled before it has started
        self.run_task.add_done_callback(wakeup.notify)
        self._pending_count += 1
        try:
            await self._wait_for_task(task, deadline, wakeup)
        except asyncio.CancelledError:
            await self._cancel_task(task)
            raise
        finally:
            self._pending_count -= 1
            self.run_task.remove_done_callback(wakeup.notify)
        if not task.done():
            await self._cancel_task(task)
            if self.run_task.done():
                raise await self._to_fault(None, ConnectionLost)
            problem = f"did not respond to {request} within {deadline.elapsed:.1f} s.{self._log_tail}"
            raise ResponseTimeout(self.server, problem, advice=UNKNOWN_EFFECT_ADVICE)
        if task.cancelled():
            raise await self._to_fault(None, ConnectionLost)
        if error := task.exception():
            raise await self._to_fault(error, ConnectionLost)
        self._last_received = time.monotonic()
        return task.result()

    async def _wait_for_task(
        self, task: asyncio.Future[Any], deadline: _ResponseDeadline, wakeup: _Wakeup
    ) -> None:
        """Wait until the task is done, the connection has ended, or the deadline has expired."""
        while not task.done() and not deadline.is_expired:
            await wakeup.wait(deadline.remaining)
            if self.run_task.done() and not task.done():
                await asyncio.wait({task}, timeout=0.1)
                return

    async def _cancel_task(self, task: asyncio.Future[Any]) -> None:
        """Cancel a request, and give the SDK's client a moment to notify the server."""
        task.cancel()
        await asyncio.wait({task}, timeout=SETTLE_TIMEOUT_S)

    @asynccontextmanager
    async def _limit_startup(self, seconds: float, action: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise NotStarted(
                self.server, f"took longer than {seconds:g} s {action}.", advice=log_advice(self.server)
            ) from None
        except Exception as error:
            raise await self._to_fault(error, NotStarted) from None

    async def _to_fault(self, error: BaseException | None, otherwise: type[ServerFailed]) -> ServerFailed:
        """Convert an exception to a ServerFailed without secrets, of type `otherwise` for unknown errors."""
        fault = unwrap_group(await self._find_cause(error))
        if isinstance(fault, ServerFailed):
            return fault
        mapped = map_error(self.server, fault, self._disconnected.is_set(), self._deps.log.redact)
        if isinstance(mapped, InvalidResponse):
            self._deps.log.note(f"({mapped.problem})")
        if mapped is not None:
            return as_start_failure(mapped) if otherwise is NotStarted else mapped
        reason = self._deps.log.redact(await self._describe_end(fault))
        if self._process is None and otherwise is NotStarted:
            return NotStarted(self.server, f"could not be reached: {reason}", advice=CHECK_URL_ADVICE)
        if otherwise is NotStarted:
            return NotStarted(self.server, f"could not be started: {reason}", advice=log_advice(self.server))
        return ConnectionLost(self.server, f"disconnected: {reason}", advice=UNKNOWN_EFFECT_ADVICE)

    async def _find_cause(self, error: BaseException | None) -> BaseException | None:
        """Return the exception that ended the connection, or `error` if no such exception is known."""
        task = self._task
        if task is None or not self._disconnected.is_set() or self._process is not None:
            return error
        await asyncio.wait({task}, timeout=SETTLE_TIMEOUT_S)
        ended = None if not task.done() or task.cancelled() else task.exception()
        return ended or error

    async def _describe_end(self, fault: BaseException | None) -> str:
        if self._process and self._disconnected.is_set() and not isinstance(fault, RuntimeError):
            return await self._process.describe_exit(EXIT_TIMEOUT_S)  # a RuntimeError of the SDK says more
        return describe_error(fault)

    @property
    def _log_tail(self) -> str:
        tail = self._deps.log.tail()
        return f" Last log lines: {tail}" if tail and self._process else ""


_CALL_RELAY: ContextVar[CallRelay | None] = ContextVar("toolfold_call_relay", default=None)


async def _run_for_client(relay: CallRelay | None, work: Awaitable[Any]) -> Any:
    """Await a request on behalf of a gateway client; the request declares that client's capabilities."""
    _CALL_RELAY.set(relay)
    return await work


class _Wakeup:
    """Wakes up a task that waits for a response when the response arrives or the connection ends.

    Does the same as `asyncio.wait`, with fewer steps of the event loop, because every tool call waits for it.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, work: Awaitable[Any]) -> Any:
        """Await a request, then wake up the task that waits for its response."""
        try:
            return await work
        finally:
            self.notify()

    def notify(self, _task: object = None) -> None:
        """Wake up the task that is waiting for a response."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until `notify` is called or the timeout has expired."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.notify)
        try:
            await self._waiter
        finally:
            timer.cancel()


class _ResponseDeadline:
    """Deadline for a server's response; each progress notification extends it up to a maximum."""

    def __init__(
        self, idle_seconds: float, max_seconds: float, is_suspended: Callable[[], bool] = bool
    ) -> None:
        self._idle_seconds, self._max_seconds = min(idle_seconds, max_seconds), max_seconds
        self._is_suspended = is_suspended
        self._started = self._restarted = time.monotonic()

    def restart(self) -> None:
        self._restarted = time.monotonic()

    @property
    def remaining(self) -> float:
        until = min(self._restarted + self._idle_seconds, self._started + self._max_seconds)
        return max(0.0, until - time.monotonic())

    @property
    def is_expired(self) -> bool:
        if self.remaining <= 0 and self._is_suspended():
            self.restart()  # the server waits for a person
        return self.remaining <= 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started


def _changed_list_kind(event_type: str) -> str:
    kinds = {
        "ToolList": "tools",
        "ToolsList": "tools",
        "Prompt": "prompts",
        "ResourceList": "resources",
        "ResourcesList": "resources",
    }
    return next(
        (kind for start, kind in kinds.items() if event_type.startswith(start) and "Changed" in event_type),
        "",
    )


def _send_subscription(session: Any, uri: str, *, subscribe: bool) -> Any:
    from mcp_types import (
        EmptyResult,
        SubscribeRequest,
        SubscribeRequestParams,
        UnsubscribeRequest,
        UnsubscribeRequestParams,
    )

    if subscribe:
        return session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)
    return session.send_request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), EmptyResult)


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
