"""Store users and teams: in a private file, or in the database shared by replicas.

Both load everything into an immutable `Directory`, so that looking up a user needs no input or output. A
change is a function from one directory to the next, which runs while no other process can change it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from toolfold.config.atomic import lock_directory
from toolfold.config.file_watch import watch_files
from toolfold.config.fingerprints import ABSENT, fingerprint_bytes
from toolfold.config.record import SettingsRecord, write_settings
from toolfold.core.errors import ConfigError
from toolfold.core.types import USER_LEARNER_PREFIX, read_json
from toolfold.state.database import DatabaseUnavailable, SharedCopy
from toolfold.state.users.directory import (
    MAX_USERS,
    Directory,
    Team,
    User,
    team_from_json,
    team_to_json,
    user_from_json,
    user_to_json,
)

if TYPE_CHECKING:
    from toolfold.state.database import Database, RowCursor

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 16_000_000
USERS_FILE = "users.json"
TOPIC = "users"
"""Topic of the database's notices that users or teams have changed."""

Change = Callable[[Directory], Directory]
Value = TypeVar("Value")


class UserStore(ABC):
    """Users and teams of a gateway and all its replicas. Thread-safe."""

    def __init__(self) -> None:
        self.on_user_removed: Callable[[User], None] = lambda _user: None
        """Called after a user was removed, to delete what belongs to the user elsewhere."""
        self.on_team_removed: Callable[[str], None] = lambda _name: None
        """Called with the name of a team after it was removed."""

    @abstractmethod
    def directory(self) -> Directory:
        """Return all current users and teams, without waiting for a database.

        Raises DatabaseUnavailable if changes of other replicas may not be known here.
        """

    @abstractmethod
    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function in a separate thread soon after users or teams have changed.

        Returns a function that ends that.
        """

    @abstractmethod
    def edit(self, change: Change) -> Directory:
        """Apply a function to the current users and teams, store its result and return it.

        The function may run twice. If it raises, nothing is changed.
        """

    def add_user(self, name: str, *, issuer: str = "", subject: str = "", is_admin: bool = False) -> User:
        """Create a user. Raises ConfigError if the name or external identity is invalid or already used."""
        user = User(secrets.token_hex(12), name, issuer, subject, is_admin, created=time.time())
        self.edit(lambda directory: directory.with_new_user(user))
        return user

    def name_user(self, user_id: str) -> str:
        """Return the name of the user with this id; empty if there is none."""
        user = self.directory().users.get(user_id) if user_id else None
        return "" if user is None else user.name

    def find_identity(self, issuer: str, subject: str) -> User | None:
        """Return the user with this identity at an identity provider, even if the user is disabled."""
        return self.directory().find_identity(issuer, subject)

    def find_sharing(self, learner: str) -> frozenset[str]:
        """Return the learner ids of team members whose learned messages this user's tool search also uses."""
        try:
            found = self.directory().list_sharing(learner.removeprefix(USER_LEARNER_PREFIX))
        except (DatabaseUnavailable, ConfigError):  # nothing is shared if that may have been turned off
            return frozenset()
        return frozenset(USER_LEARNER_PREFIX + each for each in found)

    def change_user(self, name: str, change: Callable[[User], User]) -> User:
        """Apply a function to a user and store the result. Raises UnknownAccount and ConfigError."""
        after = self.edit(lambda directory: directory.with_user(change(directory.require_user(name))))
        return after.require_user(name)

    def set_disabled(self, name: str, is_disabled: bool) -> User:
        """Disable or enable a user; tokens of a disabled user are refused."""
        return self.change_user(name, lambda user: replace(user, is_disabled=is_disabled))

    def remove_user(self, name: str) -> None:
        """Remove a user, its team memberships and its data. Raises UnknownAccount.

        Raises ToolfoldError if the user was removed and something that belongs to it was not.
        """
        removed: list[User] = []

        def remove(directory: Directory) -> Directory:
            removed[:] = [directory.require_user(name)]
            return directory.without_user(removed[0].id)

        self.edit(remove)
        self.on_user_removed(removed[0])

    def add_team(self, name: str, *, share_learned: bool = False) -> Team:
        """Create a team without members. Raises ConfigError if the name is invalid or already used."""
        team = Team(name, share_learned=share_learned, created=time.time())
        self.edit(lambda directory: directory.with_new_team(team))
        return team

    def change_team(self, name: str, change: Callable[[Team], Team]) -> Team:
        """Apply a function to a team and store the result. Raises UnknownAccount."""
        after = self.edit(lambda directory: directory.with_team(change(directory.require_team(name))))
        return after.require_team(name)

    def remove_team(self, name: str) -> None:
        """Remove a team without removing its members. Raises UnknownAccount."""
        self.edit(lambda directory: directory.without_team(directory.require_team(name).name))
        self.on_team_removed(name)

    def join_team(self, team: str, user: str) -> None:
        """Add a user to a team. Raises UnknownAccount."""
        self._change_members(team, user, lambda members, user_id: members | {user_id})

    def leave_team(self, team: str, user: str) -> None:
        """Remove a user from a team. Raises UnknownAccount, or ConfigError if the user is not a member."""

        def remove(members: frozenset[str], user_id: str) -> frozenset[str]:
            if user_id not in members:
                raise ConfigError(f"{user!r} is not a member of the team {team!r}")
            return members - {user_id}

        self._change_members(team, user, remove)

    def _change_members(
        self, team: str, user: str, change: Callable[[frozenset[str], str], frozenset[str]]
    ) -> None:
        def edit(directory: Directory) -> Directory:
            found, user_id = directory.require_team(team), directory.require_user(user).id
            return directory.with_team(replace(found, members=change(found.members, user_id)))

        self.edit(edit)


