"""The users page: users and teams of the gateway, what they may use and how much they use.

A change by which somebody may use more is confirmed on a page of its own, like a new token. Rules and limits
are shown here and changed on the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolfold.core.types import GrantLimit, Json
from toolfold.serving.dashboard.confirmations import ProposedChange
from toolfold.serving.dashboard.texts import show_exact_line, show_name
from toolfold.serving.gateway.request_bodies import RequestRefused
from toolfold.state.users.access_changes import describe_access_changes
from toolfold.state.users.quotas import team_account, user_account

if TYPE_CHECKING:
    from toolfold.serving.gateway.client_tokens import TokenStore
    from toolfold.state.store.usage import UsageStore
    from toolfold.state.users import Team, User

MAX_SHOWN = 500
MAX_RULES_SHOWN = 50
MAX_CONFIRMED_CHARS = 100_000
USAGE_S = 30 * 86_400.0
USERS_PAGE = "/ui/users"


class UserAdmin:
    """Shows and changes users and teams. Methods block: call them in a thread."""

    def __init__(self, tokens: TokenStore, usage: UsageStore) -> None:
        self._tokens, self._users, self._usage = tokens, tokens.users, usage

    def list_users(self) -> Json:
        """Return the users with their teams, tokens, rights and usage, and the teams."""
        directory = self._users.directory()
        usage = self._usage.summarize_users(time.time() - USAGE_S)
        clients = self._tokens.list_clients()
        users = sorted(directory.users.values(), key=lambda each: each.name)
        return {
            "users": [
                {
                    "name": show_name(each.name),
                    "is_admin": each.is_admin,
                    "is_disabled": each.is_disabled,
                    "has_login": bool(each.subject),
                    "created": each.created,
                    "teams": [show_name(team.name) for team in directory.list_teams(each.id)],
                    "tokens": [show_name(client.name) for client in clients if client.user_id == each.id],
                    "may_use": _describe_limit(directory.find_limit(each.id)),
                    "limits": self._list_limits(user_account(each.id), each),
                    "usage": usage.get(each.id),
                }
                for each in users[:MAX_SHOWN]
            ],
            "teams": [
                {
                    "name": show_name(each.name),
                    "members": [show_name(one.name) for one in users if one.id in each.members],
                    "may_use": _describe_limit(GrantLimit(each.allowed or None, each.denied)),
                    "limits": self._list_limits(team_account(each.name), each),
                }
                for _, each in sorted(directory.teams.items())[:MAX_SHOWN]
            ],
            "total": len(users),
        }

    def _list_limits(self, account: str, owner: User | Team) -> list[Json]:
        if self._tokens.quotas is None or not owner.limits:
            return []
        return [
            {"meter": meter, "used": used, "limit": limit}
            for meter, used, limit in self._tokens.quotas.describe(account, owner.limits)
        ]

    def add(self, body: Mapping[str, Any]) -> ProposedChange:
        """Propose a new user. Raises RequestRefused."""
        name, is_admin = _read_text(body, "name"), body.get("is_admin") is True
        rights = "everything, and manages users and settings" if is_admin else "what the rules allow"
        details = {"Name of the user": show_exact_line(name, MAX_CONFIRMED_CHARS), "May use": rights}

        def create() -> str:
            self._users.add_user(name, is_admin=is_admin)
            return ""

        return ProposedChange("Add a user?", details, "Add the user", create, USERS_PAGE)

    def change(self, body: Mapping[str, Any]) -> Json | ProposedChange:
        """Change or remove a user, or propose it if the user may do more after it. Raises RequestRefused."""
        name, change = _read_text(body, "name"), _read_text(body, "change")
        match change:
            case "disable":
                self._users.set_disabled(name, True)
            case "no-admin":
                self._users.change_user(name, lambda user: replace(user, is_admin=False))
            case "remove":
                self._users.remove_user(name)
            case "enable":
                return self._propose(
                    f"Enable the user {name}?",
                    {"Its tokens and logins": "are accepted again"},
                    lambda: self._users.set_disabled(name, False),
                )
            case "admin":
                return self._propose(
                    f"Make {name} an administrator?",
                    {"An administrator": "sees what all users do, and changes users, servers and settings"},
                    lambda: self._users.change_user(name, lambda user: replace(user, is_admin=True)),
                )
            case _:
                raise RequestRefused(400, "change must be disable, enable, admin, no-admin or remove.")
        return self.list_users()

    def change_team(self, body: Mapping[str, Any]) -> Json | ProposedChange:
        """Add an empty team, or propose to remove it or to change its members. Raises RequestRefused."""
        team, change, user = _read_text(body, "team"), _read_text(body, "change"), str(body.get("user") or "")
        if change == "add":
            self._users.add_team(team)
            return self.list_users()
        if change not in ("join", "leave", "remove"):
            raise RequestRefused(400, "change must be add, remove, join or leave.")
        shown = self._describe_team_change(team, change, user)

        def work() -> None:
            if self._describe_team_change(team, change, user) != shown:
                raise RequestRefused(409, "Users, teams or rules have changed since. Repeat the change.")
            if change == "remove":
                self._users.remove_team(team)
            elif change == "join":
                self._users.join_team(team, user)
            else:
                self._users.leave_team(team, user)

        title = {
            "remove": f"Remove the team {team}?",
            "join": f"Add {user} to the team {team}?",
            "leave": f"Remove {user} from the team {team}?",
        }[change]
        return self._propose(title, {"What changes": shown}, work)

    def _describe_team_change(self, team: str, change: str, user: str) -> str:
        """Return what users may use more or less after a team is removed or a user joins or leaves it."""
        before = self._users.directory()
        found = before.require_team(team)
        if change == "remove":
            after = before.without_team(team)
        else:
            member = {before.require_user(user).id}
            members = found.members | member if change == "join" else found.members - member
            after = before.with_team(replace(found, members=members))
        changes = [f"{name} {'; '.join(texts)}." for name, texts in describe_access_changes(before, after)]
        changes += ["The limits of the team are deleted too."] if change == "remove" and found.limits else []
        return " ".join(changes) or "Nobody may use more or less."

    def _propose(self, title: str, details: Mapping[str, str], work: Callable[[], object]) -> ProposedChange:
        def apply() -> str:
            work()
            return ""

        shown = {name: show_exact_line(each, MAX_CONFIRMED_CHARS) for name, each in details.items()}
        return ProposedChange(show_name(title), shown, "Confirm", apply, USERS_PAGE)


def _describe_limit(limit: GrantLimit) -> Json:
    """Return the rules that allow, None if everything is allowed, and the rules that deny."""
    allowed = None if limit.enabled is None else [show_name(each) for each in limit.enabled[:MAX_RULES_SHOWN]]
    return {"allowed": allowed, "denied": [show_name(each) for each in limit.disabled[:MAX_RULES_SHOWN]]}


def _read_text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestRefused(400, f"The request needs the text {name!r}.")
    return value
