"""One login, from a server's refusal to the token: what is asked of whom, in which order.

Finding the issuer, registering, PKCE and the checks of an issuer's word are the MCP package's own. It is
driven request by request, so that every address and every answer passes `traffic`; whoever gives up closes
it, for its own way out writes to a log what must stand in none. Reads and writes no file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from toolfold.loops import MOST_ASKED, Loops, OutOfTime
from toolfold.model import Json, read_json
from toolfold.redaction import Redaction
from toolfold.sources.mcp.oauth.logins import Login, fresh_until
from toolfold.sources.mcp.oauth.returning import Listener, Returned, listening, read_return
from toolfold.sources.mcp.oauth.traffic import Refusal, Traffic, origin, require_allowed

Visit = Callable[[str], Any]
"""Brings a person to an address. May give the address they came back with, where nothing listens there."""

_PROTOCOL = "mcp-protocol-version"


class NotAgreed(Exception):
    """The person did not log in: said no, was not there, or could not be shown the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who we are to a server and to its issuer."""

    server: str
    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    metadata_url: str = ""
    scopes: tuple[str, ...] = ()
    redirect_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a person is asked to log in."""

    visit: Visit
    seconds: float
    loops: Loops


async def sign_in(client: Client, challenge: httpx2.Response, asking: Asking, before: Login | None) -> Login:
    """The login a server's refusal asks for. Raises NotAgreed, Refusal, or OSError where a port is taken."""
    port = _port(before.client) if before and not client.client_id else 0
    async with listening(client.server, client.redirect_port, before=port) as listener:
        return await _SigningIn(client, asking, before, listener)(challenge)


