"""Sign in to the dashboard with an identity provider.

The browser is sent to the provider and back. What belongs to its login is in a cookie of this browser, so a
response that another browser started is refused. The page then exchanges a one-time code, which only the same
browser can use, for a session. Users who are not administrators see only their own activity.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.core.errors import ToolfoldError
from toolfold.mcp.setting_references import resolve_references
from toolfold.serving.gateway.browser_requests import read_cookie
from toolfold.serving.gateway.client_tokens import LOGIN_CLIENT_PREFIX, GatewayClient
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.serving.identity import InvalidToken, Issuer, IssuerUnavailable
from toolfold.serving.identity.accounts import GroupRules, add_missing_user, apply_groups
from toolfold.serving.identity.oidc_login import Identity, LoginAttempt, OidcClient
from toolfold.state.database import DatabaseError
from toolfold.state.users import User, UserStore

if TYPE_CHECKING:
    from toolfold.config import Config

log = logging.getLogger(__name__)

LOGIN_LIFETIME_S = 600
CODE_LIFETIME_S = 60.0
MAX_CODES = 100
_UNAVAILABLE = "The identity provider does not answer. Try again later, or open a link from the terminal."
_NOT_ADMITTED = (
    "You have logged in, but only users of this gateway may open the dashboard. Ask its administrator."
)


@dataclass(frozen=True, slots=True)
class _LoginCode:
    """A one-time code for a browser whose user has logged in at the identity provider."""

    browser: str
    """Hash of the browser's login cookie."""
    client: GatewayClient
    expires: float


