"""Changes that the user confirms on a page of their own, because they start or admit a program.

The dashboard's page can only propose such a change. The confirmation page shows exactly what will be done,
and contains a token that is needed to do it, once. It has no scripts, and scripts of other pages cannot read
it: it is sent only to a browser that opens it as a document, cannot be framed, and is separated from the
window that opened it. So a script that got into the dashboard's origin cannot confirm.
"""

from __future__ import annotations

import html
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolfold.serving.gateway.request_bodies import RequestRefused

CONFIRMATION_LIFETIME_S = 300.0
MAX_PENDING = 20
"""Changes that wait for a confirmation; with more, the oldest expires."""
PAGE_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With `no-referrer` browsers send the form with `Origin: null`, which is refused.
    (b"referrer-policy", b"same-origin"),
    # Another value than that of the dashboard's page, so that neither window can access the other.
    (b"cross-origin-opener-policy", b"same-origin-allow-popups"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change that takes place when the user confirms it."""

    title: str
    details: Mapping[str, str]
    """What exactly will be done, by its name; deceptive characters must be visible."""
    button: str
    apply: Callable[[], str]
    """Makes the change and returns a text that is shown once, empty if there is none. Blocks.

    Raises RequestRefused or ToolfoldError.
    """
    back: str
    """The page of the dashboard that follows."""


@dataclass(frozen=True, slots=True)
class _Pending:
    change: ProposedChange
    session: str
    expires: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


class Confirmations:
    """Proposed changes that wait for a confirmation, stored in memory only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, _Pending] = {}

    def add(self, change: ProposedChange, session: str) -> str:
        """Store a change that a browser session proposes; return the id of its confirmation page."""
        while len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        found = secrets.token_urlsafe(16)
        self._pending[found] = _Pending(change, session, self._clock() + CONFIRMATION_LIFETIME_S)
        return found

    def render_page(self, confirmation_id: str, session: str) -> str:
        """Return the confirmation page of a change. Raises RequestRefused."""
        pending = self._find(confirmation_id, session)
        change = pending.change
        details = "".join(
            f'<p class="muted">{html.escape(name)}</p><pre class="code wrap">{html.escape(value)}</pre>'
            for name, value in change.details.items()
        )
        return render_page(
            change.title,
            f'{details}<form method="post"><input type="hidden" name="token" value="{pending.token}">'
            '<div class="buttons">'
            f'<button type="submit" class="primary">{html.escape(change.button)}</button>'
            f'<a class="button" href="{html.escape(change.back)}">Cancel</a></div></form>',
        )

    def take(self, confirmation_id: str, session: str, token: str) -> ProposedChange:
        """Remove and return a change that the user has confirmed. Raises RequestRefused."""
        pending = self._find(confirmation_id, session)
        del self._pending[confirmation_id]
        if not secrets.compare_digest(pending.token.encode(), token.encode()):
            raise RequestRefused(403, "Nothing was changed: the confirmation was not sent by its own page.")
        return pending.change

    def _find(self, confirmation_id: str, session: str) -> _Pending:
        pending = self._pending.get(confirmation_id)
        if pending is None or pending.expires <= self._clock() or pending.session != session:
            raise RequestRefused(
                404, "This confirmation was already used or has expired. Repeat the change in the dashboard."
            )
        return pending


def require_document_request(headers: Mapping[str, str]) -> None:
    """Raise RequestRefused unless a browser opens the page in a tab; a script could read it otherwise."""
    if headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document":
        raise RequestRefused(
            403,
            "Nothing was changed: a change can be confirmed only in a current browser, over HTTPS or on this"
            " machine. Otherwise use the command line, for example `toolfold mcp add`.",
        )


def render_result(text: str, back: str) -> str:
    """Return the page that shows the text of a confirmed change."""
    shown = f'<pre class="code wrap">{html.escape(text)}</pre>'
    return render_page("Done", f'{shown}<p><a class="button" href="{html.escape(back)}">Back</a></p>')


def render_page(title: str, body: str) -> str:
    """Return an HTML page without scripts, in the style of the dashboard; `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)} · Toolfold</title>"
        '<link rel="stylesheet" href="/ui/app.css"></head>'
        f'<body><main class="sign-in"><div class="card"><h1>{html.escape(title)}</h1>{body}</div></main>'
        "</body></html>"
    )