class _SigningIn:
    def __init__(self, client: Client, asking: Asking, before: Login | None, listener: Listener) -> None:
        self._client, self._asking, self._before, self._listener = client, asking, before, listener
        self._secrets = (*(before.secrets() if before else ()), client.client_secret)
        self._is_step_up = False
        self._rights_asked: set[str] = set()
        self._address = ""
        self._stopped: Exception | None = None
        self._context: OAuthContext

    async def __call__(self, challenge: httpx2.Response) -> Login:
        self._is_step_up = challenge.status_code == 403
        self._rights_asked = set((self._scope(extract_scope_from_www_auth(challenge)) or "").split())
        try:
            async with Traffic(self._client.url, self._secrets) as traffic:
                await self._drive(challenge, traffic)
        except ValidationError:
            raise Refusal("what it says of its logins cannot be read") from None
        except (OAuthFlowError, ValueError) as error:
            raise Refusal(Redaction(self._secrets, longest=400)(str(error))) from None
        return self._login()

    async def _drive(self, challenge: httpx2.Response, traffic: Traffic) -> None:
        provider = self._provider()
        self._context = provider.context
        headers = {_PROTOCOL: challenge.request.headers.get(_PROTOCOL, "")}
        ours = httpx2.Request("POST", self._client.url, headers={k: v for k, v in headers.items() if v})
        flow = provider.async_auth_flow(ours)
        try:
            await anext(flow)  # our own request, which the server has answered already
            outgoing = await flow.asend(challenge)
            while outgoing is not ours:
                if self._stopped:
                    raise self._stopped
                outgoing = await flow.asend(await traffic.send(self._checked(outgoing)))
        finally:
            await flow.aclose()

    def _provider(self) -> OAuthClientProvider:
        return OAuthClientProvider(
            self._client.url,
            OAuthClientMetadata(
                client_name="Toolfold",
                redirect_uris=[AnyUrl(self._listener.uri)],
                scope=" ".join(self._client.scopes) or None,
            ),
            PendingSignIn(
                client=self._known_client(), tokens=self._rights_before() if self._is_step_up else None
            ),
            redirect_handler=self._prepare,
            callback_handler=self._come_back,
            client_metadata_url=self._client.metadata_url or None,
        )

    def _known_client(self) -> OAuthClientInformationFull | None:
        before = self._before
        if self._client.client_id:
            same = before is not None and before.client.get("client_id") == self._client.client_id
            return OAuthClientInformationFull(
                client_id=self._client.client_id,
                client_secret=self._client.client_secret or None,
                redirect_uris=[AnyUrl(self._listener.uri)],
                token_endpoint_auth_method="none",  # noqa: S106 - until the issuer has said what it takes
                issuer=before.issuer if before is not None and same else None,
            )
        if before is None or not before.client or _is_over(before.client):
            return None
        # An issuer may insist on exactly the address and the rights that a client was registered with.
        registered = str(before.client.get("scope") or "").split()
        asks_more = registered and not self._rights_asked <= set(registered)
        if asks_more or self._listener.port != _port(before.client):
            return None
        return OAuthClientInformationFull.model_validate(before.client)

    def _rights_before(self) -> OAuthToken | None:
        if self._before is None or not self._before.token:
            return None
        return OAuthToken(access_token="refused", scope=" ".join(self._before.scopes) or None)  # noqa: S106

    def _checked(self, outgoing: httpx2.Request) -> httpx2.Request:
        """A registration names the rights we shall ask for; one who has a client by hand registers none."""
        if outgoing.method != "POST" or "json" not in outgoing.headers.get("content-type", ""):
            return outgoing
        if self._client.client_id:
            raise Refusal("its logins are now done by another issuer than those with this client_id were")
        asked = read_json(outgoing.content.decode())
        if scope := self._scope(asked.get("scope")):
            asked["scope"] = scope
        return httpx2.Request("POST", outgoing.url, json=asked)

    async def _prepare(self, address: str) -> None:
        try:
            _require_pkce(self._context.oauth_metadata)
            require_allowed(address, self._client.url)
        except Refusal as error:
            self._stopped = error
        self._choose_method()
        self._address = self._with_scopes(address)

    def _choose_method(self) -> None:
        known = self._context.client_info
        if known is None or not self._client.client_id or not self._client.client_secret:
            return
        metadata = self._context.oauth_metadata
        offered = (metadata.token_endpoint_auth_methods_supported if metadata else None) or []
        by_post = "client_secret_post" in offered and "client_secret_basic" not in offered
        known.token_endpoint_auth_method = "client_secret_post" if by_post else "client_secret_basic"

    def _with_scopes(self, address: str) -> str:
        base, _, query = address.partition("?")
        asked = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        scope = self._scope(asked.get("scope"))
        if scope:
            self._context.client_metadata.scope = asked["scope"] = scope
        return f"{base}?{urlencode(asked)}"

    def _scope(self, named: str | None) -> str | None:
        """What is asked for: what the settings say, else what the server names; and what it has missed."""
        ours = " ".join(self._client.scopes) or None
        scope = union_scopes(ours, named) if self._is_step_up else ours or named
        return union_scopes(scope, self._before.wanted if self._before else None)

    async def _come_back(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._address).query)["state"][0]
        try:
            if self._stopped is None:
                returned = await self._returned(state)
                return AuthorizationCodeResult(code=returned.code, state=state, iss=returned.issuer)
        except NotAgreed as error:
            self._stopped = error
        # Whoever drives stops before this is used for anything.
        metadata = self._context.oauth_metadata
        return AuthorizationCodeResult(
            code="none", state=state, iss=str(metadata.issuer) if metadata else None
        )

    async def _returned(self, state: str) -> Returned:
        try:
            async with asyncio.timeout(self._asking.seconds):
                returned = await self._first_to_come(state)
        except (TimeoutError, OutOfTime):
            raise NotAgreed(f"nobody logged in within {self._asking.seconds:g} s") from None
        if returned.error:
            raise NotAgreed(f"the login was refused: {returned.error}")
        return returned

    async def _first_to_come(self, state: str) -> Returned:
        """The browser at our door, or an address that the person brings."""
        coming = asyncio.create_task(self._listener.answer(state))
        visiting = asyncio.create_task(self._visited(state))
        try:
            await asyncio.wait({coming, visiting}, return_when=asyncio.FIRST_COMPLETED)
            brought = visiting.result() if visiting.done() and not coming.done() else None
            return brought or await coming
        finally:
            coming.cancel()
            visiting.cancel()
            await asyncio.gather(coming, visiting, return_exceptions=True)

    async def _visited(self, state: str) -> Returned | None:
        asking = self._asking
        try:
            address = await asking.loops.within(asking.seconds, asking.visit, self._address, most=MOST_ASKED)
        except (OutOfTime, NotAgreed):
            raise
        except Exception as error:
            raise NotAgreed(f"the login page could not be shown: {type(error).__name__}") from None
        if not isinstance(address, str):
            return None
        try:
            return read_return(address, state)
        except ValueError as error:
            raise NotAgreed(f"the address that was brought back is not taken: {error}") from None

    def _login(self) -> Login:
        context, now = self._context, time.time()
        if context.client_info is None or context.current_tokens is None:
            raise Refusal("it gives no token")
        # A secret that stands in the settings stays there alone.
        left_out = {"client_secret"} if self._client.client_id else None
        return Login(
            server=self._client.server,
            url=self._client.url,
            issuer=str(context.oauth_metadata.issuer) if context.oauth_metadata else origin(self._client.url),
            client=plain(context.client_info, left_out),
            tokens=plain(context.current_tokens),
            obtained=now,
            fresh_until=fresh_until(now, context.current_tokens.expires_in),
            metadata=plain(context.oauth_metadata),
            resource=plain(context.protected_resource_metadata),
        )


class PendingSignIn:
    """What the MCP package wants to keep, held for as long as it works; we keep logins ourselves."""

    def __init__(
        self, client: OAuthClientInformationFull | None = None, tokens: OAuthToken | None = None
    ) -> None:
        self._client, self._tokens = client, tokens

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def plain(model: BaseModel | None, left_out: set[str] | None = None) -> Json:
    """A model as it would be sent; empty for None."""
    if model is None:
        return {}
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)


def _port(client: Json) -> int:
    addresses = client.get("redirect_uris")
    try:
        return urlsplit(str(addresses[0])).port or 0 if addresses else 0
    except (TypeError, ValueError, KeyError, IndexError):
        return 0


def _is_over(client: Json) -> bool:
    end = client.get("client_secret_expires_at")
    return isinstance(end, (int, float)) and 0 < end < time.time()


def _require_pkce(metadata: OAuthMetadata | None) -> None:
    # Many issuers say nothing of it and have it; one that names others only would ignore ours.
    offered = metadata.code_challenge_methods_supported if metadata else None
    if offered and "S256" not in offered:
        raise Refusal("its issuer does not protect the code of a login (no PKCE with S256)")
