"""The gateway for many clients: Streamable HTTP, with its door.

The door looks at every request before the protocol does: where it claims to come from, where it meant to
go, and whose token it brings. On loopback a client may come without a token as long as none was made, or
where that is allowed; beyond it, nobody may. What a client brought to the door goes no further: no server
behind ever sees it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolfold.errors import ConfigError
from toolfold.gateway.bodies import (
    MAX_REQUEST_BYTES,
    ClientGone,
    RequestBodies,
    RequestRefused,
    replay,
    require_readable,
)
from toolfold.gateway.http_sessions import Scope, Send, limited_manager
from toolfold.gateway.server import CLIENT, Gateway
from toolfold.gateway.tokens import ANYBODY, Client, Tokens
from toolfold.sources.mcp.sdk import load_sdk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import uvicorn
    from starlette.applications import Starlette

    from toolfold.runtime import Runtime

App = Callable[[Scope, Any, Send], Awaitable[None]]
_DECIDING = frozenset({"host", "origin", "authorization", "mcp-session-id"})
_NEEDED = "A token is needed: `toolfold token add NAME` makes one."
_UNKNOWN = "This token lets nobody in: it is mistyped or was revoked. `toolfold token add NAME` makes one."
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Who is let in."""

    tokens: Tokens
    everybody: Client | None
    """Who somebody without a token is; None where nobody is ever let in without."""
    allow_anonymous: bool = False
    """Whether somebody without a token is let in although tokens exist."""
    hosts: frozenset[str] = frozenset()
    """Names of this machine beyond loopback, as they may stand in `Host`, without a port."""
    origins: frozenset[str] = frozenset()

    def refusal(self, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        """Why a request is turned away before anybody looks who made it."""
        if _host(headers.get("host", "")) not in _LOOPBACK | self.hosts:
            return 421, "This gateway does not go by that name. Add it to gateway.hosts if it should."
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin):
            return (
                403,
                "Requests from that web page are not taken. Add it to gateway.origins if they should be.",
            )
        return None

    @property
    def requires_token(self) -> bool:
        """Whether every client needs a token now. A client could otherwise omit one that grants little."""
        return self.everybody is None or (not self.allow_anonymous and self.tokens.are_in_use())

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine are let in: it listens on loopback, under no other name."""
        return self.everybody is not None and not self.hosts

    def who(self, headers: MutableMapping[str, str]) -> Client | None:
        """Who is asking; None for somebody who is not let in. A token that is wrong is worse than none."""
        given = headers.get("authorization")
        if given is None:
            return None if self.requires_token else self.everybody
        scheme, _, token = given.partition(" ")
        return self.tokens.find(token.strip()) if scheme.lower() == "bearer" else None

    def _is_ours(self, origin: str) -> bool:
        if origin in self.origins:
            return True
        scheme, _, rest = origin.partition("://")
        return scheme in ("http", "https") and _host(rest) in _LOOPBACK


def _host(value: str) -> str:
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""


def guarded(app: App, door: Door) -> App:
    """The app behind the door."""
    bodies = RequestBodies()

    async def enter(scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is spoken here
        try:
            headers = _headers(scope)
            client = _admit(door, headers)
            require_readable(scope["method"], headers)
            if scope["method"] == "POST":
                receive = replay(await bodies.read(client.id, receive), receive)
        except RequestRefused as error:
            await _refuse(send, error.status, error.problem)
            return
        except ClientGone:
            return
        await app(_admitted(scope, client), receive, _while_known(door, headers, send))

    return enter


def _admit(door: Door, headers: dict[str, str]) -> Client:
    """Return who made the request. Raises RequestRefused."""
    if refusal := door.refusal(headers):
        raise RequestRefused(*refusal)
    client = door.who(headers)
    if client is None:
        raise RequestRefused(401, _UNKNOWN if "authorization" in headers else _NEEDED)
    return client


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name.

    Raises RequestRefused if one that decides is there twice, since somebody else may believe the other.
    """
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in found and name in _DECIDING:
            raise RequestRefused(400, "A header that decides who is let in is there twice.")
        found[name] = value.decode("latin-1")
    return found


