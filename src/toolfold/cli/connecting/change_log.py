"""Log changes to other programs' files, with a backup for each, so that they can be undone exactly.

A change is logged before the file is replaced, so that a crash leaves no unrecorded change. If someone else
has edited the file since, undoing is refused, and both texts are returned for comparison.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from toolfold.cli.connecting.client_file import (
    ClientFile,
    ProgramName,
    build_content,
    load_client_file,
    open_client_file,
    reopen_client_file,
    require_client,
)
from toolfold.config.atomic import lock_directory, replace_file
from toolfold.config.authority import require_user
from toolfold.core.errors import ConfigError, ToolfoldError
from toolfold.core.types import Json, read_json

_BACKUP_SUFFIX = ".before-toolfold"
_MAX_LOG_BYTES = 10_000_000
_MAX_BACKUPS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One logged change of a program's configuration file; its field names are the keys in the log."""

    client: ProgramName
    file: str
    name: str
    """Name of the gateway's entry in the client's file."""
    entry: Json
    """The gateway's entry in the file, or the changed settings by their paths."""
    moved: tuple[str, ...] = ()
    """Names of servers that were moved from the client's file to Toolfold's settings."""
    moved_of_projects: Mapping[str, list[str]] = field(default_factory=dict)
    """Names of servers for single projects that were moved, by the directory of the project."""
    imported: tuple[str, ...] = ()
    """Names of the moved servers in Toolfold's settings."""
    backup: str = ""
    """Path of the backup of the client's file; empty if the file did not exist."""
    before: str = ""
    """Hash of the file's previous content; empty if the file did not exist."""
    after: str = ""
    made: tuple[str, ...] = ()
    """Directories that were created for the file, outermost first."""


class FileChangedSinceError(ToolfoldError):
    """Raised if a client's file was edited after the logged change that is to be undone."""

    def __init__(self, change: FileChange, expected_text: str, client_file: ClientFile) -> None:
        backup = f"  The previous version is {change.backup}.\n" if change.backup else ""
        super().__init__(
            f"{change.file} was edited since it was connected, so it is not restored.\n{backup}"
            "  --keep-changes removes what Toolfold added and keeps the other edits."
        )
        self.expected_text, self.client_file = expected_text, client_file


class FileEditor(Protocol):
    """Interface that redoes and undoes one type of change, such as an added gateway, in a program's file."""

    def load(self, change: FileChange) -> ClientFile:
        """Read the file that a logged change has modified, without parsing it."""

    def open(self, change: FileChange) -> ClientFile:
        """Read and parse the file that a logged change has modified. Raises ConfigError if it is invalid."""

    def reopen(self, seen: ClientFile) -> ClientFile:
        """Read a file again. May raise ConfigError if its settings have changed since `seen` was read."""

    def repeat(self, before: ClientFile, change: FileChange) -> bytes:
        """Return the content that results if the logged change is made to the file `before` again."""

    def revert(self, current: ClientFile, before: ClientFile | None, change: FileChange) -> bytes:
        """Return the file's content without the logged change; `before` is None if the backup is lost."""


class GatewayEditor:
    """Editor that adds the gateway to the configuration files of MCP clients, and removes it."""

    def load(self, change: FileChange) -> ClientFile:
        return load_client_file(require_client(change.client), Path(change.file))

    def open(self, change: FileChange) -> ClientFile:
        return open_client_file(require_client(change.client), Path(change.file))

    def reopen(self, seen: ClientFile) -> ClientFile:
        return reopen_client_file(seen)

    def repeat(self, before: ClientFile, change: FileChange) -> bytes:
        projects = {project: dict.fromkeys(names) for project, names in change.moved_of_projects.items()}
        return build_content(before, change.name, change.entry, dict.fromkeys(change.moved), projects)

    def revert(self, current: ClientFile, before: ClientFile | None, change: FileChange) -> bytes:
        previous = before.servers if before else {}
        moved_back = {
            name: previous[name] for name in change.moved if name in previous and name not in current.servers
        }
        projects = {
            project: _find_missing(names, before, current, Path(project))
            for project, names in change.moved_of_projects.items()
            if before is not None
        }
        return build_content(current, change.name, previous.get(change.name), moved_back, projects)


