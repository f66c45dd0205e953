"""The gateway itself: the protocol's requests, each answered from the seat of whoever made it.

Built on the SDK's server, which speaks both eras: with a handshake and sessions, and without. Every call
takes the one dispatch line. What servers say on their own goes to the clients that may use them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolfold.errors import CallError, OutOfScope, shorten
from toolfold.gateway import asking, foreign
from toolfold.gateway.addresses import Addresses
from toolfold.gateway.answers import tool_answer, with_own_state
from toolfold.gateway.following import Following
from toolfold.gateway.headers import HeaderCheck
from toolfold.gateway.peers import Peers
from toolfold.gateway.seats import ClientSession
from toolfold.gateway.tokens import ANYBODY, Client
from toolfold.gateway.ways import Ways, capabilities, is_modern, log_words
from toolfold.model import MCP_SOURCE, Caller, Json, ToolResult
from toolfold.sources.mcp.courier import Courier
from toolfold.sources.mcp.sdk import load_sdk

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.models import InitializationOptions

    from toolfold.runtime import Runtime
    from toolfold.session import Session

log = logging.getLogger(__name__)

LOCAL = ("file", "terminal")
"""What clients have themselves, and what would lead out of the servers: granted only where it is named."""
IDLE_SECONDS = 1_800.0
MAX_SEATS = 1_000
MAX_SEATS_PER_CLIENT = 40
"""Each may have a process of every server that keeps a state."""
MOST_CALLS_EACH = 500
MOST_FOLLOWED = 1_000
MAX_CLIENT_NAME_CHARS = 256
LONGEST_ADDRESS = 4_096
LARGEST_PAGE = 500_000  # characters of JSON
TELL_SECONDS = 5.0
SETTLE_SECONDS = 0.05
"""How long the same news may come again until it is passed on, once."""
CLIENT = "toolfold.client"
"""Where a transport leaves word of who is asking."""
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


class Gateway:
    """All clients of one runtime."""

    def __init__(self, runtime: Runtime, *, everybody: Client | None = None, is_local: bool = False) -> None:
        """`everybody` is who a client is that brings no token; None where none is let in without.

        `is_local` says that only programs of this machine can reach it.
        """
        load_sdk()  # servers of the runtime may be loading it in another thread
        self._runtime = self.runtime = runtime
        self.on_list_changed: Callable[[str], None] = lambda _kind: None
        """Called with the kind of list before clients are told that it has changed."""
        self._everybody = everybody
        self._client_asks_user = is_local and runtime.config.gateway.trust_client_approval
        self._seats: dict[str, ClientSession] = {}
        self._session_keys: dict[str, set[str]] = {}
        """Session of the protocol → keys of its seats: one for each client that has used it."""
        self._addresses = Addresses(
            {name: each.settings.prefix_of(name) for name, each in runtime.mcp.servers.items()}
        )
        self._peers = Peers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: set[tuple[str, str, Any]] = set()
        """Notifications of servers that are not passed on yet."""
        self._news_lock = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._following = Following(self._seats, self._ask_of_resource)
        runtime.mcp.heard.listen(self._heard)

    def server(self) -> Server[Any]:
        """The SDK's server with our answers."""
        import mcp_types
        from mcp.server.lowlevel import NotificationOptions, Server

        changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        headers = HeaderCheck(self._runtime.registry.snapshot)

        class Announcing(Server[Any]):
            """Tells every client, by whatever way it comes, that it will hear of changed lists."""

            get_tool_input_schema = property(lambda _: headers.lookup, lambda _, __: None)

            def create_initialization_options(
                self, notification_options: NotificationOptions | None = None, *rest: Any, **named: Any
            ) -> InitializationOptions:
                return super().create_initialization_options(notification_options or changes, *rest, **named)

        server: Server[Any] = Announcing(
            "toolfold",
            version=version("toolfold"),
            instructions=self._instructions(),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            on_subscriptions_listen=self._listen,
        )
        server.add_request_handler("logging/setLevel", mcp_types.SetLevelRequestParams, self._set_level)
        return server

    def close(self) -> None:
        """Everybody leaves, and so do the servers."""
        self._session_keys.clear()
        while self._seats:
            self._seats.popitem()[1].close()

    def _instructions(self) -> str:
        return (
            "Tools of several servers. If what you need is not in the list, look for it with tool_search, "
            "read it with tool_describe and run it with tool_call."
        )

    def _seat(self, context: Any) -> ClientSession:
        """Where whoever made the request sits; a new place for a newcomer."""
        self._loop = self._loop or asyncio.get_running_loop()
        connection = context.session._connection  # the SDK has no public way from a request to it
        client = self._client(context)
        key = self._key(context, connection, client)
        seat = self._seats.get(key)
        if seat is not None and seat.client != client:
            self._leave(key)  # what it was granted has changed since
            seat = None
        if seat is None:
            seat = self._seated(key, client, self._caller(context, client))
            if connection.session_id:
                seat.protocol_session = connection.session_id
                self._session_keys.setdefault(connection.session_id, set()).add(key)
            if _lasts(context, connection):
                connection.exit_stack.callback(self._leave, key)
        if _lasts(context, connection) and connection not in seat.connections:
            seat.connections.append(connection)
        seat.used = time.monotonic()
        return seat

    def _client(self, context: Any) -> Client:
        scope = getattr(context.request, "scope", None) or {}
        found = scope.get(CLIENT, self._everybody)
        if not isinstance(found, Client):
            raise _invalid("nobody knows who is asking")
        return found

    def _requiring_user(self, context: Any) -> asking.RequireUser:
        """A check that whoever made the request may answer for the user. Over stdio the runtime makes it."""

        async def require_user() -> None:
            if context.request is None:
                return
            scope = context.request.scope
            has_token = self._client(context).name != ANYBODY
            await self._peers.require_user(scope.get("client"), scope.get("server"), has_token=has_token)

        return require_user

    def _key(self, context: Any, connection: Any, client: Client) -> str:
        """A session where there is one. Without sessions a client is known by its token and its own name."""
        if connection.session_id:
            return f"{client.id} session {connection.session_id}"
        if context.request is None:
            return "stdio"
        params = context.session.client_params
        name = params.client_info.name if params else ""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()  # it may be of any length
        return f"{client.id} named {shorten(name, 40)} {digest[:32]}"

    def _caller(self, context: Any, client: Client) -> Caller:
        """The client as approval knows it. Over stdio, where there are no tokens, it names itself."""
        params = context.session.client_params
        own_name = params.client_info.name if context.request is None and params else client.name
        return Caller(own_name[:MAX_CLIENT_NAME_CHARS], asks_user=self._client_asks_user)

    def _seated(self, key: str, client: Client, caller: Caller) -> ClientSession:
        self._make_room(client)
        session = open_session(self._runtime, self._granted(client), client=key, caller=caller)
        seat = ClientSession(key, client, self._runtime, session, self._addresses)
        seat.display_name = caller.name or client.name
        self._seats[key] = seat
        return seat

    def _granted(self, client: Client) -> tuple[str, ...] | None:
        """What its token grants of what there is: a toolset that is gone grants nothing, and is no error."""
        if client.toolsets is None:
            return None
        toolsets = self._runtime.toolsets()
        gone = [name for name in client.toolsets if not toolsets.knows(name)]
        if gone:
            log.warning("the token of %r grants what is not there: %s", client.name, ", ".join(gone))
        return tuple(name for name in client.toolsets if name not in gone)

    def _make_room(self, client: Client) -> None:
        """Close or relieve the least recently used idle seats where another would be too many.

        A client with many seats gives up its own, nobody else's. A seat with a connection stays, since its
        session does, but the servers that only it uses are ended.
        """
        self._close_idle_seats()
        own = [seat for seat in self._seats.values() if seat.client == client]
        surplus = len(own) - MAX_SEATS_PER_CLIENT + 1
        idle = sorted((seat for seat in own if not seat.is_busy), key=lambda seat: seat.used)
        for seat in idle[: max(0, surplus)]:
            if seat.connections:
                seat.release_servers()
            else:
                self._leave(seat.key)
        if surplus > len(idle):
            raise _invalid(f"{MAX_SEATS_PER_CLIENT} sessions of this client are busy; wait for some of them")

    def _close_idle_seats(self) -> None:
        """Close seats without a connection that were not used for long, or that are too many in all."""
        idle = (seat for seat in self._seats.values() if not seat.connections and not seat.is_busy)
        now = time.monotonic()
        for seat in sorted(idle, key=lambda seat: seat.used):
            if now - seat.used > IDLE_SECONDS or len(self._seats) >= MAX_SEATS:
                self._leave(seat.key)

    def seats(self) -> list[ClientSession]:
        """The clients that are connected now."""
        return list(self._seats.values())

    def is_busy(self, session: str) -> bool:
        """Whether a session of the protocol has a call in progress."""
        seats = map(self._seats.get, self._session_keys.get(session, ()))
        return any(seat is not None and seat.is_busy for seat in seats)

    def _leave(self, key: str) -> None:
        seat = self._seats.pop(key, None)
        if seat is not None:
            self._forget_session_key(seat)
            self._following.leave(seat)
            seat.close()

    def _forget_session_key(self, seat: ClientSession) -> None:
        keys = self._session_keys.get(seat.protocol_session, set())
        keys.discard(seat.key)
        if not keys:
            self._session_keys.pop(seat.protocol_session, None)

    async def _list_tools(self, context: Any, _params: Any) -> Any:
        import mcp_types

        return mcp_types.ListToolsResult(tools=await self._seat(context).tools())

    async def _call_tool(self, context: Any, params: Any) -> Any:
        from mcp import MCPError

        seat = self._seat(context)

        async def call(approver: Any, courier: Courier) -> ToolResult:
            return await seat.call(params.name, params.arguments, approver=approver, courier=courier)

        answer = await self._interactive(seat, context, params, params.name, params.arguments, call)
        if not isinstance(answer, ToolResult):
            return answer
        if isinstance(answer.raw, MCPError):  # an answer to the request, and not to the call of a tool
            raise answer.raw
        return await self._as_known(tool_answer(answer), self._server_of(answer.name))

    def _server_of(self, name: str) -> str:
        """The server of a tool; empty where it has none."""
        tool = self._runtime.registry.snapshot().get(name)
        return tool.source.name if tool is not None and tool.source.kind == MCP_SOURCE else ""

    async def _as_known(self, answer: Any, server: str) -> Any:
        """A server's answer, with addresses and questions under its name.

        Its words may take a while to be looked through, in which others are to be served.
        """
        if not server or (hasattr(answer, "content") and not foreign.has_addresses(answer)):
            return answer
        if hasattr(answer, "input_requests"):
            return foreign.asked(answer, server)
        for kind, known in (
            ("content", foreign.result),
            ("contents", foreign.read),
            ("messages", foreign.prompt),
        ):
            if hasattr(answer, kind):
                address = functools.partial(self._addresses.resource, server)
                return await asyncio.to_thread(known, answer, address)
        return answer

    async def _read_resource(self, context: Any, params: Any) -> Any:
        seat = self._seat(context)
        uri = str(params.uri)

        async def read(approver: Any, courier: Courier) -> ToolResult:
            return await seat.read(uri, approver=approver, surface=courier)

        try:
            answer = await self._interactive(seat, context, params, uri, None, read)
        except OutOfScope:
            raise _no_such(uri) from None
        return await self._as_known(_raw(answer, uri), seat.resource_owner(uri)[0])

    async def _get_prompt(self, context: Any, params: Any) -> Any:
        seat = self._seat(context)
        args: Json = dict(params.arguments or {})

        async def get(approver: Any, courier: Courier) -> ToolResult:
            return await seat.prompt(params.name, args, approver=approver, surface=courier)

        try:
            answer = await self._interactive(seat, context, params, params.name, args, get)
        except OutOfScope as error:
            raise _invalid(str(error)) from None
        return await self._as_known(_raw(answer, params.name), seat.prompt_owner(params.name)[0])

    async def _list_resources(self, context: Any, params: Any) -> Any:
        import mcp_types

        found = await self._gathered(context, lambda seat: seat.resources("resources/list"))
        listed = await asyncio.to_thread(foreign.listed, found, "uri", self._addresses.resource)
        items, following = _page(listed, params)
        return mcp_types.ListResourcesResult(resources=items, next_cursor=following)

    async def _list_templates(self, context: Any, params: Any) -> Any:
        import mcp_types

        found = await self._gathered(context, lambda seat: seat.resources("resources/templates/list"))
        listed = await asyncio.to_thread(foreign.listed, found, "uri_template", self._addresses.resource)
        items, following = _page(listed, params)
        return mcp_types.ListResourceTemplatesResult(resource_templates=items, next_cursor=following)

    async def _list_prompts(self, context: Any, params: Any) -> Any:
        import mcp_types

        found = await self._gathered(context, lambda seat: seat.prompts())
        listed = await asyncio.to_thread(foreign.listed, found, "name", self._addresses.prompt)
        items, following = _page(listed, params)
        return mcp_types.ListPromptsResult(prompts=items, next_cursor=following)

    async def _gathered(self, context: Any, ask: Callable[[ClientSession], Awaitable[Any]]) -> Any:
        seat = self._seat(context)
        with self._place(seat):
            return await ask(seat)

    async def _subscribe(self, context: Any, params: Any) -> Any:
        import mcp_types

        seat, uri = self._seat(context), str(params.uri)
        if len(seat.followed) >= MOST_FOLLOWED and uri not in seat.followed:
            raise _invalid(f"nobody may follow more than {MOST_FOLLOWED:,} resources at once")
        if len(uri) > LONGEST_ADDRESS:
            raise _invalid("the address is too long to be followed")
        with _no_such_instead(uri):
            await self._following.begin(seat, uri)
        return mcp_types.EmptyResult()

    async def _unsubscribe(self, context: Any, params: Any) -> Any:
        import mcp_types

        uri = str(params.uri)
        with _no_such_instead(uri):
            await self._following.end(self._seat(context), uri, wholly=True)
        return mcp_types.EmptyResult()

    async def _listen(self, context: Any, params: Any) -> Any:
        """News of the servers that this client may use, and of resources that it may read."""
        seat = self._seat(context)
        wanted = params.notifications
        asked = [uri for uri in wanted.resource_subscriptions or () if len(uri) <= LONGEST_ADDRESS]
        readable = _within_bounds(seat, seat.readable(asked[:MOST_FOLLOWED]))
        wanted = wanted.model_copy(update={"resource_subscriptions": readable or None})
        async with self._following.meanwhile(seat, readable):
            return await seat.listen(context, params.model_copy(update={"notifications": wanted}))

    async def _complete(self, context: Any, params: Any) -> Any:
        seat = self._seat(context)
        ref = params.ref
        if ref.type == "ref/prompt":
            with _no_such_instead(ref.name):
                server, own = seat.prompt_owner(ref.name)
            ref = ref.model_copy(update={"name": own})
        else:
            with _no_such_instead(ref.uri):
                server, own = seat.resource_owner(ref.uri)
            ref = ref.model_copy(update={"uri": own})
        argument = {"name": params.argument.name, "value": params.argument.value}
        return await self._asked(seat, server, "completion/complete", ref=ref, argument=argument)

    async def _ask_of_resource(self, seat: ClientSession, server: str, method: str, uri: str) -> Any:
        return await self._asked(seat, server, method, uri=uri)

    async def _asked(self, seat: ClientSession, server: str, method: str, **params: Any) -> Any:
        try:
            with self._place(seat):
                return await seat.ask(server, method, **params)
        except CallError as error:
            raise _invalid(str(error)) from None

    async def _set_level(self, context: Any, params: Any) -> Any:
        import mcp_types

        self._seat(context).level = params.level
        return mcp_types.EmptyResult()

    async def _interactive(
        self,
        seat: ClientSession,
        context: Any,
        params: Any,
        name: str,
        args: Json | None,
        run: Callable[..., Any],
    ) -> Any:
        """Run what may have to ask somebody first, in the way this client can be asked."""
        with self._place(seat):
            if is_modern(context):
                return await self._in_rounds(seat, context, params, name, args, run)
            ways = Ways.in_the_middle(context, self._requiring_user(context))
            return await run(ways.approver, self._courier(seat, context, params, ways))

    @contextlib.contextmanager
    def _place(self, seat: ClientSession) -> Iterator[None]:
        """Count a call among those that this client may have in progress."""
        client = seat.client.id
        if self._under_way[client] >= MOST_CALLS_EACH:
            raise _invalid(f"there are {MOST_CALLS_EACH} calls under way already; wait for some of them")
        self._under_way[client] += 1
        seat.calls += 1
        try:
            yield
        finally:
            seat.calls -= 1
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]

    async def _in_rounds(
        self,
        seat: ClientSession,
        context: Any,
        params: Any,
        name: str,
        args: Json | None,
        run: Callable[..., Any],
    ) -> Any:
        state = params.request_state or ""
        if state.startswith(asking.OWN):
            call = seat.waiting.take(state, name, args)
            if call is None:
                raise _invalid("this state is unknown, was used, or belongs to another call")
            call.answer(params.input_responses, self._requiring_user(context))
        elif state and not state.startswith(asking.SERVERS):
            raise _invalid("this state was not given by this server")
        else:
            call = asking.Waiting(name, args, self._requiring_user(context))
            ways = Ways.in_rounds(context, call)
            call.start(run(ways.approver, self._courier(seat, context, params, ways)))
        is_over, outcome = await call.outcome()
        return outcome if is_over else asking.to_be_asked(outcome, seat.waiting.keep(call))

    def _courier(self, seat: ClientSession, context: Any, params: Any, ways: Ways) -> Courier:
        state = (getattr(params, "request_state", None) or "").removeprefix(asking.SERVERS)
        session = context.session

        async def progress(done: float, total: float | None, message: str | None) -> None:
            with contextlib.suppress(Exception):  # the client may be gone
                await session.report_progress(done, total, message)

        async def tell(server: str, said: Any) -> None:
            if _LEVELS.index(said.level) >= _LEVELS.index(seat.level):
                with contextlib.suppress(Exception):
                    await log_words(session, said, server, context.request_id)

        return Courier(
            client=seat.key,
            progress=progress,
            log=tell,
            elicit=ways.elicit,
            sample=ways.sample,
            capabilities=capabilities(context),
            resolves=is_modern(context),
            responses=getattr(params, "input_responses", None),
            state=state or None,
        )

    def _heard(self, server: str, kind: str, what: Any) -> None:
        """Take a notification of a server, in its thread. Those within a moment are passed on together."""
        if self._loop is None or self._loop.is_closed():
            return
        with self._news_lock:
            is_first = not self._news
            self._news.add((server, kind, what))
        if is_first:
            with contextlib.suppress(RuntimeError):  # it is closing
                asyncio.run_coroutine_threadsafe(self._spread(), self._loop)

    async def _spread(self) -> None:
        """Tell every client what concerns it. One that does not listen keeps it from no other."""
        await asyncio.sleep(SETTLE_SECONDS)
        with self._news_lock:
            news, self._news = self._news, set()
        seats = [seat for seat in self._seats.values() if seat.is_listening]
        await asyncio.gather(*(self._tell_news(seat, news) for seat in seats), return_exceptions=True)

    async def _tell_news(self, seat: ClientSession, news: Collection[tuple[str, str, Any]]) -> None:
        for server, kind, what in news:
            if kind == "update" and seat.may_use(server):
                await self._tell(seat, kind, self._addresses.resource(server, what))
        changes: dict[str, set[str]] = {}
        for server, kind, _ in news:
            changes.setdefault(kind, set()).add(server)
        for kind in await seat.changed_lists(changes):
            self.on_list_changed(kind)
            await self._tell(seat, kind, "")

    async def tell_changed(self, kind: str) -> None:
        """Tell all clients that a list has changed."""
        seats = [seat for seat in self._seats.values() if seat.is_listening]
        await asyncio.gather(*(self._tell(seat, kind, "") for seat in seats))

    async def _tell(self, seat: ClientSession, kind: str, uri: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_SECONDS):
                await seat.publish(kind, uri)
                await self._send(seat, kind, uri)

    async def _send(self, seat: ClientSession, kind: str, uri: str) -> None:
        if kind == "update" and uri not in seat.followed:
            return
        for connection in seat.connections:
            ways = {
                "tools": connection.send_tool_list_changed,
                "prompts": connection.send_prompt_list_changed,
                "resources": connection.send_resource_list_changed,
                "update": lambda to=connection: to.send_resource_updated(uri),
            }
            try:
                await ways[kind]()
            except TimeoutError:
                raise
            except Exception:  # noqa: S112 - the client may be gone
                continue