def _while_known(door: Door, headers: dict[str, str], send: Send) -> Send:
    """Say no more to somebody who would not be let in any longer while an answer or a stream is under way.

    A token may be revoked meanwhile, or the first one made, so that every client needs one.
    """
    is_over = False

    async def say(message: MutableMapping[str, Any]) -> None:
        nonlocal is_over
        if is_over:
            return  # the response has ended, and whoever writes it is told so as if the client had gone
        is_over = message["type"] == "http.response.body" and door.who(headers) is None
        await send({"type": "http.response.body", "body": b""} if is_over else message)

    return say


def _admitted(scope: Scope, client: Client) -> Scope:
    """The request with a name on it and without the token. The SDK binds a session to that name."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    user = AuthenticatedUser(AccessToken(token="-", client_id=client.id, scopes=[]))  # noqa: S106 - none
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"authorization"]
    return {**scope, "headers": headers, CLIENT: client, "user": user}


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"error": why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # what is left of the request is not read
    ]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="toolfold"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def server_config(app: App, **options: Any) -> uvicorn.Config:
    """The settings of the HTTP server for the gateway, with limits on what a connection may cost."""
    import uvicorn

    from toolfold.gateway.http_connections import bounded_protocol

    # No WebSockets: nobody speaks them here, and every request would be checked for them. No headers of
    # proxies: a client could give itself another address, and hide which process of this machine it is.
    return uvicorn.Config(
        app, http=bounded_protocol(), lifespan="on", ws="none", proxy_headers=False, **options
    )


def app(
    runtime: Runtime,
    door: Door,
    *,
    path: str = "/mcp",
    json_response: bool = False,
    on_start: Callable[[Gateway], object] | None = None,
) -> Starlette:
    """The gateway as an ASGI app. `on_start` is given the gateway before a client is heard."""
    load_sdk()  # before anything below it: servers of the runtime may be loading it in another thread
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.routing import Route

    gateway = Gateway(runtime, everybody=door.everybody, is_local=door.is_local)
    if on_start:
        on_start(gateway)
    manager = limited_manager(StreamableHTTPSessionManager, lambda scope: scope[CLIENT], gateway.is_busy)(
        gateway.server(),
        json_response=json_response,
        max_request_body_size=MAX_REQUEST_BYTES,
        # The door has looked already, and knows the names this gateway goes by.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            async with manager.run():
                yield
        finally:
            gateway.close()

    endpoint: Any = guarded(StreamableHTTPASGIApp(manager), door)
    return Starlette(routes=[Route(path, endpoint=_Endpoint(endpoint))], lifespan=lifespan)


class _Endpoint:
    """An ASGI app that a route takes for what it is: a function would be called with a request."""

    def __init__(self, inner: App) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        await self._inner(scope, receive, send)


def door(
    host: str,
    tokens: Tokens,
    *,
    toolsets: tuple[str, ...] | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    allow_anonymous: bool = False,
) -> Door:
    """The door for an address. Raises ConfigError where nobody could be let in."""
    if is_loopback(host):
        return Door(
            tokens=tokens,
            everybody=Client(ANYBODY, toolsets),
            allow_anonymous=allow_anonymous,
            hosts=frozenset(map(str.lower, hosts)),
            origins=frozenset(origins),
        )
    if not tokens.all():
        raise ConfigError(
            f"{host} can be reached from other machines, and nobody has a token",
            hint="Make one with `toolfold token add <name>`, or stay on 127.0.0.1.",
        )
    known = {host.lower(), *map(str.lower, hosts)} - {"0.0.0.0", "::"}  # noqa: S104 - it is no name to go by
    return Door(tokens=tokens, everybody=None, hosts=frozenset(known), origins=frozenset(origins))
