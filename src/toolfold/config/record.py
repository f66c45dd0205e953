"""Record Toolfold's own changes of its settings, and changes that the user has not accepted yet.

One private file in the state directory. A change that Toolfold makes for the user is recorded before it is
made, as a numbered step from one fingerprint to another. A reader of a settings file remembers the number of
the last step it has seen, so that no step counts twice: restoring an old state of the file is a foreign
change. A change that was found during a tool call, and that no new steps explain, is stored as pending until
the user accepts it or restores the file. Makes no decisions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolfold.config.atomic import lock_directory, replace_file
from toolfold.config.authority import require_user
from toolfold.config.fingerprints import ABSENT, EMPTY, fingerprint_bytes, fingerprint_path, is_incomplete
from toolfold.config.yaml_document import MAX_CONFIG_BYTES
from toolfold.core.errors import ConfigError

log = logging.getLogger(__name__)

__all__ = ["ADVICE", "PendingChange", "SettingsRecord", "write_settings"]

MAX_STEPS = 256
"""Number of Toolfold's own changes that are stored per file."""
MAX_CONTENTS = 64
"""Number of earlier contents of settings files that are stored."""
WRITE_TIMEOUT_NS = 5_000_000_000
"""How long a file may have its old content after a change was recorded: it is recorded before it is made."""
_ANY = "any"
"""Start of a step by which the user accepts a file's content, whatever it was before."""
_REPEAT = "repeat the command to see the current content"
MAX_RECORD_BYTES = 32_000_000
ADVICE = (
    "in your own terminal, accept it with `toolfold config accept` or undo it with `toolfold config restore`"
)


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change of a settings file that the user has not accepted."""

    path: str
    during: str
    """Text that says which tool call was running when the file changed."""
    time: float
    accepted: str
    """Fingerprint of the file in its last accepted state, before the change."""
    before: str | None = None
    """The content before the change, if it is known; None if there was no file."""
    restorable: bool = False
    binding: bool = True
    """True if no runtime uses the change until the user has accepted it."""

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))
        return f"{self.path} was changed {self.during} ({when}), and not by Toolfold itself"


class SettingsRecord:
    """Record of settings changes in one state directory. Safe for concurrent threads and processes."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / "settings"
        self.file = self.directory / "record.json"
        self._contents = self.directory / "contents"
        self._path = str(self.file)
        self._known_entries: tuple[tuple[int, ...], dict[Path, bool]] | None = None
        """Metadata of the file, and the answers of `has_entry`, which is called for each HTTP response."""

    def note_change(self, path: Path, content: bytes) -> int:
        """Record that Toolfold will write `content` to a settings file; return the number of this change.

        Raises ConfigError if a change of the same file is pending: writing would accept it as well.
        Raises StartedByTool in a process that a tool call has started.
        """
        require_user(f"changing {path}")
        real = os.path.realpath(path)
        before = fingerprint_path(path)
        with self._modify_record() as data:
            for key, change in data["pending"].items():
                if os.path.realpath(key) == real and before != change["accepted"]:
                    raise ConfigError(str(PendingChange(**change)), hint=ADVICE)
            self.keep_content(content)
            return _add_step(data, real, before, fingerprint_bytes(content))

    def last_step(self) -> int:
        """Return the number of the newest recorded settings change; later changes get higher numbers.

        Call it before reading a settings file, so that no change in between is missed.
        """
        return _last_step(self._read())

    def is_own_change(self, path: Path, before: str, after: str, *, since: int) -> bool:
        """Return True if Toolfold itself made all changes between two fingerprints of a settings file.

        Includes changes that the user has accepted. A state that was replaced meanwhile counts as foreign.
        """
        reached, replaced = self._follow_steps(path, before, since)
        if after not in reached or reached[after] >= replaced.get(after, 0):
            return after in reached
        return time.time_ns() - replaced[after] < WRITE_TIMEOUT_NS

    def find_accepted(self, path: Path, before: str, *, since: int) -> str:
        """Return the fingerprint that a settings file has after all recorded and accepted changes."""
        reached, _ = self._follow_steps(path, before, since)
        return max(reached, key=lambda each: (reached[each], each == before))

    def _follow_steps(self, path: Path, before: str, since: int) -> tuple[dict[str, int], dict[str, int]]:
        """Return the states that recorded changes lead to and those that they replace, with their numbers."""
        reached = dict.fromkeys((before, EMPTY) if before == ABSENT else (before,), since)
        replaced: dict[str, int] = {}
        for start, end, number in self._read()["steps"].get(os.path.realpath(path), []):
            if number > since and (start in reached or start == _ANY):
                replaced |= dict.fromkeys(reached if start == _ANY else (start,), number)
                reached[end] = number
        return reached, replaced

    def keep_content(self, content: bytes) -> None:
        """Store a content of a settings file, which stays in force if the file is changed by a tool call."""
        file = self._contents / fingerprint_bytes(content)
        if len(content) > MAX_CONFIG_BYTES:
            return
        try:
            self._contents.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(file, content, mode=0o600)
            for each in sorted(self._contents.iterdir(), key=lambda each: each.stat().st_mtime)[
                :-MAX_CONTENTS
            ]:
                each.unlink(missing_ok=True)
        except (OSError, ConfigError) as error:  # then the file must be accepted before anything starts
            log.warning("the content of the settings cannot be stored in %s: %s", self._contents, error)

    def find_content(self, fingerprint: str) -> str | None:
        """Return the stored content that has a fingerprint; None if it is not stored."""
        try:
            content = (self._contents / fingerprint).read_bytes()
        except (OSError, ValueError):
            return None
        is_same = fingerprint_bytes(content) == fingerprint
        return content.decode("utf-8", "surrogateescape") if is_same else None

    def has_entry(self, path: Path) -> bool:
        """Return True if Toolfold has ever written the settings file, or a change of this file is pending."""
        signature = self._read_signature()
        if self._known_entries is None or self._known_entries[0] != signature:
            self._known_entries = signature, {}
        known = self._known_entries[1]
        if path not in known:
            data = self._read()
            entries = {*data["steps"], *data["pending"]}
            known[path] = not entries.isdisjoint((os.path.realpath(path), _pending_key(path)))
        return known[path]

    def _read_signature(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - as text, because it is done for every request
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._known_entries = None  # the file must be read, which raises
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def add_pending(self, change: PendingChange) -> bool:
        """Store a settings change as pending until it is accepted, with the file's last accepted state.

        Returns False if a change of the file is pending already.
        """
        key = _pending_key(Path(change.path))
        with self._modify_record() as data:
            is_new = key not in data["pending"]
            data["pending"].setdefault(key, asdict(change))
        return is_new

    def list_pending(self) -> dict[Path, PendingChange]:
        """Return the settings changes that the user has neither accepted nor undone, by file."""
        found = {Path(key): PendingChange(**each) for key, each in self._read()["pending"].items()}
        return {path: each for path, each in found.items() if fingerprint_path(path) != each.accepted}

    def find_pending(self, path: Path) -> PendingChange | None:
        """Return the pending change of one settings file; None if there is none."""
        found = self._read()["pending"].get(_pending_key(path))
        return PendingChange(**found) if found else None

    def accept(self, path: Path, shown: str) -> None:
        """Accept a settings file with the content shown to the user. Raises ConfigError if it differs now."""
        require_user(f"accepting a change of {path}")
        with self._modify_record() as data:
            if is_incomplete(shown):
                raise ConfigError(
                    "the file is too large to be compared with its earlier content",
                    file=str(path),
                    hint="make it smaller",
                )
            if fingerprint_path(path) != shown:
                raise ConfigError(
                    "the file has changed since its content was shown", file=str(path), hint=_REPEAT
                )
            data["pending"].pop(_pending_key(path), None)
            _add_step(data, os.path.realpath(path), _ANY, shown)
            with contextlib.suppress(OSError):
                self.keep_content(path.read_bytes() if path.is_file() else b"")

    def restore(self, change: PendingChange) -> None:
        """Undo a pending change: write the content that the settings file had before the change.

        Raises ConfigError if the content is unknown or cannot be written.
        """
        require_user(f"restoring {change.path}")
        path = Path(change.path)
        if not change.restorable:
            raise ConfigError(
                "the previous content of the file is not known",
                file=change.path,
                hint="check the content of the file yourself",
            )
        content = None if change.before is None else change.before.encode("utf-8", "surrogateescape")
        after = ABSENT if content is None else fingerprint_bytes(content)
        with self._modify_record() as data:
            for each in {
                _pending_key(path),
                os.path.realpath(path),
            }:  # the path may be a link now and a file then
                _add_step(data, each, fingerprint_path(path), after)
        if content is None:
            _delete_file(path)
        else:
            replace_file(path, content, mode=0o600 if change.binding else None)
        self.drop_restored(path)

    def drop_restored(self, path: Path) -> None:
        """Delete the pending change of a settings file that has its previous content again."""
        with self._modify_record() as data:
            data["pending"].pop(_pending_key(path), None)

    @contextlib.contextmanager
    def _modify_record(self) -> Iterator[dict[str, Any]]:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_directory(self.directory):
            data = self._read()
            before = json.dumps(data, sort_keys=True)
            yield data
            after = json.dumps(data, sort_keys=True)
            if after != before:
                replace_file(self.file, after.encode(), mode=0o600)

    def _read(self) -> dict[str, Any]:
        try:
            if self.file.stat().st_size > MAX_RECORD_BYTES:
                raise ValueError("the file is too large")
            data = json.loads(self.file.read_bytes())
            return {"steps": _parse_steps(data["steps"]), "pending": _parse_pending(data["pending"])}
        except FileNotFoundError:
            return {"steps": {}, "pending": {}}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"the record of changed settings cannot be read: {error}",
                file=str(self.file),
                hint="check that your settings are what you want, then delete the record file",
            ) from None