def open_session(
    runtime: Runtime, toolsets: tuple[str, ...] | None, *, client: str = "", caller: Caller | None = None
) -> Session:
    """Open the session of a client that was granted these toolsets; None for all but the local ones."""
    disabled = LOCAL if toolsets is None else ()
    return runtime.session(toolsets, disabled_toolsets=disabled, client=client, caller=caller)


def _within_bounds(seat: ClientSession, uris: Collection[str]) -> list[str]:
    """What the client follows already, and as many others as it may follow beside."""
    room = itertools.islice(
        (uri for uri in uris if uri not in seat.followed), max(0, MOST_FOLLOWED - len(seat.followed))
    )
    others = set(room)
    return [uri for uri in uris if uri in seat.followed or uri in others]


def _lasts(context: Any, connection: Any) -> bool:
    """Whether the client leaves when the connection ends. In the newest revision each request has its own."""
    return connection.has_standalone_channel and not is_modern(context)


def _page(items: list[Any], params: Any) -> tuple[list[Any], str | None]:
    """As much of a long list as every client takes at once, and where it goes on."""
    cursor = getattr(params, "cursor", None) or "0"
    start = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 10 else len(items)
    left, end = LARGEST_PAGE, start
    while end < len(items) and (left := left - len(items[end].model_dump_json())) > 0:
        end += 1
    end = max(end, start + 1)  # one that is larger by itself
    return items[start:end], str(end) if end < len(items) else None


def _raw(answer: Any, wanted: str) -> Any:
    """The server's own answer to what is no tool, or an error of the protocol."""
    import mcp_types

    if not isinstance(answer, ToolResult):
        return answer
    if answer.raw is None or not answer.ok:
        raise _no_such(wanted, answer.error or "") if answer.error else _invalid("it was changed on its way")
    if isinstance(answer.raw, mcp_types.InputRequiredResult):
        return with_own_state(answer.raw)
    return answer.raw


@contextlib.contextmanager
def _no_such_instead(wanted: str) -> Iterator[None]:
    """What is out of scope is not there, for who asks."""
    try:
        yield
    except OutOfScope:
        raise _no_such(wanted) from None


def _no_such(wanted: str, problem: str = "") -> Exception:
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, problem or f"there is no {wanted!r} here", {"uri": wanted})


def _invalid(problem: str) -> Exception:
    from mcp import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, problem)
