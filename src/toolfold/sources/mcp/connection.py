"""One live connection to a server: opened, asked, and known to be gone the moment it is.

Over the official client, which speaks every revision of the protocol; around it stand the limits that it
does not have. Everything here runs in one loop. A connection is never mended: its supervisor opens another.
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
from typing import Any

from toolfold.config.servers import McpServer
from toolfold.errors import error_message, shorten
from toolfold.model import Json
from toolfold.sources.mcp import child as children
from toolfold.sources.mcp.courier import Courier
from toolfold.sources.mcp.faults import (
    Garbled,
    Lost,
    NoAnswer,
    NotStarted,
    Rejected,
    ServerFailed,
)
from toolfold.sources.mcp.list_results import MAX_PROBLEMS, list_problems
from toolfold.sources.mcp.news import Followed, News
from toolfold.sources.mcp.offers import MOST_TOOLS, Listing, read_offers
from toolfold.sources.mcp.sdk_hooks import repair_list_results, stamp_client_capabilities
from toolfold.sources.mcp.told import (
    ADDRESS,
    UNKNOWN,
    at_start,
    first_cause,
    in_words,
    logs,
    told,
    without_secrets,
)
from toolfold.sources.mcp.wire import Wire

MOST_PAGES = 100
LARGEST_LISTING = 30_000_000  # characters of JSON
CLOSE_SECONDS = 8.0
SETTLE_SECONDS = 1.0
END_SECONDS = 2.0
"""How long a process may take to end that has closed its output, until it is told without how it ended."""
PROBE_SECONDS = 3.0
"""How long a server may think about a question from a newer protocol before it is taken for an older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What a connection is given by its surroundings."""

    settings: McpServer
    """The server's, with everything looked up."""
    environment: Mapping[str, str]
    """The variables of the child, decided."""
    log: children.ServerLog
    auth: Any = None
    elicit: Any = None
    sample: Any = None
    on_change: Callable[[str], None]
    """Told that a list of the server's is not what it was: `tools`, `resources` or `prompts`."""
    on_update: Callable[[str], None]
    """Told the address of a resource that is not what it was."""
    is_asking: Callable[[], bool] = bool
    """Whether a person is being asked for the server just now."""
    on_log: Any = None
    legacy: bool = False
    """Known to speak an older revision, so that it is not asked for the newest."""