def write_settings(
    file: Path, content: bytes, record: SettingsRecord | None, *, mode: int | None = None
) -> None:
    """Replace a settings file at the user's request.

    The change is recorded, so that it is not reported as one that a tool call made.
    """
    require_user(f"changing {file}")
    if record is not None:
        record.note_change(file, content)
    replace_file(file, content, mode=mode)


def _delete_file(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"the file cannot be deleted: {error.strerror}", file=str(path)) from None


def _pending_key(path: Path) -> str:
    """Return the key of a pending change: the absolute path of its file, without resolving links.

    A link may point elsewhere when the change is looked up.
    """
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow the link


def _add_step(data: dict[str, Any], path: str, before: str, after: str) -> int:
    # From the clock: numbers must grow even if the record was deleted while processes remember old ones.
    number = max(_last_step(data) + 1, time.time_ns())
    data["steps"][path] = [*data["steps"].get(path, []), [before, after, number]][-MAX_STEPS:]
    return number


def _last_step(data: dict[str, Any]) -> int:
    return max((int(steps[-1][2]) for steps in data["steps"].values() if steps), default=0)


def _parse_steps(found: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    return {
        str(key): [[str(start), str(end), int(next(iter(number), 0))] for start, end, *number in steps]
        for key, steps in found.items()
    }


def _parse_pending(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(key): asdict(PendingChange(**each)) for key, each in found.items()}
