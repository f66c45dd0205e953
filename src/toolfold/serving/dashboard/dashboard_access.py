"""Decide who may use the dashboard: one-time links, browser sessions, and the checks of every request.

A link contains a code that is valid once and for a few minutes. Whoever opens it gets a cookie and a page
key. Both are needed for every request: a browser sends the cookie to other ports of the same host too, but
only the tab that has signed in knows the page key. A key in a header also protects against requests that
other pages make.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolfold.serving.gateway.browser_requests import read_cookie
from toolfold.serving.gateway.client_tokens import GatewayClient
from toolfold.serving.gateway.http_app import AccessPolicy
from toolfold.serving.gateway.request_bodies import RequestRefused

CODE_LIFETIME_S = 600.0
SESSION_LIFETIME_S = 12 * 3_600.0
"""How long a browser stays signed in after its last request."""
MAX_CODES = 5
"""Unused codes that the program has created, and as many again that visitors have requested."""
MAX_SESSIONS = 20
MAX_USER_SESSIONS = 1_000
"""Sessions of users who see only their own activity; they end no session of an administrator."""
MAX_PAGES = 50
"""Tabs of one browser that have signed in; with more, the oldest has to sign in again."""
MAX_FAILURES = 20
"""Wrong codes and tokens within `FAILURE_WINDOW_S` after which further wrong ones are not examined."""
FAILURE_WINDOW_S = 60.0
PAGE_KEY_HEADER = "x-toolfold-page-key"
_SIGNED_OUT = "You are not signed in. Open the link that `toolfold serve` or `toolfold ui` has printed."


@dataclass(frozen=True, slots=True)
class LinkCode:
    """A one-time code for signing in that was not used yet."""

    expires: float
    is_requested: bool
    """True if a visitor who had not signed in requested the link."""


@dataclass(slots=True)
class BrowserSession:
    """Session of a browser that has signed in."""

    cookie_hash: str
    page_key_hashes: deque[str]
    """One for each tab."""
    client: GatewayClient | None
    """The client whose token was entered; None if none was needed. The session ends when the token does."""
    last_used: float
    ends: float = float("inf")
    """When the session ends, even if it is in use."""
    is_limited: bool = False
    """True if it was opened by a user who was no administrator then. It never gets more access."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Credentials that a browser gets when it signs in: a session cookie and an anti-CSRF key."""

    cookie: str
    page_key: str