class Connection:
    """Open one with `connect`."""

    def __init__(self, server: str, wiring: Wiring) -> None:
        self.server, self.settings, self._wiring = server, wiring.settings, wiring
        self._client: Any = None
        self._child: children.Child | None = None
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._was_ready = self._is_polite = self._is_cut = False
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heard = time.monotonic()
        self._waiting = 0
        self._over = asyncio.Event()
        self._news: News | None = None
        self._followed: Followed | None = None
        self._is_listed = False

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._over.is_set()

    @property
    def gone(self) -> asyncio.Task[None]:
        """Done when the connection is."""
        assert self._task is not None  # noqa: S101 - it is opened before it is handed out
        return self._task

    @property
    def idle_seconds(self) -> float:
        """Since the server was last heard."""
        return time.monotonic() - self._heard

    @property
    def is_busy(self) -> bool:
        """Whether an answer is waited for. Many a server does one thing at a time and hears nothing else."""
        return self._waiting > 0

    @property
    def is_legacy(self) -> bool:
        """Whether it speaks a revision from before the newest."""
        return not self._is_modern

    @property
    def protocol(self) -> str:
        return str(self._client.protocol_version) if self._client else ""

    async def open(self, seconds: float) -> None:
        """Start it and shake hands. Raises NotStarted, NeedsLogin or Lost, and leaves nothing behind."""
        self._task = asyncio.create_task(self._live(), name=f"mcp {self.server}")
        self._task.add_done_callback(_looked_at)
        try:
            await asyncio.wait({self._task, self._ready}, timeout=seconds, return_when="FIRST_COMPLETED")
            if self._ready.done() and not self._ready.cancelled():
                self._ready.result()
                return
            if self._task.done():
                raise await self._why(self._task.exception(), NotStarted)
            advice = f"Look at `toolfold mcp logs {self.server}`, or raise its connect_timeout_seconds."
            problem = f"did not get ready within {seconds:g} s.{self._last_words}"
            raise NotStarted(self.server, problem, advice=advice)
        except BaseException:
            await self.close()
            raise

    async def close(self, *, at_once: bool = False) -> None:
        """End it. Never raises, and takes a bounded time; less where it is known not to answer."""
        self._is_polite = self._is_polite and not at_once
        self._leave.set()
        if self._task is None:
            return
        is_polite = self._client is not None and self._is_polite
        _, pending = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS if is_polite else 0.05)
        if pending:
            if not self._is_cut:  # once: a second time would cut short how it lets go of its sockets
                self._is_cut = True
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if self._child is not None:
            await self._child.close(0.0)

    async def listed(self, seconds: float) -> Listing:
        """All its tools, page by page, and what else it offers."""
        from mcp_types import Implementation

        async with self._within(seconds, "to list its tools"):
            tools: list[Json] = []
            problems: list[str] = []
            capabilities = self._client.server_capabilities
            if capabilities.tools is not None or self._is_silent_about(capabilities):
                await self._let_listen()
                self._is_listed = True
                tools, problems = await self._pages()
            has_resources, has_prompts = await asyncio.gather(
                self._has_any(capabilities.resources, "resources/list", "resources/templates/list"),
                self._has_any(capabilities.prompts, "prompts/list"),
            )
        offers, odd = read_offers(tools)
        for problem in odd[:MAX_PROBLEMS]:
            self._wiring.log.note(f"({problem})")
        info: Implementation | None = self._client.server_info
        return Listing(
            offers=offers,
            instructions=shorten(self._client.instructions or "", 20_000),
            has_resources=has_resources,
            has_prompts=has_prompts,
            protocol=self.protocol,
            version=shorten(f"{info.name} {info.version}", 200) if info else "",
            problems=(*problems, *odd)[:MAX_PROBLEMS],
        )

    async def _has_any(self, capability: Any, *methods: str) -> bool:
        """Whether one of the lists has an entry. A server that does not say in time may have some."""
        from mcp import MCPError

        if capability is None:
            return False
        for method in methods:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    page = await self._asking(method, {}, None)
            except TimeoutError:
                return True
            except MCPError:  # many a server does not know all of these methods
                continue
            except Exception as error:
                self._wiring.log.note(f"({method} failed: {shorten(error_message(error), 200)})")
                continue
            entries = page.model_dump(include={"resources", "resource_templates", "prompts"})
            if any(entries.values()) or page.next_cursor is not None:
                return True
        return False

    def _is_silent_about(self, capabilities: Any) -> bool:
        return not any((capabilities.tools, capabilities.resources, capabilities.prompts))

    async def _let_listen(self) -> None:
        """Be told of changes before anything is listed, where that is soon done: no change is missed then."""
        if self._news is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._news.settled()

    async def _pages(self) -> tuple[list[Json], list[str]]:
        tools: list[Json] = []
        problems: list[str] = []
        cursors: set[str] = set()
        cursor: str | None = None
        left = LARGEST_LISTING
        for _ in range(MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            problems += list_problems(page)[: max(0, MAX_PROBLEMS - len(problems))]
            new = [each.model_dump(by_alias=True, exclude_none=True, mode="json") for each in page.tools]
            left -= len(json.dumps(new))
            if left < 0:
                return tools, [*problems, f"its list of tools is larger than {LARGEST_LISTING:,} characters"]
            tools += new
            cursor = page.next_cursor
            if cursor is None:
                return tools, problems
            if cursor in cursors or len(tools) > MOST_TOOLS:
                break
            cursors.add(cursor)
        return tools, [*problems, "its list of tools has no end; what came first is used"]

    async def call(self, tool: str, args: Json, courier: Courier | None = None) -> Any:
        """Call a tool. Progress gives it more time, up to the longest a call may take."""
        settings = self.settings
        patience = _Patience(settings.call_timeout_seconds, settings.max_call_seconds, self._wiring.is_asking)

        async def heard(done: float, total: float | None, message: str | None) -> None:
            patience.heard()
            if courier is not None and courier.progress is not None:
                courier.tell(courier.progress(done, total, message))

        work = _for(courier, self._called(tool, args, heard, courier))
        answer = await self._answer(work, patience, f"a call of {tool!r}")
        return without_secrets(answer, self._wiring.log.redact)

    def _called(self, tool: str, args: Json, heard: Any, courier: Courier | None) -> Any:
        if courier is None or not courier.resolves or not self._is_modern:
            return self._client.call_tool(tool, args, progress_callback=heard)
        return self._client.session.call_tool(
            tool,
            args,
            progress_callback=heard,
            input_responses=courier.responses,
            request_state=courier.state,
            allow_input_required=True,
        )

    async def ask(self, method: str, params: Json, seconds: float, courier: Courier | None = None) -> Any:
        """One of the other things a server can be asked."""
        work = _for(courier, self._asking(method, params, courier))
        return await self._answer(work, _Patience(seconds, seconds), method)

    def _asking(self, method: str, params: Json, courier: Courier | None) -> Any:
        client, session, cursor = self._client, self._client.session, params.get("cursor")
        inputs: Json = {}
        if courier is not None and courier.resolves and self._is_modern:
            client, inputs = session, {"input_responses": courier.responses, "request_state": courier.state}
            inputs["allow_input_required"] = True
        asks: Mapping[str, Callable[[], Any]] = {
            "resources/list": lambda: self._client.list_resources(cursor=cursor, cache_mode="refresh"),
            "resources/templates/list": lambda: self._client.list_resource_templates(
                cursor=cursor, cache_mode="refresh"
            ),
            "resources/read": lambda: client.read_resource(params["uri"], **inputs),
            "resources/subscribe": lambda: self._follow(params["uri"], wanted=True),
            "resources/unsubscribe": lambda: self._follow(params["uri"], wanted=False),
            "prompts/list": lambda: self._client.list_prompts(cursor=cursor, cache_mode="refresh"),
            "prompts/get": lambda: client.get_prompt(
                params["name"], params.get("arguments") or None, **inputs
            ),
            "completion/complete": lambda: self._client.complete(**params),
        }
        return asks[method]()

    async def follow_again(self, uris: Iterable[str], seconds: float) -> None:
        """Ask for news of resources that were followed before. What became of them meanwhile nobody knows."""
        for uri in uris:
            if not self.alive:
                return  # the next one begins with all of them
            with contextlib.suppress(ServerFailed):
                await self.ask("resources/subscribe", {"uri": uri}, seconds)
                self._wiring.on_update(uri)

    def _follow(self, uri: str, *, wanted: bool) -> Any:
        if self._followed is not None:
            return self._followed.change(uri, wanted=wanted)
        return _subscribe(self._client.session, uri, wanted=wanted)

    async def sign(self, seconds: float) -> None:
        """A sign of life. Raises where there is none."""
        session = self._client.session
        if self._is_modern:
            work = self._client.list_tools(cache_mode="bypass")
        else:
            from mcp_types import EmptyResult, PingRequest

            work = session.send_request(PingRequest(), EmptyResult)
        try:
            await self._answer(work, _Patience(seconds, seconds), "a keepalive")
        except (Rejected, Garbled):
            return  # it answered: that is all that was asked

    @property
    def _is_modern(self) -> bool:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        return self.protocol in MODERN_PROTOCOL_VERSIONS

    async def _live(self) -> None:
        """From the first byte to the last, in one task, as the client's own scopes want it."""
        try:
            async with self._transport() as transport, self._client_over(transport) as client:
                self._client = client
                self._change_session()
                if not self._ready.done():
                    self._ready.set_result(None)
                    self._was_ready = self._is_polite = True
                if self._is_modern:
                    self._news = self._watch()
                    self._followed = Followed(client.listen, self._wiring.on_update)
                try:
                    await self._until_left()
                finally:
                    self._stop_listening()
        finally:
            self._client = None

    def _stop_listening(self) -> None:
        for each in (self._news, self._followed):
            if each is not None:
                each.end()

    def _change_session(self) -> None:
        session = self._client.session
        repair_list_results(session, lambda: self.protocol, self._wiring.log.note)
        if self._is_modern:
            stamp_client_capabilities(session, self._client_capabilities)

    def _client_capabilities(self) -> Json | None:
        """What the client behind the current request can be asked; None where there is no such client."""
        courier = _COURIER.get()
        known = None if courier is None else courier.capabilities
        return None if known is None else self._allowed(known)

    def _allowed(self, capabilities: Json) -> Json:
        refused = {
            name
            for name, is_refused in (
                ("sampling", self.settings.sampling == "deny"),
                ("elicitation", self.settings.elicitation == "decline"),
            )
            if is_refused
        }
        return {name: each for name, each in capabilities.items() if name not in refused}

    async def _until_left(self) -> None:
        """Until somebody wants it closed, or the server is gone."""
        leaving = asyncio.create_task(self._leave.wait())
        ending = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({leaving, ending}, return_when="FIRST_COMPLETED")
        finally:
            leaving.cancel()
            ending.cancel()

    def _watch(self) -> News:
        """Listen for changes of the server's lists."""
        wanted = ("tools_list_changed", "prompts_list_changed", "resources_list_changed")

        def heard(event: Any) -> None:
            self._wiring.on_change(_what_changed(type(event).__name__))

        def opened(_again: bool) -> None:
            if self._is_listed:  # since then nobody told of a change
                self._wiring.on_change("tools")

        return News(partial(self._client.listen, **dict.fromkeys(wanted, True)), heard, opened)

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self.settings.way != "stdio":
            from toolfold.sources.mcp.web import web_transport

            opened = web_transport(self.settings, self._wiring, self._over, lambda: self._was_ready)
            async with opened as transport:
                yield transport
            return
        self._child = await children.start(
            self.server,
            self.settings.command,
            self.settings.args,
            environment=self._wiring.environment,
            cwd=self.settings.cwd,
            log=self._wiring.log,
        )
        try:
            limits = {"server/discover": PROBE_SECONDS}
            yield Wire(self._child, self._wiring.log.note, self._over, limits=limits).transport()
        finally:
            grace = children.GRACE_SECONDS if self._is_polite else 0.0
            await asyncio.shield(self._child.close(grace))

    @asynccontextmanager
    async def _client_over(self, transport: Any) -> AsyncIterator[Any]:
        from mcp import Client
        from mcp_types import Implementation

        client = Client(
            transport,
            mode="legacy" if self._wiring.legacy else "auto",
            client_info=Implementation(name="toolfold", version=version("toolfold")),
            elicitation_callback=self._wiring.elicit,
            sampling_callback=self._wiring.sample,
            logging_callback=self._wiring.on_log,
            message_handler=self._hear,
        )
        async with client:
            yield client

    async def _hear(self, message: Any) -> None:
        self._heard = time.monotonic()
        name = type(message).__name__
        if name == "ResourceUpdatedNotification":
            self._wiring.on_update(str(message.params.uri))
        elif what := _what_changed(name):
            self._wiring.on_change(what)

    async def _answer(self, work: Any, patience: _Patience, what: str) -> Any:
        """The answer to a request, in time, or the fault that kept it away."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_looked_at)
        self._waiting += 1
        try:
            await self._wait(task, patience)
        except asyncio.CancelledError:
            await self._give_up(task)
            raise
        finally:
            self._waiting -= 1
        if not task.done():
            await self._give_up(task)
            if self.gone.done():
                raise await self._why(None, Lost)
            problem = f"did not answer {what} within {patience.spent:.1f} s.{self._last_words}"
            raise NoAnswer(self.server, problem, advice=UNKNOWN)
        if task.cancelled():
            raise await self._why(None, Lost)
        if error := task.exception():
            raise await self._why(error, Lost)
        self._heard = time.monotonic()
        return task.result()

    async def _wait(self, task: asyncio.Future[Any], patience: _Patience) -> None:
        """Until it is done, the connection is gone, or there is no patience left."""
        while not task.done() and not patience.is_over:
            waiting = {task, self.gone}
            await asyncio.wait(waiting, timeout=patience.left, return_when="FIRST_COMPLETED")
            if self.gone.done() and not task.done():
                await asyncio.wait({task}, timeout=0.1)
                return

    async def _give_up(self, task: asyncio.Future[Any]) -> None:
        """Stop waiting; the client tells the server so. It gets a moment for it, no more."""
        task.cancel()
        await asyncio.wait({task}, timeout=SETTLE_SECONDS)

    @asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise NotStarted(
                self.server, f"took longer than {seconds:g} s {what}.", advice=logs(self.server)
            ) from None
        except Exception as error:
            raise await self._why(error, NotStarted) from None

    async def _why(self, error: BaseException | None, otherwise: type[ServerFailed]) -> ServerFailed:
        """What went wrong, in our words and without a secret."""
        fault = first_cause(await self._what_ended(error))
        if isinstance(fault, ServerFailed):
            return fault
        known = told(self.server, fault, self._over.is_set(), self._wiring.log.redact)
        if isinstance(known, Garbled):
            self._wiring.log.note(f"({known.problem})")
        if known is not None:
            return at_start(known) if otherwise is NotStarted else known
        how = self._wiring.log.redact(await self._how_it_ended(fault))
        if self._child is None and otherwise is NotStarted:
            return NotStarted(self.server, f"could not be reached: {how}", advice=ADDRESS)
        if otherwise is NotStarted:
            return NotStarted(self.server, f"could not be started: {how}", advice=logs(self.server))
        return Lost(self.server, f"was lost: {how}", advice=UNKNOWN)

    async def _what_ended(self, error: BaseException | None) -> BaseException | None:
        """The cause, where the error says no more than that the connection is over."""
        task = self._task
        if task is None or not self._over.is_set() or self._child is not None:
            return error
        await asyncio.wait({task}, timeout=SETTLE_SECONDS)
        ended = None if not task.done() or task.cancelled() else task.exception()
        return ended or error

    async def _how_it_ended(self, fault: BaseException | None) -> str:
        if self._child and self._over.is_set() and not isinstance(fault, RuntimeError):
            return await self._child.ended(END_SECONDS)  # unless the SDK says more
        return in_words(fault)

    @property
    def _last_words(self) -> str:
        words = self._wiring.log.last_words()
        return f" Its last words: {words}" if words and self._child else ""


_COURIER: ContextVar[Courier | None] = ContextVar("toolfold_courier", default=None)


async def _for(courier: Courier | None, work: Awaitable[Any]) -> Any:
    """Do the work in the name of the client it is for."""
    _COURIER.set(courier)
    return await work


class _Patience:
    """How long an answer is waited for: anew with each sign of progress, but not for ever."""

    def __init__(self, idle: float, longest: float, is_excused: Callable[[], bool] = bool) -> None:
        self._idle, self._longest = min(idle, longest), longest
        self._is_excused = is_excused
        self._began = self._last = time.monotonic()

    def heard(self) -> None:
        self._last = time.monotonic()

    @property
    def left(self) -> float:
        until = min(self._last + self._idle, self._began + self._longest)
        return max(0.0, until - time.monotonic())

    @property
    def is_over(self) -> bool:
        if self.left <= 0 and self._is_excused():
            self.heard()  # it waits for a person, as we do
        return self.left <= 0

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began


def _what_changed(notice: str) -> str:
    kinds = {
        "ToolList": "tools",
        "ToolsList": "tools",
        "Prompt": "prompts",
        "ResourceList": "resources",
        "ResourcesList": "resources",
    }
    return next(
        (kind for start, kind in kinds.items() if notice.startswith(start) and "Changed" in notice), ""
    )


def _subscribe(session: Any, uri: str, *, wanted: bool) -> Any:
    from mcp_types import (
        EmptyResult,
        SubscribeRequest,
        SubscribeRequestParams,
        UnsubscribeRequest,
        UnsubscribeRequestParams,
    )

    if wanted:
        return session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)
    return session.send_request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), EmptyResult)


def _looked_at(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
