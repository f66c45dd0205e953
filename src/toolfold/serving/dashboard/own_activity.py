"""The page for users who are not administrators: shows their own calls, tokens, limits and usage.

Everything is looked up by the id of the user who has signed in; no request can name another one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from toolfold.core.types import Json
from toolfold.serving.dashboard.texts import show_name
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.state.users.quotas import user_account

if TYPE_CHECKING:
    from toolfold.serving.gateway.client_tokens import GatewayClient, TokenStore
    from toolfold.state.store.usage import UsageStore
    from toolfold.state.users import User

MAX_CALLS = 200
MAX_TOKENS = 200
DAY_S = 86_400.0
_TOTALS = ("calls", "errors", "refused", "searches", "requests", "tokens", "cost")


class OwnActivity:
    """Describes the activity of the user who has signed in. Methods block: call them in a thread."""

    def __init__(self, tokens: TokenStore, usage: UsageStore) -> None:
        self._tokens, self._usage = tokens, usage

    def describe(self, client: GatewayClient | None) -> Json:
        """Return the user's own calls, tokens, teams, limits and usage. Raises RequestRefused."""
        directory = self._tokens.users.directory()
        user = directory.find_active(client.user_id) if client is not None and client.user_id else None
        if user is None:
            raise RequestRefused(404, "This session belongs to no user, so it has no activity to show.")
        now = time.time()
        return {
            "user": show_name(user.name),
            "teams": [show_name(each.name) for each in directory.list_teams(user.id)],
            "tokens": self._list_tokens(user),
            "limits": self._list_limits(user),
            "day": self._summarize(user, now - DAY_S),
            "month": self._summarize(user, now - 30 * DAY_S),
            "calls": [
                {
                    **each,
                    "name": show_name(each["name"]),
                    "ok": bool(each["ok"]),
                    "refused": bool(each["refused"]),
                }
                for each in self._usage.list_of_user(user.id, MAX_CALLS)
            ],
        }

    def _list_tokens(self, user: User) -> list[Json]:
        own = [each for each in self._tokens.list_clients() if each.user_id == user.id]
        return [
            {
                "name": each.name,
                "created": each.created,
                "toolsets": None if each.toolsets is None else list(each.toolsets),
            }
            for each in own[:MAX_TOKENS]
        ]

    def _list_limits(self, user: User) -> list[Json]:
        """Return the user's own limits, without team limits, which would reveal what other members use."""
        if self._tokens.quotas is None:
            return []
        return [
            {"meter": meter, "used": used, "limit": limit}
            for meter, used, limit in self._tokens.quotas.describe(user_account(user.id), user.limits)
        ]

    def _summarize(self, user: User, since: float) -> Json:
        found = self._usage.summarize_user(user.id, since)
        return {name: found[name] for name in _TOTALS}