class SignIn:
    """One-time codes, and the sessions of browsers that have signed in, all stored in memory only."""

    def __init__(
        self, has_token: Callable[[GatewayClient], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without sessions; `has_token` is called to check that a client's token is still valid."""
        self._has_token, self._clock = has_token, clock
        self._codes: dict[str, LinkCode] = {}
        self._sessions: dict[str, BrowserSession] = {}
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)

    def create_code(self) -> str:
        """Return a new one-time code for signing in; with more than `MAX_CODES` codes, the oldest expires."""
        while len(created := self._list_codes(is_requested=False)) >= MAX_CODES:
            del self._codes[created[0]]
        return self._add_code(is_requested=False)

    def create_requested_code(self) -> str:
        """Return a one-time code that a visitor asked for. Raises RequestRefused if too many are unused."""
        if len(self._list_codes(is_requested=True)) >= MAX_CODES:
            raise RequestRefused(
                429, f"The last {MAX_CODES} links in the terminal are still valid. Open one of them."
            )
        return self._add_code(is_requested=True)

    def _add_code(self, *, is_requested: bool) -> str:
        code = secrets.token_urlsafe(24)
        self._codes[_hash_text(code)] = LinkCode(self._clock() + CODE_LIFETIME_S, is_requested)
        return code

    def _list_codes(self, *, is_requested: bool) -> list[str]:
        """Return the hashes of valid one-time codes, oldest first; delete expired codes."""
        now = self._clock()
        self._codes = {key: each for key, each in self._codes.items() if each.expires > now}
        return [key for key, each in self._codes.items() if each.is_requested == is_requested]

    def redeem(
        self, code: str, client: GatewayClient | None = None, *, may_enter: bool = True, cookie: str = ""
    ) -> SignedIn:
        """Exchange a one-time code for the credentials of a browser session. Raises RequestRefused.

        `client` is the client whose token was entered. `may_enter` is False if the token is wrong or a
        needed one is missing; the code stays valid then. `cookie` is that of the browser's present session.
        """
        now = self._clock()
        found = self._codes.get(_hash_text(code))
        is_known = found is not None and found.expires > now
        if is_known and may_enter:  # wrong codes of others must not lock out the owner of a link
            del self._codes[_hash_text(code)]
            return self._open_session(client, now, cookie)
        if len(self._failures) == MAX_FAILURES and now - self._failures[0] < FAILURE_WINDOW_S:
            raise RequestRefused(429, "Too many attempts to sign in. Wait a minute and try again.")
        self._failures.append(now)
        if not is_known:
            raise RequestRefused(401, "This link was already used or has expired. Request a new one.")
        raise RequestRefused(
            403,
            "Enter a token that is valid and not limited to toolsets, and that belongs to an administrator or"
            " to no user: `toolfold token add NAME`.",
        )

    def open_login_session(self, client: GatewayClient, *, is_limited: bool, cookie: str = "") -> SignedIn:
        """Open the session of a browser whose user has logged in at the identity provider.

        It ends after `SESSION_LIFETIME_S`, so that changes at the provider take effect. With `is_limited`,
        it shows only what belongs to the user. `cookie` is that of the browser's present session.
        """
        now = self._clock()
        return self._open_session(client, now, cookie, ends=now + SESSION_LIFETIME_S, is_limited=is_limited)

    def _open_session(
        self,
        client: GatewayClient | None,
        now: float,
        cookie: str,
        *,
        ends: float = float("inf"),
        is_limited: bool = False,
    ) -> SignedIn:
        """Open a session, or add a tab to the browser's present session if that is of the same client.

        A browser has one cookie for all its tabs, so that a new session would end those of other tabs. The
        cookie is always a new one: whoever knows the one before has no part in the session any more.
        """
        signed_in = SignedIn(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        page_key = signed_in.page_key
        present = self.find_session(cookie)
        if present is not None and (present.client, present.is_limited) == (client, is_limited):
            self.sign_out(present)
            present.cookie_hash = _hash_text(signed_in.cookie)
            self._sessions[present.cookie_hash] = present
            present.page_key_hashes.append(_hash_text(page_key))
            present.last_used, present.ends = now, ends
            return signed_in
        session = BrowserSession(
            _hash_text(signed_in.cookie),
            deque([_hash_text(page_key)], maxlen=MAX_PAGES),
            client,
            now,
            ends,
            is_limited,
        )
        self._sessions[session.cookie_hash] = session
        limit = MAX_USER_SESSIONS if is_limited else MAX_SESSIONS
        same = [each for each in self._sessions.values() if each.is_limited == is_limited]
        if len(same) > limit:
            self.sign_out(min(same, key=lambda each: each.last_used))
        return signed_in

    def use_session(self, cookie: str, page_key: str) -> BrowserSession | None:
        """Return and extend the session of a cookie; None if it is unknown or the anti-CSRF key is wrong."""
        session = self.find_session(cookie)
        key_hash = _hash_text(page_key)
        if session is None or not any(
            secrets.compare_digest(each, key_hash) for each in session.page_key_hashes
        ):
            return None
        session.last_used = self._clock()
        return session

    def find_session(self, cookie: str) -> BrowserSession | None:
        """Return the open session of a cookie, without extending it; None if there is none.

        For pages without the page key. They must not change anything for requests of other websites.
        """
        session = self._sessions.get(_hash_text(cookie))
        return session if session is not None and self.is_open(session) else None

    def find_user(self, cookie: str) -> str:
        """Return the id of the user whose session has this cookie; empty if there is none."""
        session = self.find_session(cookie)
        return session.client.user_id if session is not None and session.client is not None else ""

    def is_open(self, session: BrowserSession) -> bool:
        """Return True if a session has not ended or expired and its token is valid. Does not extend it."""
        if self._sessions.get(session.cookie_hash) is not session:
            return False
        now = self._clock()
        is_expired = now - session.last_used > SESSION_LIFETIME_S or now > session.ends
        if is_expired or (session.client is not None and not self._has_token(session.client)):
            self.sign_out(session)
            return False
        return True

    def sign_out(self, session: BrowserSession) -> None:
        """End a browser session."""
        self._sessions.pop(session.cookie_hash, None)


def require_signed_in(sign_in: SignIn, cookie_name: str, headers: Mapping[str, str]) -> BrowserSession:
    """Return the browser session of a request. Raises RequestRefused if the browser has not signed in."""
    session = find_session(sign_in, cookie_name, headers)
    if session is None:
        raise RequestRefused(401, _SIGNED_OUT)
    return session


def find_session(sign_in: SignIn, cookie_name: str, headers: Mapping[str, str]) -> BrowserSession | None:
    """Return the browser session of a request and extend it; None if the browser has not signed in."""
    return sign_in.use_session(read_cookie(headers, cookie_name), headers.get(PAGE_KEY_HEADER, ""))


def find_full_client(policy: AccessPolicy, token: str) -> GatewayClient | None:
    """Return the client of a valid token that gives access to everything; None for any other token."""
    client = policy.find_token_client(token) if token else None
    return client if client is not None and policy.tokens.is_unlimited(client) else None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