class DashboardLogins:
    """Logins of browsers at one identity provider, for one dashboard. Used from one event loop."""

    def __init__(
        self, config: Config, users: UserStore, cookie_name: str, issuer: Issuer | None = None
    ) -> None:
        """Read the settings. Raises ConfigError if the client secret's environment variable is not set."""
        settings = config.dashboard.oidc
        self._settings, self._users = settings, users
        self.url = settings.url.rstrip("/") + "/"
        self._client = OidcClient(
            issuer or Issuer(settings.issuer),
            client_id=settings.client_id,
            client_secret=resolve_references(settings.client_secret, config.environment),
            redirect_uri=f"{self.url}oidc/callback",
            scopes=settings.scopes,
            groups_claim=settings.groups_claim,
        )
        self._rules = GroupRules(settings.teams, settings.admin_groups)
        self._cookie_name = f"{cookie_name}_login"
        self._key = secrets.token_bytes(32)
        self._codes: dict[str, _LoginCode] = {}

    @property
    def cookie_attributes(self) -> str:
        """Return the cookie attribute `Secure` if the dashboard is served over https."""
        return "; Secure" if self.url.startswith("https:") else ""

    async def start(self) -> tuple[str, str]:
        """Return the URL of the provider's login page, and the cookie to set. Raises RequestRefused."""
        attempt = LoginAttempt()
        try:
            url = await self._client.make_login_url(attempt)
        except IssuerUnavailable as error:
            log.warning("a login to the dashboard could not start: %s", error)
            raise RequestRefused(503, _UNAVAILABLE) from None
        return url, self._make_cookie(self._seal(attempt), LOGIN_LIFETIME_S)

    async def finish(self, headers: Mapping[str, str], response: Mapping[str, str]) -> str:
        """Check the provider's response, and return the URL of the dashboard page with a one-time code.

        Raises RequestRefused if the login is not valid or the person may not use the dashboard.
        """
        cookie = read_cookie(headers, self._cookie_name)
        attempt = self._unseal(cookie)
        if attempt is None:
            raise RequestRefused(403, "This login was not started in this browser, or it took too long.")
        try:
            identity = await self._client.finish(attempt, response)
            user = await asyncio.to_thread(self._admit, identity)
        except InvalidToken as error:
            log.warning("a login to the dashboard was refused: %s", error)
            raise RequestRefused(403, f"The login was refused: {error}.") from None
        except IssuerUnavailable as error:
            log.warning("a login to the dashboard could not be checked: %s", error)
            raise RequestRefused(503, _UNAVAILABLE) from None
        except (ToolfoldError, DatabaseError, OSError) as error:
            log.error("the users cannot be read, so a login to the dashboard was refused: %s", error)
            raise RequestRefused(503, "Users cannot be checked now. Try again later.") from None
        if user is None:
            who = f"(issuer {identity.issuer}, subject {identity.subject!r})"
            log.warning("a login to the dashboard was refused: %s %s", self._explain_refusal(identity), who)
            raise RequestRefused(403, _NOT_ADMITTED)
        return f"{urlsplit(self.url).path}#login={self._add_code(cookie, user)}"

    def redeem(self, code: str, headers: Mapping[str, str]) -> GatewayClient:
        """Return the client for a one-time code that was issued to this browser. Raises RequestRefused."""
        found = self._codes.pop(_digest(code), None)
        browser = _digest(read_cookie(headers, self._cookie_name))
        if found is None or found.expires < time.monotonic() or found.browser != browser:
            raise RequestRefused(401, "This login has expired. Log in again.")
        return found.client

    def is_valid(self, client: GatewayClient) -> bool:
        """Return True if the user of a session still exists and is not disabled."""
        return self._find_user(client) is not None

    def is_admin(self, client: GatewayClient) -> bool:
        """Return True if the user of a session is an administrator now."""
        user = self._find_user(client)
        return user is not None and user.is_admin

    def _find_user(self, client: GatewayClient) -> User | None:
        try:
            return self._users.directory().find_active(client.user_id)
        except (ToolfoldError, DatabaseError):
            return None

    async def make_logout_url(self) -> str:
        """Return the URL for logging out of the identity provider; empty if it is unknown."""
        try:
            return await self._client.make_logout_url(self.url)
        except IssuerUnavailable:
            return ""

    def clear_cookie(self) -> str:
        """Return the cookie that deletes the browser's login cookie."""
        return self._make_cookie("", 0)

    def _admit(self, identity: Identity) -> User | None:
        """Create or update the user who has logged in; return None if this user may not use the dashboard."""
        if self._settings.create_users:
            add_missing_user(
                self._users, issuer=identity.issuer, subject=identity.subject, name=identity.name
            )
        user = self._users.find_identity(identity.issuer, identity.subject)
        if user is None or user.is_disabled:
            return None
        apply_groups(self._users, user.id, identity.groups, self._rules)
        return self._users.directory().find_active(user.id)

    def _explain_refusal(self, identity: Identity) -> str:
        """Return the reason why a person who has logged in may not use the dashboard, for the log."""
        user = self._users.find_identity(identity.issuer, identity.subject)
        if user is None:
            return "no user has this identity"
        return f"the user {user.name!r} is disabled"

    def _add_code(self, cookie: str, user: User) -> str:
        now = time.monotonic()
        self._codes = {key: each for key, each in self._codes.items() if each.expires > now}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(32)
        client = GatewayClient(
            LOGIN_CLIENT_PREFIX + user.name, created=user.created, user_id=user.id, is_login=True
        )
        self._codes[_digest(code)] = _LoginCode(_digest(cookie), client, now + CODE_LIFETIME_S)
        return code

    def _make_cookie(self, value: str, max_age: int) -> str:
        # Lax, because the provider's redirect comes from another site.
        path = urlsplit(self.url).path
        return (
            f"{self._cookie_name}={value}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={max_age}"
            f"{self.cookie_attributes}"
        )

    def _seal(self, attempt: LoginAttempt) -> str:
        """Return the secrets of a login as the value of a signed cookie that expires."""
        expires = int(time.time()) + LOGIN_LIFETIME_S
        content = f"{expires}.{attempt.state}.{attempt.nonce}.{attempt.verifier}"
        return f"{content}.{self._sign(content)}"

    def _unseal(self, value: str) -> LoginAttempt | None:
        content, _, signature = value.rpartition(".")
        if not hmac.compare_digest(self._sign(content).encode(), signature.encode()):
            return None
        expires, state, nonce, verifier = content.split(".")
        return LoginAttempt(state, nonce, verifier) if int(expires) > time.time() else None

    def _sign(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), hashlib.sha256).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