def _find_missing(names: Iterable[str], before: ClientFile, current: ClientFile, project: Path) -> Json:
    """Return the moved servers for a project that its file does not have again."""
    previous, now = before.project_servers(project), current.project_servers(project)
    return {name: previous[name] for name in names if name in previous and name not in now}


class ChangeLog:
    """Log file with Toolfold's changes to programs' files, oldest first; undone changes are deleted."""

    def __init__(self, file: Path, editor: FileEditor | None = None) -> None:
        """Use a log file; `editor` (by default a `GatewayEditor`) repeats and reverts the logged changes."""
        self._file, self._editor = file, editor or GatewayEditor()

    def list_changes(self) -> list[FileChange]:
        """Return all logged changes. Raises ConfigError if the log cannot be read."""
        try:
            if self._file.stat().st_size > _MAX_LOG_BYTES:
                raise ValueError("it is too large")
            return [_parse_change(each) for each in read_json(self._file.read_text("utf-8"))["steps"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"the list of connected clients cannot be read: {error}",
                file=str(self._file),
                hint="repair the file, or delete it and remove the gateway from your clients by hand",
            ) from None

    def last_change(self, client: ProgramName, file: Path | None = None) -> FileChange | None:
        """Return the last logged change of a client's files or, if `file` is given, of that file only."""
        changes = (change for change in reversed(self.list_changes()) if change.client == client)
        return next((change for change in changes if file is None or change.file == str(file)), None)

    def apply(
        self,
        client_file: ClientFile,
        content: bytes,
        *,
        name: str,
        entry: Json,
        moved: tuple[str, ...] = (),
        moved_of_projects: Mapping[str, list[str]] = MappingProxyType({}),
        imported: tuple[str, ...] = (),
    ) -> FileChange:
        """Replace a client's file and log the change; keep a backup next to it until the change is undone."""
        change = FileChange(
            client=client_file.client,
            file=str(client_file.file),
            name=name,
            entry=entry,
            moved=moved,
            moved_of_projects=dict(moved_of_projects),
            imported=imported,
            before=_hash(client_file.data),
            after=_hash(content),
        )
        require_user(f"changing {client_file.target}")
        with lock_directory(self._file.parent):
            _require_unchanged(client_file)
            known, last = self.list_changes(), self.last_change(client_file.client, client_file.file)
            if last is not None and last.after == change.before:
                change = _merge_changes(last, change)
                self._store([*(known_change for known_change in known if known_change != last), change])
                replace_file(client_file.target, content)
                return change
            change = _prepare_change(change, client_file)
            self._store([*known, change])
            try:
                replace_file(client_file.target, content)
            except ConfigError:
                self._store(known)
                _remove_leftovers(change)
                raise
        return change

    def plan_undo(self, change: FileChange) -> tuple[ClientFile, bytes | None]:
        """Return the client's current file, and the content to restore (None to delete the file).

        Raises FileChangedSinceError if the file was edited after the change.
        """
        current = self._editor.load(change)
        if _hash(current.data) not in (change.before, change.after):
            raise FileChangedSinceError(change, self._rebuild_written_text(change), current)
        return current, _read_backup(change)

    def plan_removal(self, change: FileChange, before: ClientFile | None = None) -> tuple[ClientFile, bytes]:
        """Return a client's file, and its content without the logged change but with all other edits.

        `before` is the file as it was before the user was asked.
        """
        current = self._editor.reopen(before) if before else self._editor.open(change)
        previous: ClientFile | None = None
        try:
            previous = _file_before(change)
            _ = previous.document
        except ConfigError:
            if change.moved or change.moved_of_projects:
                raise
            previous = None
        return current, self._editor.revert(current, previous, change)

    def undo(self, change: FileChange, current: ClientFile, content: bytes | None) -> None:
        """Undo a change of a client's file: write the content to restore, and delete the log entry."""
        require_user(f"changing {current.target}")
        with lock_directory(self._file.parent):
            _require_unchanged(current)
            if content is None:
                current.target.unlink(missing_ok=True)
            elif content != current.data:
                replace_file(current.target, content)
            self._store([logged for logged in self.list_changes() if logged != change])
        if _hash(content) == change.before:
            _remove_leftovers(change)

    def _rebuild_written_text(self, change: FileChange) -> str:
        """Return the text that a change wrote to a client's file, rebuilt from the log and the backup.

        If that fails, return the text before the change, or an empty text.
        """
        try:
            before = _file_before(change)
            content = self._editor.repeat(before, change)
        except ConfigError:
            return ""
        return (content if _hash(content) == change.after else before.data or b"").decode("utf-8-sig")

    def _store(self, changes: list[FileChange]) -> None:
        document = {"steps": [dataclasses.asdict(change) for change in changes]}
        replace_file(
            self._file, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), mode=0o600
        )


