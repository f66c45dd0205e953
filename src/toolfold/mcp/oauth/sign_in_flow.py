"""Interactive OAuth login to one server, from its 401 response to the token.

The MCP SDK discovers the issuer, registers the client and does PKCE. Its flow is driven request by request,
so that every URL and response passes through `auth_requests`; on failure the flow is closed, because its
own error handling would log secrets. Reads and writes no file.
"""

from __future__ import annotations

import asyncio
import secrets
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

from toolfold.core.loops import MAX_CHECK_THREADS, CallTimeout, EventLoops
from toolfold.core.types import Json, read_json
from toolfold.mcp.oauth.auth_requests import AuthError, AuthHttpClient, origin, require_allowed_url
from toolfold.mcp.oauth.login_store import Login, compute_fresh_until
from toolfold.mcp.oauth.redirect_listener import (
    AuthorizationResponse,
    Redirect,
    open_listener,
    parse_redirect,
)
from toolfold.safety.redaction import Redaction

OpenUrl = Callable[[str], Any]
"""Shows a page to a person; may return the redirect URL that the person pasted."""

_PROTOCOL_HEADER = "mcp-protocol-version"


class SignInCancelled(Exception):
    """The person refused the login or took too long, or the login page could not be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthClient:
    """OAuth client settings for one server."""

    server: str
    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    metadata_url: str = ""
    scopes: tuple[str, ...] = ()
    redirect_port: int = 0
    issuer: str = ""
    """Issuer at which `client_id` is registered; empty for that of the previous login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInPrompt:
    """Functions that ask a person to log in: by opening a browser or by displaying a URL."""

    open_url: OpenUrl
    timeout_s: float
    loops: EventLoops


async def sign_in(
    client: OAuthClient,
    challenge: httpx2.Response,
    prompt: SignInPrompt,
    previous: Login | None,
    redirect: Redirect | None = None,
) -> Login:
    """Log in and return the login. Raises SignInCancelled, AuthError, or OSError if the port is in use.

    The browser is sent to `redirect` after the login, by default to a local port.
    """
    if redirect is not None:
        return await _SignInFlow(client, prompt, previous, redirect).run(challenge)
    port = _redirect_port(previous.client) if previous and not client.client_id else 0
    async with open_listener(client.server, client.redirect_port, preferred_port=port) as listener:
        return await _SignInFlow(client, prompt, previous, listener).run(challenge)


