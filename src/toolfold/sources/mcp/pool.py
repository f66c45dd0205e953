"""All MCP servers of a runtime: which there are, how they fare, and their tools in the registry.

They live in a loop and a thread of their own, so that none of them can hold up a session and no session's
end can end them. Tools that were listed before are there at once; a server is started when it is needed.
What a server lists passes through trust before it becomes a tool, and again before it is called.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolfold.config import Config
from toolfold.config.servers import McpServer
from toolfold.errors import CallError, ConfigError, RegistryError, shorten
from toolfold.json_limits import is_large
from toolfold.model import MCP_PREFIX, CallContext, Content, Json, Tool
from toolfold.redaction import Redaction
from toolfold.registry import Registry
from toolfold.sources.mcp.child import ServerLog
from toolfold.sources.mcp.connection import Wiring
from toolfold.sources.mcp.content import content_of
from toolfold.sources.mcp.courier import Courier, Relay, Signal
from toolfold.sources.mcp.faults import NotStarted, Rejected, ServerFailed, Withheld
from toolfold.sources.mcp.isolation import is_per_client
from toolfold.sources.mcp.item_lists import LIST_TIMEOUT_S, ItemLists, all_pages
from toolfold.sources.mcp.kept import ListingCache
from toolfold.sources.mcp.lock import lock_file
from toolfold.sources.mcp.naming import Names
from toolfold.sources.mcp.offers import Listing, Offer
from toolfold.sources.mcp.people import People
from toolfold.sources.mcp.references import child_environment, resolved, secret_values
from toolfold.sources.mcp.scan import neutralised, scan_text
from toolfold.sources.mcp.supervisor import State, Supervised
from toolfold.sources.mcp.tools import extras_of, tools_of
from toolfold.sources.mcp.trust import Held, Trust
from toolfold.visible import visible

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_SECONDS = 10.0
MOST_WARNINGS = 5
"""How many are told of one listing; people look at the rest with `toolfold mcp review`."""
PIECE = 150_000
"""Characters that are looked through as one text."""
SEAM = 2_000
_UNREAD = "\n⟦What follows is data that was not looked through.⟧\n"
_UNREAD_END = "\n⟦Here ends what was not looked through.⟧\n"
STALE_SECONDS = 24 * 3600.0
"""After how long a kept listing is asked for anew although nobody has called the server."""
LONG_ANSWER = 8_000
"""Characters of an answer that are looked through at once; more of them in a thread."""
MAX_BLOCKS_IN_LOOP = 20
"""Blocks of an answer that are read at once; more of them in a thread."""


class McpServers:
    """Every server of the configuration that is switched on."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        *,
        trust: Trust | None = None,
        people: People | None = None,
        behind_gateway: bool = False,
    ) -> None:
        """Behind a gateway tools have no `mcp_` before their names, since clients put their own there, and
        servers may ask the clients what they would ask a person."""
        self._config, self._registry, self._relays = config, registry, behind_gateway
        self._settings = {
            name: each for name, each in config.mcp.servers.items() if config.mcp.enabled and each.enabled
        }
        self.trust = trust or Trust.of(config)
        self._people = people or People()
        prefixes = {name: each.prefix_of(name) for name, each in self._settings.items()}
        taken = registry.snapshot() if behind_gateway else ()
        self._names = Names(self._settings, prefixes=prefixes if behind_gateway else None, taken=taken)
        self._kept = ListingCache(config.paths.cache_dir / "mcp")
        self._loop = _Loop()
        self._servers = {name: self._supervised(name, each) for name, each in self._settings.items()}
        self._own: dict[tuple[str, str], Supervised] = {}
        """The servers that only one client uses, by client and name."""
        self._leaving: set[concurrent.futures.Future[None]] = set()
        """Those of clients that are gone, until they have ended."""
        self._shared: dict[str, tuple[Listing | None, bool]] = {}
        """Whether a server is one for all clients, by what it lists: there may be thousands of names."""
        self.heard = Signal()
        """Tells what servers say outside of any call: `(server, kind, what)`."""
        self._item_lists = ItemLists(self._kept, self._settings, self._ask_shared, self._tell_list_changed)
        self._held: dict[str, tuple[Held, ...]] = {}
        self._starting: dict[str, concurrent.futures.Future[Any]] = {}
        self._closed = False

    @property
    def servers(self) -> Mapping[str, Supervised]:
        return self._servers

    def open(self) -> None:
        """Bring the tools that are known, and start the servers that are not. Waits for none of them."""
        for name, settings in self._settings.items():
            found = self._kept.read(name, settings)
            if found is not None:
                self._servers[name].remember(found[0])
                self._publish(name, found[0])
            if found is None or found[1] > STALE_SECONDS:
                start = self._start(name)
                if found is None and not self._kept.failed_before(name, settings):
                    self._starting[name] = start

    def settle(self, seconds: float | None = None) -> None:
        """Wait until new servers have listed their tools or failed to, but no longer than this.

        One that takes longer is not waited for again until it has listed its tools once.
        """
        wait = self._config.mcp.listing_wait(behind_gateway=self._relays) if seconds is None else seconds
        concurrent.futures.wait(self._starting.values(), timeout=wait)
        for name, start in self._starting.items():
            if not start.done():
                self._kept.note_failure(name, self._settings[name])
        self._starting = {}

    def states(self) -> list[State]:
        """How each server fares."""
        return [
            replace(each.state, held=len(self._held.get(name, ()))) for name, each in self._servers.items()
        ]

    def listing_files(self) -> Iterator[Path]:
        """Yield the files that decide what is listed before any server is started."""
        for name, settings in self._settings.items():
            yield self._kept.file(name, settings)
            yield self._kept.item_lists_file(name, settings)
            yield lock_file(self._config, name)

    def listing(self, server: str) -> Listing | None:
        """What a server offers, as far as anybody knows."""
        return self._servers[server].listing

    def offer(self, server: str, tool: str) -> Offer | None:
        """One of a server's tools, as the server describes it."""
        return _offer_in(self._servers[server].listing, tool) if server in self._servers else None

    def held(self, server: str) -> tuple[Held, ...]:
        """What waits for a person's word."""
        return self._held.get(server, ())

    def awaiting(self) -> Mapping[str, frozenset[str]]:
        """Toolset → the names that its held tools would have."""
        held = [(server, each) for server, each in tuple(self._held.items()) if each]
        return {
            MCP_PREFIX + server: frozenset(self._names.name(server, one.offer.name)[0] for one in each)
            for server, each in held
        }

    async def call(
        self,
        server: str,
        tool: str,
        args: Json,
        context: CallContext,
        require: Callable[[Listing | None], None] | None = None,
    ) -> Any:
        """Call a tool of a server and give its answer as the protocol has it.

        `require` is asked before the call is sent, with what the server says then, and may raise.
        """
        supervised = self._for(server, context.client)
        return await self._there(supervised.call(tool, args, _courier(context), require))

    async def ask(
        self, server: str, method: str, *, context: CallContext | None = None, **params: Any
    ) -> Any:
        """Ask a server for its resources or prompts."""
        supervised = self._for(server, context.client if context else "")
        return await self._there(supervised.ask(method, params, _courier(context) if context else None))

    async def items(self, server: str, method: str, *, client: str = "", start: bool = True) -> list[Any]:
        """Return the resources, templates or prompts of a server, as far as they are known.

        A client's own process is asked if it runs. Otherwise what was listed before is given; only what was
        never listed is asked for, unless `start` is False.
        """
        own = self._own.get((client, server))
        if own is not None and own.word == "up":
            return await self._there(self._own_items(own, method))
        if start:
            wait = self._config.mcp.listing_wait(behind_gateway=self._relays)
            return await self._there(self._item_lists.items(server, method, wait))
        return self._item_lists.known_items(server, method)

    async def _own_items(self, own: Supervised, method: str) -> list[Any]:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                return await all_pages(lambda params: own.ask(method, params), method)
        except (ServerFailed, TimeoutError):
            return []

    async def _ask_shared(self, server: str, method: str, params: Json) -> Any:
        return await self._servers[server].ask(method, params)

    def _tell_list_changed(self, server: str, kind: str) -> None:
        self.heard.tell(server, kind, None)

    def is_shared(self, server: str) -> bool:
        """Whether all clients use one and the same."""
        listing = self._servers[server].listing
        if server not in self._shared or self._shared[server][0] is not listing:
            is_shared = not is_per_client(server, self._servers[server].settings, listing)
            self._shared[server] = listing, is_shared
        return self._shared[server][1]

    def leave(self, client: str) -> None:
        """A client is gone: end the servers that only it used. Does not wait for their end."""
        for key in [key for key in self._own if key[0] == client]:
            ending = self._loop.submit(self._own.pop(key).close())
            self._leaving.add(ending)
            ending.add_done_callback(self._leaving.discard)

    def _for(self, server: str, client: str) -> Supervised:
        """The server as this client sees it: everybody's, or its own."""
        if not client or self.is_shared(server):
            return self._servers[server]
        if (client, server) not in self._own:
            shared = self._servers[server]
            own = Supervised(server, shared.settings, wiring=self._wiring, publish=_nowhere)
            own.is_legacy = shared.is_legacy
            self._own[client, server] = own
        return self._own[client, server]

    def listed_now(self, server: str, seconds: float | None = None) -> Listing:
        """Ask a server for its tools, whatever is known. Raises ServerFailed."""
        limit = seconds or 2 * self._settings[server].connect_timeout_seconds
        return self._wait(self._servers[server].refresh(), server, limit)

    def restart(self, server: str) -> None:
        """Begin anew with a server. Raises ServerFailed."""
        limit = 2 * self._settings[server].connect_timeout_seconds
        self._wait(self._servers[server].restart(), server, limit)

    def reviewed(self, server: str) -> None:
        """Somebody has looked at what was held: bring what was accepted."""
        if (listing := self._servers[server].listing) is not None:
            self._publish(server, listing)

    def close(self) -> None:
        """End every server. Takes a bounded time."""
        if self._closed:
            return
        self._closed = True
        if self._loop.started:
            concurrent.futures.wait(tuple(self._leaving), timeout=CLOSE_SECONDS)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._loop.submit(self._close()).result(CLOSE_SECONDS + 5)
            self._loop.close()

    async def _close(self) -> None:
        ending = [
            asyncio.create_task(each.close()) for each in (*self._servers.values(), *self._own.values())
        ]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_SECONDS)

    def _supervised(self, name: str, settings: McpServer) -> Supervised:
        return Supervised(name, settings, wiring=self._wiring, publish=self._listed)

    def _start(self, name: str) -> concurrent.futures.Future[Any]:
        future = self._loop.submit(self._servers[name].connection())
        future.add_done_callback(lambda done: self._started(name, done))
        return future

    def _started(self, name: str, start: concurrent.futures.Future[Any]) -> None:
        error = None if start.cancelled() else start.exception()
        if isinstance(error, ServerFailed):
            self._kept.note_failure(name, self._settings[name])
        elif error is not None:
            log.error("starting MCP server %r failed", name, exc_info=error)

    async def _wiring(self, server: Supervised) -> Wiring:
        settings, known = server.settings, self._config.environment
        look_up = asyncio.get_running_loop().run_in_executor  # a keyring may wait for a person
        environment = await look_up(None, child_environment, settings, known)
        found = await look_up(None, resolved, settings, known)
        hidden = await look_up(None, secret_values, settings, known)
        file = self._config.paths.state_dir / "mcp" / "logs" / f"{server.name}.log"
        redact = Redaction((*self._config.secret_values(), *hidden))
        voice = self._people.voice(server.name, settings)
        relay = Relay(server, voice) if self._relays else None
        return Wiring(
            settings=found,
            environment=environment,
            log=ServerLog(file, redact),
            auth=self._auth(server),
            elicit=relay.elicit if relay else voice.elicitation,
            sample=relay.sample if relay else voice.sampling,
            is_asking=lambda: voice.waiting or bool(relay and relay.is_asking),
            on_change=lambda what: self._changed(server, what),
            on_update=lambda uri: self.heard.tell(server.name, "update", uri),
            on_log=relay.log if relay else None,
            legacy=server.is_legacy or settings.protocol == "legacy",
        )

    def _changed(self, server: Supervised, what: str) -> None:
        server.changed(what)
        if what == "tools":
            return
        is_shared = server is self._servers[server.name]
        if not (is_shared and self._item_lists.refresh(server.name, what)):
            self.heard.tell(server.name, what, None)

    def _auth(self, server: Supervised) -> Any:
        """A person's login at the server, if there is one. Nobody is asked to log in while a call waits."""
        settings, config = server.settings, self._config
        if settings.way == "stdio" or "authorization" in map(str.lower, settings.headers):
            return None
        from toolfold.sources.mcp.oauth import auth

        folder = config.paths.state_dir / "oauth"
        return auth(server.name, settings, folder, interactive=False, environment=config.environment)

    def _listed(self, name: str, listing: Listing) -> None:
        """A server said what it offers."""
        self._kept.write(name, self._settings[name], listing)
        self._publish(name, listing)
        self._loop.call(self._item_lists.refresh, name)

    def _publish(self, name: str, listing: Listing) -> None:
        """Make tools of what may be used. A lock that cannot be read means that nothing may be."""
        try:
            sifted = self.trust.sift(name, self._settings[name].trust, listing.offers)
        except ConfigError as error:
            log.error("MCP server %r is not used: %s", name, error)
            self._registry.replace_toolset(MCP_PREFIX + name, ())
            return
        self._held[name] = sifted.held
        if sifted.updated:
            names = ", ".join(
                repr(shorten(visible(each.name), 80)) for each in sifted.updated[:MOST_WARNINGS]
            )
            log.info(
                "MCP server %r: harmless changes of %d tools recorded: %s", name, len(sifted.updated), names
            )
        warnings = (*listing.problems, *sifted.warnings)
        for warning in warnings[:MOST_WARNINGS]:
            log.warning("MCP server %r: %s", name, warning)
        if len(warnings) > MOST_WARNINGS:
            log.warning("MCP server %r: and %d more of the kind", name, len(warnings) - MOST_WARNINGS)
        if not self._closed:
            self._register(name, self._tools(name, listing, sifted.accepted))
            self.heard.tell(name, "tools", None)

    def _register(self, name: str, tools: list[Tool]) -> None:
        """A server whose tools the registry does not take brings none; it is nobody else's fault."""
        try:
            self._registry.replace_toolset(MCP_PREFIX + name, tools)
        except RegistryError as error:
            log.error("MCP server %r is not used: %s", name, error)
            self._registry.replace_toolset(MCP_PREFIX + name, ())

    def _tools(self, name: str, listing: Listing, accepted: Iterable[Offer]) -> list[Tool]:
        settings = self._settings[name]

        async def call(offer: Offer, args: Json, context: CallContext) -> Content:
            require = partial(self._require_allowed, name, offer)
            try:
                answer = await self.call(name, offer.name, args, context, require)
            except Rejected as error:
                if _courier(context) is None:
                    raise
                return Content(value=str(error), is_error=True, raw=error.original)
            if hasattr(answer, "input_requests"):
                return Content(value="The server asks for more before it goes on.", raw=answer)
            if _is_long(answer):  # looking through it takes a while, in which others are to be served
                return await asyncio.to_thread(content_of, answer, name, mark=mark)
            return content_of(answer, name, mark=mark)

        async def ask(method: str, params: Json, context: CallContext) -> Any:
            return await self.ask(name, method, context=context, **params)

        tools = tools_of(name, settings, accepted, self._names, call)
        return [*tools, *extras_of(name, settings, listing, self._names, ask, mark=mark)]

    def _require_allowed(self, server: str, offer: Offer, listing: Listing | None) -> None:
        """Once more at the moment of the call: a server that was just started may offer another tool than
        it did when the list was kept."""
        now = _offer_in(listing, offer.name) or offer
        policy = self._settings[server].trust
        for each in (offer, now) if now is not offer else (offer,):
            if held := self.trust.allows(server, policy, each):
                advice = "A person can look at it with `toolfold mcp review`."
                raise Withheld(server, f"has a tool that waits for review: {held}.", advice=advice)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work in the servers' own loop, from whatever loop this is."""
        if self._closed:
            work.close()
            raise CallError("The runtime is closed, and its MCP servers with it.")
        return await asyncio.wrap_future(self._loop.submit(work))

    def _wait(self, work: Coroutine[Any, Any, T], server: str, seconds: float) -> T:
        future = self._loop.submit(work)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise NotStarted(server, f"did not answer within {seconds:g} s.") from None


