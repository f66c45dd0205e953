"""The token of each request to one server: read, renewed in time, and asked for where a person may be asked.

Only requests to the server's own origin get it. What several processes could do at once (renewing, logging
in) is done by one, and the others take what it got. A request that was refused for want of a token has not
run, and is sent again; nothing else is. A login that stands in the settings' headers is left alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from toolfold.errors import ConfigError
from toolfold.sources.mcp.faults import NeedsLogin, NotStarted, ServerFailed
from toolfold.sources.mcp.oauth.logins import Login, Logins
from toolfold.sources.mcp.oauth.renewing import TAKEN_BACK, UNKNOWN_CLIENT, renew
from toolfold.sources.mcp.oauth.signing_in import Asking, Client, NotAgreed, sign_in
from toolfold.sources.mcp.oauth.traffic import Refusal, same_origin
from toolfold.sources.mcp.oauth.turns import turn

_RENEWAL_SECONDS = 60.0
_PROTOCOL = "mcp-protocol-version"


class Provider(httpx2.Auth):
    """Authorizes the requests of one server. `problem` is the last reason why one could not be."""

    def __init__(self, client: Client, logins: Logins, asking: Asking | None) -> None:
        self._client, self._logins, self._asking = client, logins, asking
        self._login: Login | None = None
        self._is_read = False
        self._requested: frozenset[str] = frozenset()
        self._unproven = ""
        self.problem: ServerFailed | None = None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        del request
        raise RuntimeError("a login needs an asynchronous client")

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not self._is_ours(request):
            yield request
            return
        token = await self._token(request)
        _carry(request, token)
        response = yield request
        for another in (self._renewed, self._logged_in):
            if not _is_refused(response):
                self.problem, self._unproven = None, ""
                return
            fresh = await another(token, response)
            if fresh:
                token = fresh
                _carry(request, token)
                response = yield request

    async def log_in(self, challenge: httpx2.Response, *, known: str) -> Login:
        """A login in any case, unless somebody else has logged in since `known` was the token."""
        if self._asking is None:
            raise self._failed(self._needs_login("asks for a login, and there is no browser here."))
        busy = self._needs_login("is being logged in to by another process.")
        async with self._alone("login", self._asking.seconds, busy):
            login = self._read()
            if login is None or not login.token or login.token == known:
                login = await self._sign_in(challenge, self._asking, login)
            return login

    def _is_ours(self, request: httpx2.Request) -> bool:
        carried = request.headers.get("Authorization")
        # A request that was redirected within its origin carries our token already.
        own = carried is None or (self._login is not None and carried == f"Bearer {self._login.token}")
        return own and same_origin(str(request.url), self._client.url)

    async def _token(self, request: httpx2.Request) -> str:
        login = self._login if self._is_read else self._read()
        if login is None or not login.token:
            return ""
        if not _is_stale(login) or not login.renewal:  # whether it still holds is for the server to say
            return login.token
        return await self._renew(login.token, request.headers.get(_PROTOCOL))

    async def _renewed(self, refused: str, response: httpx2.Response) -> str:
        """Another token than the one that was refused, if there is one to be had without a person."""
        login = self._read()
        if login is None or not login.token:
            return ""
        if response.status_code == 401:
            return await self._renew(refused, response.request.headers.get(_PROTOCOL))
        return login.token if login.token != refused and _scopes(response) <= set(login.scopes) else ""

    async def _renew(self, refused: str, protocol: str | None) -> str:
        """One process renews; whoever waited for it takes what it got. Nothing, where that takes a person."""
        if refused and refused == self._unproven:
            return ""  # a renewed token that is refused, too, is not made better by another
        busy = NotStarted(self._client.server, "has a login that another process is renewing.")
        async with self._alone("renewal", _RENEWAL_SECONDS, busy):
            login = self._read()
            if login is None or not login.token or (login.token != refused and not _is_stale(login)):
                return login.token if login else ""
            return await self._asked_anew(login, protocol) if login.renewal else ""

    @contextlib.asynccontextmanager
    async def _alone(self, what: str, seconds: float, busy: ServerFailed) -> AsyncIterator[None]:
        """Nobody else does the same for this server meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(turn(self._logins.turn(self._client.server, what), seconds))
            except TimeoutError:
                raise self._failed(busy) from None
            except (ConfigError, OSError) as error:
                why = (
                    error.problem
                    if isinstance(error, ConfigError)
                    else f"logins cannot be kept: {error.strerror}"
                )
                raise self._failed(
                    NotStarted(self._client.server, f"cannot be logged in to: {why}.")
                ) from None
            yield

    async def _asked_anew(self, login: Login, protocol: str | None) -> str:
        try:
            fresh = await renew(self._client, login, protocol)
        except Refusal as refusal:
            if refusal.code not in TAKEN_BACK:
                advice = "It is tried again with the next request."
                problem = NotStarted(
                    self._client.server, f"has a login that cannot be renewed: {refusal}.", advice=advice
                )
                raise self._failed(problem) from None
            over = login.without_tokens()
            self._keep(dataclasses.replace(over, client={}) if refusal.code in UNKNOWN_CLIENT else over)
            return ""
        self._keep(fresh)
        self._unproven = fresh.token
        return fresh.token

    async def _logged_in(self, refused: str, response: httpx2.Response) -> str:
        wanted = _scopes(response) if response.status_code == 403 else frozenset[str]()
        if response.status_code == 403:
            held = set(self._login.scopes) if self._login else set[str]()
            if wanted <= (held | self._requested):  # asking for it once more would end no better
                return ""
            if self._asking is None:
                self._remember_wanted(wanted)
        if self._asking is None:
            raise self._failed(self._needs_login(_said(self._login, wanted)))
        login = await self.log_in(response, known=refused)
        self._requested |= wanted | set(login.scopes)
        return login.token

    async def _sign_in(self, challenge: httpx2.Response, asking: Asking, before: Login | None) -> Login:
        server = self._client.server
        try:
            login = await sign_in(self._client, challenge, asking, before)
        except NotAgreed as error:
            raise self._failed(self._needs_login(f"was not logged in to: {error}.")) from None
        except Refusal as error:
            raise self._failed(
                NotStarted(server, f"cannot be logged in to: {error}.", advice=_advice(error))
            ) from None
        except OSError as error:
            port = self._client.redirect_port
            problem = (
                f"cannot be logged in to: port {port} of this machine cannot be used ({error.strerror})."
            )
            raise self._failed(
                NotStarted(server, problem, advice="Set another oauth.redirect_port.")
            ) from None
        self._keep(login)
        return login

    def _remember_wanted(self, wanted: frozenset[str]) -> None:
        if login := self._login:
            scopes = " ".join(sorted({*login.wanted.split(), *wanted}))
            self._keep(dataclasses.replace(login, wanted=scopes))

    def _read(self) -> Login | None:
        self._login = self._logins.find(self._client.server, self._client.url)
        self._is_read = True
        return self._login

    def _keep(self, login: Login) -> None:
        self._login = login
        try:
            self._logins.keep(login)
        except ConfigError as error:
            raise self._failed(
                NotStarted(self._client.server, f"has a login, but {error.problem}.")
            ) from None

    def _needs_login(self, problem: str) -> NeedsLogin:
        return NeedsLogin(
            self._client.server,
            problem,
            advice=f"Run `toolfold mcp login {self._client.server}` in a terminal.",
        )

    def _failed(self, problem: ServerFailed) -> ServerFailed:
        self.problem = problem
        return problem


def _carry(request: httpx2.Request, token: str) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"


def _is_refused(response: httpx2.Response) -> bool:
    if response.status_code == 403:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401


def _is_stale(login: Login) -> bool:
    return login.fresh_until is not None and time.time() >= login.fresh_until


def _scopes(response: httpx2.Response) -> frozenset[str]:
    return frozenset((extract_scope_from_www_auth(response) or "").split())


def _said(login: Login | None, wanted: frozenset[str]) -> str:
    if wanted:
        return f"asks for more rights than you gave it ({', '.join(sorted(wanted))})."
    return "no longer takes your login." if login else "asks for a login."


def _advice(refusal: Refusal) -> str:
    if "registers no client" in str(refusal):
        return "Register a client there by hand and set oauth.client_id."
    return ""