class FileUserStore(UserStore):
    """Users and teams of one machine's gateway, in a file; rejects changes made by other programs."""

    def __init__(
        self, file: Path, record: SettingsRecord | None = None, *, denies_by_default: bool = False
    ) -> None:
        """Create a store in a file; `record` lists the changes of the file made by Toolfold.

        With `denies_by_default`, users may use nothing that no rule allows.
        """
        super().__init__()
        self._denies_by_default = denies_by_default
        self._file, self._record = file, record
        self._lock = threading.Lock()
        self._signature: tuple[int, int] | None = None
        self._accepted: tuple[str, int, Directory] | None = None
        """Fingerprint and content of the last accepted state, and the last recorded change before it."""

    def directory(self) -> Directory:
        signature: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            found = self._file.stat()
            signature = found.st_mtime_ns, found.st_ino
        with self._lock:
            if self._accepted is None or signature != self._signature:
                self._accepted = self._reload()
                self._signature = signature
            return self._accepted[2]

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        return watch_files([self._file], callback)

    def edit(self, change: Change) -> Directory:
        with lock_directory(self._file.parent):
            before = self._parse(self._read_content())
            after = change(before)
            if after != before:
                content = (json.dumps(_directory_to_json(after), indent=1, sort_keys=True) + "\n").encode()
                if len(content) > MAX_FILE_BYTES:
                    raise ConfigError(
                        f"the file with users and teams would be larger than {MAX_FILE_BYTES:,} bytes, which "
                        "is the limit",
                        file=str(self._file),
                        hint="remove users or teams, or store them in a database: set `store` to "
                        "a postgresql:// URL",
                    )
                write_settings(self._file, content, self._record, mode=0o600)
        return after

    def _reload(self) -> tuple[str, int, Directory]:
        last_step = 0 if self._record is None else self._record.last_step()
        content = self._read_content()
        fingerprint = ABSENT if content is None else fingerprint_bytes(content)
        before = self._accepted
        if (
            before is None
            or self._record is None
            or self._record.is_own_change(self._file, before[0], fingerprint, since=before[1])
        ):
            return fingerprint, last_step, self._parse(content)
        log.error("%s was changed by another program: the change is ignored", self._file)
        return before

    def _parse(self, content: bytes | None) -> Directory:
        return replace(_parse_directory(content, self._file), denies_by_default=self._denies_by_default)

    def _read_content(self) -> bytes | None:
        """Return the content of the users file; None if the file does not exist."""
        try:
            with self._file.open("rb") as stream:
                content = stream.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable_error(self._file, error) from None
        if len(content) > MAX_FILE_BYTES:
            raise _unreadable_error(self._file, f"it has more than {MAX_FILE_BYTES:,} bytes")
        return content


class SharedUserStore(UserStore):
    """Users and teams of all replicas, in a database.

    They are in memory and follow changes of other replicas. While the database cannot be reached, the last
    known ones are used for a limited time.
    """

    def __init__(self, database: Database, *, denies_by_default: bool = False) -> None:
        """Read users and teams from the database. Raises DatabaseError.

        With `denies_by_default`, users may use nothing that no rule allows.
        """
        super().__init__()
        self._database = database
        self._denies_by_default = denies_by_default
        self._copy = SharedCopy(database, TOPIC, lambda: database.run(self._load), "users")

    def directory(self) -> Directory:
        return self._copy.require_recent()

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._database.on_change(TOPIC, callback)  # called after the copy was updated

    def edit(self, change: Change) -> Directory:
        def run(cursor: RowCursor) -> Directory:
            cursor.execute("LOCK TABLE users, teams, team_members IN SHARE ROW EXCLUSIVE MODE")
            before = self._load(cursor)
            after = change(before)
            _write_users(cursor, before.users, after.users)
            _write_teams(cursor, before.teams, after.teams)
            return after

        after = self._database.run(run)
        self._copy.reload()
        return after

    def _load(self, cursor: RowCursor) -> Directory:
        return replace(_load_directory(cursor), denies_by_default=self._denies_by_default)


