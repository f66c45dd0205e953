"""Who may use the dashboard: one-time links, browser sessions, and the checks of every request.

A link contains a code that is valid once and for a few minutes. Whoever opens it gets a cookie and a page
key. Both are needed for every request: a browser sends the cookie to other ports of the same host too, but
only the dashboard's own page can read the page key. A key in a header also protects against requests that
other pages make.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from toolfold.gateway.http_app import AccessPolicy
from toolfold.gateway.request_bodies import RequestRefused

CODE_LIFETIME_S = 600.0
SESSION_LIFETIME_S = 12 * 3_600.0
"""How long a browser stays signed in after its last request."""
MAX_CODES = 5
MAX_SESSIONS = 20
MAX_FAILURES = 20
"""Wrong codes and tokens within `FAILURE_WINDOW_S` after which further attempts are refused."""
FAILURE_WINDOW_S = 60.0
PAGE_KEY_HEADER = "x-toolfold-page-key"
_SAME_ORIGIN = (None, "same-origin", "none")
_SIGNED_OUT = "You are not signed in. Open the link that `toolfold serve` or `toolfold ui` has printed."


@dataclass(slots=True)
class BrowserSession:
    """A browser that has signed in."""

    page_key_hash: str
    last_used: float


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The credentials that a browser gets once, when it signs in."""

    cookie: str
    page_key: str


class SignIn:
    """One-time codes and the browsers that have signed in. Everything is lost when the program ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, BrowserSession] = {}
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)

    def create_code(self) -> str:
        """Return a new one-time code; of more than `MAX_CODES` unused ones, the oldest expires."""
        code = secrets.token_urlsafe(24)
        self._codes[_hash_text(code)] = self._clock() + CODE_LIFETIME_S
        while len(self._codes) > MAX_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def redeem(self, code: str, *, may_enter: bool = True) -> SignedIn:
        """Exchange a code for the credentials of a new browser session. Raises RequestRefused.

        `may_enter` is False if the request lacks a token that is needed; the code stays valid then.
        """
        now = self._clock()
        if len(self._failures) == MAX_FAILURES and now - self._failures[0] < FAILURE_WINDOW_S:
            raise RequestRefused(429, "Too many attempts to sign in. Wait a minute and try again.")
        known = self._codes.get(_hash_text(code), 0.0) > now
        if not known or not may_enter:
            self._failures.append(now)
        if not known:
            raise RequestRefused(401, "This link was already used or has expired. Request a new one.")
        if not may_enter:
            raise RequestRefused(
                403, "Enter a token that is not limited to toolsets: `toolfold token add NAME`."
            )
        del self._codes[_hash_text(code)]
        return self._open_session(now)

    def _open_session(self, now: float) -> SignedIn:
        signed_in = SignedIn(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._sessions[_hash_text(signed_in.cookie)] = BrowserSession(_hash_text(signed_in.page_key), now)
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].last_used)]
        return signed_in

    def is_signed_in(self, cookie: str, page_key: str) -> bool:
        """Return True if cookie and page key belong to the same browser session, which is then extended."""
        now = self._clock()
        session = self._sessions.get(_hash_text(cookie))
        if session is None or now - session.last_used > SESSION_LIFETIME_S:
            self._sessions.pop(_hash_text(cookie), None)
            return False
        if not secrets.compare_digest(session.page_key_hash, _hash_text(page_key)):
            return False
        session.last_used = now
        return True

    def sign_out(self, cookie: str) -> None:
        """End a browser session."""
        self._sessions.pop(_hash_text(cookie), None)


def require_own_host(policy: AccessPolicy, headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if the request is for another host, or another web page made it."""
    host = headers.get("host", "")
    if refusal := policy.find_refusal({"host": host}):
        raise RequestRefused(*refusal)
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise RequestRefused(403, "Requests from other web pages are refused.")
    if headers.get("sec-fetch-site") not in _SAME_ORIGIN and headers.get("sec-fetch-mode") != "navigate":
        raise RequestRefused(403, "Requests from other web pages are refused.")


def require_own_page(method: str, headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if a request that changes something does not say that the page made it."""
    if method == "POST" and "origin" not in headers:
        raise RequestRefused(403, "A request that changes something must have the header Origin.")


def require_signed_in(sign_in: SignIn, cookie_name: str, headers: Mapping[str, str]) -> str:
    """Return the request's session cookie. Raises RequestRefused if the browser has not signed in."""
    cookie = read_cookie(headers, cookie_name)
    if not sign_in.is_signed_in(cookie, headers.get(PAGE_KEY_HEADER, "")):
        raise RequestRefused(401, _SIGNED_OUT)
    return cookie


def read_cookie(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie; empty if the request has none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def has_full_token(policy: AccessPolicy, token: str) -> bool:
    """Return True if a token is valid and may use all toolsets."""
    client = policy.tokens.find(token) if token else None
    return client is not None and client.toolsets is None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
