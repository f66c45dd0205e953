"""Authorize requests to one server: read the token, refresh it, start a login if allowed.

Only requests to the server's own origin get the token. Refreshing and logging in are done by one process at a
time; the others use its result. A request that was rejected for lack of a valid token has not run and is sent
again; no other request is. An Authorization header from the settings is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from toolfold.core.errors import ConfigError
from toolfold.mcp.faults import NeedsLogin, NotStarted, ServerFailed
from toolfold.mcp.oauth.auth_requests import AuthError, is_same_origin
from toolfold.mcp.oauth.login_store import Login, LoginStore
from toolfold.mcp.oauth.sign_in_flow import OAuthClient, SignInCancelled, SignInPrompt, sign_in
from toolfold.mcp.oauth.token_refresh import REVOKED_ERRORS, UNKNOWN_CLIENT_ERRORS, refresh_login

_REFRESH_WAIT_S = 60.0
"""How long a request waits while another process refreshes the token."""
_MAX_REFRESH_S = 45.0
"""How long a refresh may take. Shorter than the wait: others continue if its process ends during it."""
MAX_REQUESTS_S = 120.0
"""Time for the requests of a login, in addition to the time that the person has."""
_PROTOCOL_HEADER = "mcp-protocol-version"


class OAuthProvider(httpx2.Auth):
    """Authorizes requests to one server; `problem` is the error if the last attempt failed."""

    def __init__(
        self, client: OAuthClient, logins: LoginStore, prompt: SignInPrompt | None, advice: str = ""
    ) -> None:
        """Create a provider that uses stored logins; error messages contain `advice` on how to log in."""
        self._client, self._logins, self._prompt = client, logins, prompt
        self._advice = advice or f"Run `toolfold mcp login {client.server}` in a terminal."
        self._login: Login | None = None
        self._is_loaded = False
        self._requested_scopes: frozenset[str] = frozenset()
        self._untested_token = ""
        self._refreshes: set[asyncio.Task[str]] = set()
        self.problem: ServerFailed | None = None

    @property
    def may_have_login(self) -> bool:
        """Return False if no login is stored for the server; True while this is still unknown."""
        return not self._is_loaded or self._login is not None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        del request
        raise RuntimeError("OAuth needs an asynchronous HTTP client")

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not self._is_for_server(request):
            yield request
            return
        token = await self._current_token(request)
        _set_token(request, token)
        response = yield request
        for get_new_token in (self._token_after_refresh, self._token_after_login):
            if not _is_rejected(response):
                self.problem, self._untested_token = None, ""
                return
            new_token = await get_new_token(token, response)
            if new_token:
                token = new_token
                _set_token(request, token)
                response = yield request

    async def log_in(self, challenge: httpx2.Response, *, known: str) -> Login:
        """Log in, or return the login of another process that has already replaced the token `known`."""
        if self._prompt is None:
            raise self._record_problem(self._needs_login("requires a login, and no browser is available."))
        busy = self._needs_login("is being logged in to by another process.")
        seconds = self._prompt.timeout_s
        async with self._exclusive("login", seconds, busy, duration_s=seconds + MAX_REQUESTS_S):
            login = await self._load()
            if login is None or not login.token or login.token == known:
                login = await self._sign_in(challenge, self._prompt, login)
            return login

    def _is_for_server(self, request: httpx2.Request) -> bool:
        header = request.headers.get("Authorization")
        # A request that was redirected within its origin already has our token.
        has_own_token = header is None or (
            self._login is not None and header == f"Bearer {self._login.token}"
        )
        return has_own_token and is_same_origin(str(request.url), self._client.url)

    async def _current_token(self, request: httpx2.Request) -> str:
        try:
            login = self._login if self._is_loaded else await self._load()
        except (
            NotStarted
        ):  # the server may need no login; if it does, its response is followed by another try
            return ""
        if login is None or not login.token:
            return ""
        if not _needs_refresh(login) or not login.refresh_token:
            return login.token  # only the server knows whether it is still valid
        return await self._refresh(login.token, request.headers.get(_PROTOCOL_HEADER))

    async def _token_after_refresh(self, rejected: str, response: httpx2.Response) -> str:
        """Return a new token to replace a rejected token; empty if the user must log in first."""
        login = await self._load()
        if login is None or not login.token:
            return ""
        if response.status_code == 401:
            return await self._refresh(rejected, response.request.headers.get(_PROTOCOL_HEADER))
        return (
            login.token if login.token != rejected and _demanded_scopes(response) <= set(login.scopes) else ""
        )

    async def _refresh(self, rejected: str, protocol: str | None) -> str:
        """Refresh the token; if several processes need this, one refreshes the token and all use the result.

        Returns "" if a login is needed.
        """
        if rejected and rejected == self._untested_token:
            return ""  # it was just refreshed; refreshing again would not help
        # A refresh token can be valid once: a cancelled request must not end between its use and the storage.
        task = asyncio.create_task(self._refresh_exclusively(rejected, protocol))
        self._refreshes.add(task)
        task.add_done_callback(self._finish_refresh)
        return await asyncio.shield(task)

    def _finish_refresh(self, task: asyncio.Task[str]) -> None:
        self._refreshes.discard(task)
        if not task.cancelled():
            task.exception()  # the request may have been cancelled

    async def _refresh_exclusively(self, rejected: str, protocol: str | None) -> str:
        busy = NotStarted(self._client.server, "has a login that another process is refreshing.")
        async with self._exclusive("renewal", _REFRESH_WAIT_S, busy, duration_s=_MAX_REFRESH_S):
            login = await self._load()
            if login is None or not login.token or (login.token != rejected and not _needs_refresh(login)):
                return login.token if login else ""
            return await self._refresh_at_issuer(login, protocol) if login.refresh_token else ""

    @contextlib.asynccontextmanager
    async def _exclusive(
        self, operation: str, timeout_s: float, busy: ServerFailed, *, duration_s: float
    ) -> AsyncIterator[None]:
        """Let only one process at a time perform an operation on this server's login, such as a refresh."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(
                    self._logins.hold(self._client.server, operation, timeout_s, duration_s=duration_s)
                )
            except TimeoutError:
                raise self._record_problem(busy) from None
            except (ConfigError, OSError) as error:
                why = (
                    error.problem
                    if isinstance(error, ConfigError)
                    else f"logins cannot be stored: {error.strerror}"
                )
                raise self._record_problem(
                    NotStarted(self._client.server, f"cannot be logged in to: {why}.")
                ) from None
            yield

    async def _refresh_at_issuer(self, login: Login, protocol: str | None) -> str:
        try:
            refreshed = await _refresh_in_time(self._client, login, protocol)
        except AuthError as error:
            if error.code not in REVOKED_ERRORS:
                advice = "The next request tries again."
                problem = NotStarted(
                    self._client.server, f"has a login that cannot be refreshed: {error}.", advice=advice
                )
                raise self._record_problem(problem) from None
            revoked = login.without_tokens()
            await self._save(
                dataclasses.replace(revoked, client={}) if error.code in UNKNOWN_CLIENT_ERRORS else revoked
            )
            return ""
        await self._save(refreshed)
        self._untested_token = refreshed.token
        return refreshed.token

    async def _token_after_login(self, rejected: str, response: httpx2.Response) -> str:
        wanted = _demanded_scopes(response) if response.status_code == 403 else frozenset[str]()
        if response.status_code == 403:
            granted = set(self._login.scopes) if self._login else set[str]()
            if wanted <= (granted | self._requested_scopes):
                return ""  # these scopes were already requested without success
            if self._prompt is None:
                await self._store_wanted_scopes(wanted)
        if self._prompt is None:
            raise self._record_problem(self._needs_login(_describe_need(self._login, wanted)))
        login = await self.log_in(response, known=rejected)
        self._requested_scopes |= wanted | set(login.scopes)
        return login.token

    async def _sign_in(
        self, challenge: httpx2.Response, prompt: SignInPrompt, previous: Login | None
    ) -> Login:
        server = self._client.server
        try:
            login = await sign_in(self._client, challenge, prompt, previous)
        except SignInCancelled as error:
            raise self._record_problem(self._needs_login(f"was not logged in to: {error}.")) from None
        except AuthError as error:
            raise self._record_problem(
                NotStarted(server, f"cannot be logged in to: {error}.", advice=_advise_on(error))
            ) from None
        except OSError as error:
            port = self._client.redirect_port
            problem = (
                f"cannot be logged in to: port {port} of this machine cannot be used ({error.strerror})."
            )
            raise self._record_problem(
                NotStarted(server, problem, advice="Set another oauth.redirect_port.")
            ) from None
        await self._save(login, is_new=True)
        return login

    async def _store_wanted_scopes(self, wanted: frozenset[str]) -> None:
        if login := self._login:
            scopes = " ".join(sorted({*login.wanted.split(), *wanted}))
            await self._save(dataclasses.replace(login, wanted=scopes))

    async def _load(self) -> Login | None:
        try:
            found = await asyncio.to_thread(self._logins.find, self._client.server, self._client.url)
        except ConfigError as error:
            raise self._record_problem(
                NotStarted(self._client.server, f"cannot be used: {error.problem}.")
            ) from None
        self._login, self._is_loaded = found, True
        return found

    async def _save(self, login: Login, *, is_new: bool = False) -> None:
        self._login = login
        try:
            await asyncio.to_thread(self._logins.save, login, is_new=is_new)
        except ConfigError as error:
            raise self._record_problem(
                NotStarted(self._client.server, f"has a login, but {error.problem}.")
            ) from None

    def _needs_login(self, problem: str) -> NeedsLogin:
        return NeedsLogin(self._client.server, problem, advice=self._advice)

    def _record_problem(self, problem: ServerFailed) -> ServerFailed:
        self.problem = problem
        return problem


async def _refresh_in_time(client: OAuthClient, login: Login, protocol: str | None) -> Login:
    try:
        async with asyncio.timeout(_MAX_REFRESH_S - 5.0):
            return await refresh_login(client, login, protocol)
    except TimeoutError:
        raise AuthError("the OAuth issuer did not answer in time") from None


def _set_token(request: httpx2.Request, token: str) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"


def _is_rejected(response: httpx2.Response) -> bool:
    if response.status_code == 403:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401


def _needs_refresh(login: Login) -> bool:
    return login.fresh_until is not None and time.time() >= login.fresh_until


def _demanded_scopes(response: httpx2.Response) -> frozenset[str]:
    return frozenset((extract_scope_from_www_auth(response) or "").split())


def _describe_need(login: Login | None, wanted: frozenset[str]) -> str:
    if wanted:
        return f"requires more scopes than you granted ({', '.join(sorted(wanted))})."
    return "no longer accepts your login." if login else "requires a login."


def _advise_on(error: AuthError) -> str:
    if "registers no client" in str(error):
        return "Register a client at the issuer by hand and set oauth.client_id."
    return ""