class _SignInFlow:
    def __init__(
        self, client: OAuthClient, prompt: SignInPrompt, previous: Login | None, listener: Redirect
    ) -> None:
        self._client, self._prompt, self._previous, self._listener = client, prompt, previous, listener
        self._secrets = (*(previous.secrets() if previous else ()), client.client_secret)
        self._is_step_up = False
        self._demanded_scopes: set[str] = set()
        self._authorization_url = ""
        self._failure: Exception | None = None
        self._context: OAuthContext

    async def run(self, challenge: httpx2.Response) -> Login:
        self._is_step_up = challenge.status_code == 403
        self._demanded_scopes = set(
            (self._merge_scopes(extract_scope_from_www_auth(challenge)) or "").split()
        )
        try:
            async with AuthHttpClient(self._client.url, self._secrets) as http:
                await self._drive_flow(challenge, http)
        except ValidationError:
            raise AuthError("the OAuth metadata of the server cannot be read") from None
        except (OAuthFlowError, ValueError) as error:
            raise AuthError(Redaction(self._secrets, max_chars=400)(str(error))) from None
        return self._build_login()

    async def _drive_flow(self, challenge: httpx2.Response, http: AuthHttpClient) -> None:
        provider = self._create_provider()
        self._context = provider.context
        headers = {_PROTOCOL_HEADER: challenge.request.headers.get(_PROTOCOL_HEADER, "")}
        original = httpx2.Request("POST", self._client.url, headers={k: v for k, v in headers.items() if v})
        flow = provider.async_auth_flow(original)
        try:
            await anext(flow)  # the original request, which the server has already answered
            outgoing = await flow.asend(challenge)
            while outgoing is not original:
                if self._failure:
                    raise self._failure
                outgoing = await flow.asend(await http.send(self._prepare_request(outgoing)))
        finally:
            await flow.aclose()

    def _create_provider(self) -> OAuthClientProvider:
        return OAuthClientProvider(
            self._client.url,
            OAuthClientMetadata(
                client_name="Toolfold",
                redirect_uris=[AnyUrl(self._listener.uri)],
                scope=" ".join(self._client.scopes) or None,
            ),
            MemoryTokenStorage(
                client=self._known_client(), tokens=self._previous_token() if self._is_step_up else None
            ),
            redirect_handler=self._check_authorization_url,
            callback_handler=self._wait_for_code,
            client_metadata_url=self._client.metadata_url or None,
        )

    def _known_client(self) -> OAuthClientInformationFull | None:
        previous = self._previous
        if self._client.client_id:
            is_same = previous is not None and previous.client.get("client_id") == self._client.client_id
            return OAuthClientInformationFull(
                client_id=self._client.client_id,
                client_secret=self._client.client_secret or None,
                redirect_uris=[AnyUrl(self._listener.uri)],
                token_endpoint_auth_method="none",  # noqa: S106 - until the metadata of the issuer is known
                issuer=self._client.issuer or (previous.issuer if previous is not None and is_same else None),
            )
        if previous is None or not previous.client or _has_expired(previous.client):
            return None
        # An issuer may insist on the redirect URI and the scopes that the client was registered with.
        registered = str(previous.client.get("scope") or "").split()
        needs_more_scopes = registered and not self._demanded_scopes <= set(registered)
        if needs_more_scopes or self._listener.uri != _redirect_uri(previous.client):
            return None
        return OAuthClientInformationFull.model_validate(previous.client)

    def _previous_token(self) -> OAuthToken | None:
        if self._previous is None or not self._previous.token:
            return None
        return OAuthToken(access_token="refused", scope=" ".join(self._previous.scopes) or None)  # noqa: S106

    def _prepare_request(self, outgoing: httpx2.Request) -> httpx2.Request:
        """Add the OAuth scopes to a client registration request; return other requests unchanged.

        Raises AuthError if a `client_id` is configured, because it belongs to another authorization
        server.
        """
        if outgoing.method != "POST" or "json" not in outgoing.headers.get("content-type", ""):
            return outgoing
        if self._client.client_id:
            raise AuthError(
                "the authorization server of this MCP server changed, and the configured "
                "client_id belongs to another authorization server"
            )
        document = read_json(outgoing.content.decode())
        if scope := self._merge_scopes(document.get("scope")):
            document["scope"] = scope
        return httpx2.Request("POST", outgoing.url, json=document)

    async def _check_authorization_url(self, url: str) -> None:
        try:
            _require_pkce(self._context.oauth_metadata)
            require_allowed_url(url, self._client.url)
        except AuthError as error:
            self._failure = error
        self._choose_token_auth()
        self._authorization_url = self._add_scopes(url)

    def _choose_token_auth(self) -> None:
        known = self._context.client_info
        if known is None or not self._client.client_id or not self._client.client_secret:
            return
        metadata = self._context.oauth_metadata
        supported = (metadata.token_endpoint_auth_methods_supported if metadata else None) or []
        by_post = "client_secret_post" in supported and "client_secret_basic" not in supported
        known.token_endpoint_auth_method = "client_secret_post" if by_post else "client_secret_basic"

    def _add_scopes(self, url: str) -> str:
        base, _, query = url.partition("?")
        parameters = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        scope = self._merge_scopes(parameters.get("scope"))
        if scope:
            self._context.client_metadata.scope = parameters["scope"] = scope
        return f"{base}?{urlencode(parameters)}"

    def _merge_scopes(self, demanded: str | None) -> str | None:
        """Return the OAuth scopes to request in this login.

        These are the configured or demanded scopes, and those that the last login lacked.
        """
        configured = " ".join(self._client.scopes) or None
        scope = union_scopes(configured, demanded) if self._is_step_up else configured or demanded
        return union_scopes(scope, self._previous.wanted if self._previous else None)

    async def _wait_for_code(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._authorization_url).query)["state"][0]
        try:
            if self._failure is None:
                response = await self._wait_for_response(state)
                return AuthorizationCodeResult(code=response.code, state=state, iss=response.issuer)
        except SignInCancelled as error:
            self._failure = error
        # `_drive_flow` raises the failure before this placeholder is used.
        metadata = self._context.oauth_metadata
        return AuthorizationCodeResult(
            code="none", state=state, iss=str(metadata.issuer) if metadata else None
        )

    async def _wait_for_response(self, state: str) -> AuthorizationResponse:
        try:
            async with asyncio.timeout(self._prompt.timeout_s):
                response = await self._first_response(state)
        except (TimeoutError, CallTimeout):
            raise SignInCancelled(
                f"the login was not completed within {self._prompt.timeout_s:g} s"
            ) from None
        if response.error:
            raise SignInCancelled(f"the login was refused: {response.error}")
        return response

    async def _first_response(self, state: str) -> AuthorizationResponse:
        """Wait for the redirect to the local server or for a redirect URL pasted by the user."""
        redirect = asyncio.create_task(self._listener.wait_for_response(state))
        page = asyncio.create_task(self._open_page(state))
        try:
            await asyncio.wait({redirect, page}, return_when=asyncio.FIRST_COMPLETED)
            pasted = page.result() if page.done() and not redirect.done() else None
            return pasted or await redirect
        finally:
            redirect.cancel()
            page.cancel()
            await asyncio.gather(redirect, page, return_exceptions=True)

    async def _open_page(self, state: str) -> AuthorizationResponse | None:
        prompt = self._prompt
        try:
            pasted_url = await prompt.loops.call_with_timeout(
                prompt.timeout_s, prompt.open_url, self._authorization_url, max_threads=MAX_CHECK_THREADS
            )
        except (CallTimeout, SignInCancelled):
            raise
        except Exception as error:
            raise SignInCancelled(f"the login page could not be opened: {type(error).__name__}") from None
        if not isinstance(pasted_url, str):
            return None
        try:
            return parse_redirect(pasted_url, state)
        except ValueError as error:
            raise SignInCancelled(f"the pasted URL was rejected: {error}") from None

    def _build_login(self) -> Login:
        context, now = self._context, time.time()
        if context.client_info is None or context.current_tokens is None:
            raise AuthError("the OAuth issuer returned no token")
        # A client secret from the settings is not copied to the login file.
        excluded = {"client_secret"} if self._client.client_id else None
        return Login(
            server=self._client.server,
            url=self._client.url,
            issuer=str(context.oauth_metadata.issuer) if context.oauth_metadata else origin(self._client.url),
            client=dump_model(context.client_info, excluded),
            tokens=dump_model(context.current_tokens),
            obtained=now,
            fresh_until=compute_fresh_until(now, context.current_tokens.expires_in),
            metadata=dump_model(context.oauth_metadata),
            resource=dump_model(context.protected_resource_metadata),
            id=secrets.token_hex(8),
        )


class MemoryTokenStorage:
    """Token storage for the MCP SDK that keeps the tokens of one login in memory."""

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


def dump_model(model: BaseModel | None, excluded: set[str] | None = None) -> Json:
    """Return an object of the MCP SDK as JSON data; an empty dict for None."""
    if model is None:
        return {}
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=excluded)


def _redirect_uri(client: Json) -> str:
    uris = client.get("redirect_uris")
    return str(uris[0]) if isinstance(uris, list) and uris else ""


def _redirect_port(client: Json) -> int:
    try:
        return urlsplit(_redirect_uri(client)).port or 0
    except ValueError:
        return 0


def _has_expired(client: Json) -> bool:
    expires_at = client.get("client_secret_expires_at")
    return isinstance(expires_at, (int, float)) and 0 < expires_at < time.time()


def _require_pkce(metadata: OAuthMetadata | None) -> None:
    # Many issuers support S256 without listing it; one that lists only other methods would ignore it.
    supported = metadata.code_challenge_methods_supported if metadata else None
    if supported and "S256" not in supported:
        raise AuthError("the OAuth issuer of the server does not support PKCE with S256")
