"""Create users for identities of an identity provider, and derive their teams from its groups."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from toolfold.state.users import Directory, Team, User, UserStore

MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Groups at the identity provider that make a user a team member or an administrator."""

    teams: Mapping[str, str] = field(default_factory=dict)
    """Name of the team for each group. Membership in these teams is updated with every login."""
    admin_groups: Collection[str] = ()
    """Groups whose members are administrators; if empty, groups do not change who is one."""


def add_missing_user(
    users: UserStore, *, issuer: str, subject: str, name: str, default_team: str = ""
) -> None:
    """Create a user for an identity of the provider if it has none yet. This is a blocking call.

    Raises UnknownAccount if the team does not exist; then no user is created.
    """

    def add(directory: Directory) -> Directory:
        if directory.find_identity(issuer, subject) is not None:
            return directory  # another process was faster
        user = User(
            secrets.token_hex(12),
            choose_name(name or subject, directory),
            issuer,
            subject,
            created=time.time(),
        )
        added = directory.with_new_user(user)
        if not default_team:
            return added
        team = added.require_team(default_team)
        return added.with_team(replace(team, members=team.members | {user.id}))

    users.edit(add)


def apply_groups(users: UserStore, user_id: str, groups: Collection[str], rules: GroupRules) -> None:
    """Update a user's teams and administrator rights from the provider's groups. This is a blocking call.

    Teams that no group is mapped to are left alone.
    """
    if not rules.teams and not rules.admin_groups:
        return

    def change(directory: Directory) -> Directory:
        user = directory.users.get(user_id)
        if user is None:
            return directory
        if rules.admin_groups:
            is_admin = not set(rules.admin_groups).isdisjoint(groups)
            directory = directory.with_user(replace(user, is_admin=is_admin))
        wanted = {team for group, team in rules.teams.items() if group in groups}
        for name in sorted(set(rules.teams.values())):
            directory = _set_membership(directory, name, user_id, is_member=name in wanted)
        return directory

    _edit_if_needed(users, change)


def choose_name(wanted: str, directory: Directory) -> str:
    """Return an unused user name similar to the requested name."""
    plain = re.sub(r"[^A-Za-z0-9_.@+-]+", "-", wanted).lstrip("_.@+-")[:MAX_NAME_CHARS] or "user"
    name, number = plain, 1
    while directory.find_user(name) is not None:
        number += 1
        name = f"{plain}-{number}"
    return name


def _set_membership(directory: Directory, name: str, user_id: str, *, is_member: bool) -> Directory:
    team = directory.teams.get(name)
    if team is None:
        if not is_member:
            return directory
        team = Team(name, created=time.time())
        directory = directory.with_new_team(team)
    members = team.members | {user_id} if is_member else team.members - {user_id}
    return directory if members == team.members else directory.with_team(replace(team, members=members))


def _edit_if_needed(users: UserStore, change: Callable[[Directory], Directory]) -> None:
    """Change users and teams only if the change has an effect, because writing locks all replicas."""
    before = users.directory()
    if change(before) != before:
        users.edit(change)