def _directory_to_json(directory: Directory) -> dict[str, object]:
    return {
        "users": {key: user_to_json(each) for key, each in directory.users.items()},
        "teams": {key: team_to_json(each) for key, each in directory.teams.items()},
    }


def _parse_directory(content: bytes | None, file: Path) -> Directory:
    if content is None:
        return Directory()
    try:
        value = read_json(content.decode("utf-8"))
        users = {key: user_from_json(key, each) for key, each in value["users"].items()}
        teams = {key: team_from_json(key, each) for key, each in value["teams"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable_error(file, error) from None
    return Directory(users, teams)


def _unreadable_error(file: Path, why: object) -> ConfigError:
    return ConfigError(
        f"the file with users and teams cannot be read: {why}",
        file=str(file),
        hint="repair the file, or delete it and create users with `toolfold user add NAME`",
    )


def _load_directory(cursor: RowCursor) -> Directory:
    """Read all users and teams, except damaged ones and members of damaged teams, whose rules are unknown."""
    cursor.execute("SELECT * FROM users LIMIT %s", (MAX_USERS,))
    users = {
        row["id"]: user for row in cursor.fetchall() if (user := _parse_row(row["id"], row, user_from_json))
    }
    members: dict[str, list[str]] = {}
    cursor.execute("SELECT team, user_id FROM team_members")
    for row in cursor.fetchall():
        members.setdefault(row["team"], []).append(row["user_id"])
    cursor.execute("SELECT * FROM teams")
    teams: dict[str, Team] = {}
    for row in cursor.fetchall():
        own = members.get(row["name"], [])
        if team := _parse_row(row["name"], {**row, "members": own}, team_from_json):
            teams[row["name"]] = team
        else:
            users = {key: user for key, user in users.items() if key not in own}
    return Directory(users, teams)


def _parse_row(
    key: str, row: Mapping[str, Any], parse: Callable[[str, Mapping[str, Any]], Value]
) -> Value | None:
    """Return the user or team of a row; None if it is damaged, so that nobody else is affected."""
    try:
        return parse(key, _read_row(row))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.error("the user or team %r is damaged in the database, and is refused: %s", row["name"], error)
        return None


def _read_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "limits": read_json(row["limits"])}


def _write_users(cursor: RowCursor, before: Mapping[str, User], after: Mapping[str, User]) -> None:
    for key in before.keys() - after.keys():
        cursor.execute("DELETE FROM users WHERE id = %s", (key,))
    for key, user in after.items():
        if before.get(key) != user:
            cursor.execute(
                "INSERT INTO users (id, name, issuer, subject, admin, disabled, created, allowed, denied,"
                " limits) VALUES (%(id)s, %(name)s, %(issuer)s, %(subject)s, %(admin)s, %(disabled)s,"
                " %(created)s, %(allowed)s, %(denied)s, %(limits)s)"
                " ON CONFLICT (id) DO UPDATE SET name = excluded.name,"
                " issuer = excluded.issuer, subject = excluded.subject, admin = excluded.admin,"
                " disabled = excluded.disabled, allowed = excluded.allowed, denied = excluded.denied,"
                " limits = excluded.limits",
                {"id": key, **user_to_json(user), "limits": json.dumps(dict(user.limits))},
            )


def _write_teams(cursor: RowCursor, before: Mapping[str, Team], after: Mapping[str, Team]) -> None:
    for name in before.keys() - after.keys():
        cursor.execute("DELETE FROM teams WHERE name = %s", (name,))
    for name, team in after.items():
        known = before.get(name, Team(""))
        if known != team:
            cursor.execute(
                "INSERT INTO teams (name, share_learned, created, allowed, denied, limits) VALUES (%(name)s,"
                " %(share_learned)s, %(created)s, %(allowed)s, %(denied)s, %(limits)s)"
                " ON CONFLICT (name) DO UPDATE SET share_learned = excluded.share_learned,"
                " allowed = excluded.allowed, denied = excluded.denied, limits = excluded.limits",
                {"name": name, **team_to_json(team), "limits": json.dumps(dict(team.limits))},
            )
        for user_id in known.members - team.members:
            cursor.execute("DELETE FROM team_members WHERE team = %s AND user_id = %s", (name, user_id))
        for user_id in team.members - known.members:
            cursor.execute("INSERT INTO team_members (team, user_id) VALUES (%s, %s)", (name, user_id))