def _parse_change(fields: Any) -> FileChange:
    lists = {key: tuple(fields.get(key, ())) for key in ("moved", "imported", "made")}
    change = FileChange(**{**fields, **lists})
    if not all(isinstance(each, str) for each in (change.client, change.file, change.name, change.backup)):
        raise ValueError("a recorded change of a client's file has a field of the wrong type")
    return change


def _merge_changes(last: FileChange, change: FileChange) -> FileChange:
    """Merge two successive changes of a client's file into one, so that both are undone together."""
    return dataclasses.replace(
        change,
        before=last.before,
        backup=last.backup,
        made=last.made,
        moved=tuple(dict.fromkeys((*last.moved, *change.moved))),
        moved_of_projects={
            project: [*last.moved_of_projects.get(project, ()), *change.moved_of_projects.get(project, ())]
            for project in {**last.moved_of_projects, **change.moved_of_projects}
        },
        imported=tuple(dict.fromkeys((*last.imported, *change.imported))),
    )


def _require_unchanged(client_file: ClientFile) -> None:
    """Raise ConfigError if a client's file was edited while the user was asked for confirmation."""
    try:
        data = client_file.target.read_bytes()
    except FileNotFoundError:
        data = None
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(client_file.file)) from None
    if data != client_file.data:
        raise ConfigError(
            "the client's file was changed meanwhile; nothing was written",
            file=str(client_file.file),
            hint="try again",
        )


def _write_backup(client_file: ClientFile) -> Path:
    """Copy a client's file in its directory with the same permissions; return the path of the copy."""
    file = client_file.file
    suffixes = [_BACKUP_SUFFIX, *(f"{_BACKUP_SUFFIX}-{number}" for number in range(2, _MAX_BACKUPS))]
    backup = next(
        path for suffix in suffixes if not os.path.lexists(path := file.with_name(file.name + suffix))
    )
    replace_file(backup, client_file.data or b"", mode=client_file.target.stat().st_mode & 0o777)
    return backup


def _prepare_change(change: FileChange, client_file: ClientFile) -> FileChange:
    """Create missing directories and a backup of the file; return the change with their paths added."""
    directory = client_file.target.parent
    missing = [str(each) for each in (directory, *directory.parents) if not each.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the directory cannot be created: {error.strerror}", file=str(directory)) from None
    backup = "" if client_file.data is None else str(_write_backup(client_file))
    return dataclasses.replace(change, backup=backup, made=tuple(reversed(missing)))


def _remove_leftovers(change: FileChange) -> None:
    """Delete the backup and the directories that were created for a logged change."""
    if change.backup:
        Path(change.backup).unlink(missing_ok=True)
    for directory in reversed(change.made):
        with contextlib.suppress(OSError):  # not empty, or already deleted
            Path(directory).rmdir()


def _read_backup(change: FileChange) -> bytes | None:
    """Return a client's file content before the change, from the backup. Raises ConfigError if it is lost."""
    if not change.before:
        return None
    try:
        data = Path(change.backup).read_bytes()
    except OSError:
        data = b""
    if _hash(data) != change.before:
        raise ConfigError(
            "the backup is missing or was changed, so the file cannot be restored",
            file=change.backup,
            hint="use --keep-changes to remove the gateway from the current file",
        )
    return data


def _file_before(change: FileChange) -> ClientFile:
    """Return a client's file as it was before the change, read from the backup."""
    file = Path(change.file)
    return ClientFile(change.client, file, file, _read_backup(change))


def _hash(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
