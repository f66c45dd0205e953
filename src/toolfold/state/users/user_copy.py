"""Copy users and teams that a directory lacks, without changing those that it has."""

from __future__ import annotations

from toolfold.core.errors import ConfigError
from toolfold.state.copy_report import CopyReport
from toolfold.state.users.directory import Directory, Team, User
from toolfold.state.users.user_store import UserStore


def copy_directory(
    source: Directory, target: UserStore, *, dry_run: bool
) -> tuple[Directory, CopyReport, CopyReport]:
    """Add users and teams with their members and rules to a store; with `dry_run`, only report it.

    Returns the resulting directory, and the reports on users and teams.
    """
    result = _merge(target.directory(), source)
    if not dry_run:

        def change(directory: Directory) -> Directory:
            nonlocal result
            result = _merge(directory, source)
            return result[0]

        target.edit(change)
    return result


def _merge(directory: Directory, source: Directory) -> tuple[Directory, CopyReport, CopyReport]:
    users, teams = CopyReport("users"), CopyReport("teams")
    for user in source.users.values():
        directory = _add_user(directory, user, users)
    for team in source.teams.values():
        missing = [source.users[each].name for each in team.members - directory.users.keys()]
        if missing:
            teams.conflicts[team.name] = f"its member {min(missing)} is another user in the database"
        else:
            directory = _add_team(directory, team, teams)
    return directory, users, teams


def _add_user(directory: Directory, user: User, report: CopyReport) -> Directory:
    known = directory.users.get(user.id)
    if known is not None:
        report.note_known(user.name, is_same=known == user)
        return directory
    try:
        changed = directory.with_new_user(user)
    except ConfigError as error:
        report.conflicts[user.name] = error.problem
        return directory
    report.copied.append(user.name)
    return changed


def _add_team(directory: Directory, team: Team, report: CopyReport) -> Directory:
    known = directory.teams.get(team.name)
    if known is not None:
        report.note_known(team.name, is_same=known == team)
        return directory
    try:
        changed = directory.with_new_team(team)
    except ConfigError as error:
        report.conflicts[team.name] = error.problem
        return directory
    report.copied.append(team.name)
    return changed