def _offer_in(listing: Listing | None, tool: str) -> Offer | None:
    return next((each for each in listing.offers if each.name == tool), None) if listing else None


class _Loop:
    """A loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the loop, which runs already."""
        with contextlib.suppress(RuntimeError):  # it is closing
            self._running().call_soon_threadsafe(function, *args)

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                # The SDK tells its own log of every odd message; the servers' logs have them already.
                logging.getLogger("mcp").addHandler(logging.NullHandler())
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, name="toolfold-mcp", daemon=True)
                self._thread.start()
            return self._loop

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101 - set before the thread is started
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=2.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def _is_long(answer: Any) -> bool:
    blocks = getattr(answer, "content", None) or ()
    words = sum(len(getattr(block, "text", None) or "") for block in blocks)
    if len(blocks) > MAX_BLOCKS_IN_LOOP or words > LONG_ANSWER:
        return True
    return is_large(getattr(answer, "structured_content", None), max_items=200, max_chars=LONG_ANSWER)


def mark(text: str) -> str:
    """A server's words, with what addresses the model told apart.

    A model is shown the beginning and the end of what is very long: those are looked through.
    """
    if len(text) <= PIECE:
        return _marked(text)
    if len(text) <= 2 * PIECE:
        cut = _cut(text)
        return _marked(text[:cut]) + mark(text[cut:])
    unread = text[PIECE:-PIECE].replace("⟦", "[").replace("⟧", "]")
    return _marked(text[:PIECE]) + _UNREAD + unread + _UNREAD_END + _marked(text[-PIECE:])


def _marked(text: str) -> str:
    findings = scan_text(text)
    return neutralised(text, findings) if findings else text


def _cut(text: str) -> int:
    """Where to part a text: at no place where somebody is being addressed, who would then go unnoticed."""
    places = range(PIECE, PIECE - 4 * SEAM, -SEAM)
    return next((at for at in places if not scan_text(text[at - SEAM // 2 : at + SEAM // 2])), PIECE)


def _courier(context: CallContext) -> Courier | None:
    return context.surface if isinstance(context.surface, Courier) else None


def _nowhere(_server: str, _listing: Listing) -> None:
    """What a client's own server lists is what the shared one listed, or it is not offered."""
