"""The permanent allow-list of commands: `command_allowlist` in the user's configuration file.

Contains exact calls in a canonical spelling that a person approved permanently, and names of rules and
kinds (`rule:delete-tree`, `kind:recursive-delete`) whose findings need no approval. While a runtime is
open, changes of the file can only remove entries: an added line is effective from the next start, so that
writing the file gains nothing; a removed line, or an unreadable file, is effective at once. Only `add`
extends the list, and only a person's answer leads there.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeAlias

from toolfold.config import read_file_value, set_value, unset_value
from toolfold.config.atomic import lock_directory
from toolfold.config.fingerprints import fingerprint_path
from toolfold.config.record import SettingsRecord
from toolfold.core.errors import ConfigError
from toolfold.safety.approval.allowed_kinds import is_pattern

log = logging.getLogger(__name__)

KEY = "command_allowlist"

__all__ = ["KEY", "AllowList"]

ExplainIneffective: TypeAlias = Callable[[str], str]
"""Function that returns why an allow-list entry can never have an effect; empty if it can."""
NormalizeEntry: TypeAlias = Callable[[str], tuple[str, frozenset[str] | None]]
"""Function that returns an allow-list entry in canonical spelling, and the rules it covers (None: all)."""


class AllowList:
    """Permanent allow-list; `file` is the settings file that contains its entries, or None."""

    def __init__(
        self,
        entries: Iterable[str] = (),
        *,
        file: Path | None = None,
        lock_directory_path: Path | None = None,
        normalize: NormalizeEntry = lambda entry: (entry, None),
        explain_ineffective: ExplainIneffective = lambda _: "",
        follows_file: bool = True,
        record: SettingsRecord | None = None,
        key: str = KEY,
        follow_own_changes: bool = False,
    ) -> None:
        """Create an allow-list; `key` is the setting that contains its entries.

        With `follow_own_changes`, entries that Toolfold itself adds to the file for the user are
        effective at once.
        """
        self._key, self._follow_own_changes = key, follow_own_changes
        self._file, self._lock_path, self._normalize, self._explain_ineffective = (
            file,
            lock_directory_path,
            normalize,
            explain_ineffective,
        )
        self._record = record
        self._reported: set[str] = set()
        self._follows_file = follows_file and file is not None
        self._lock = threading.Lock()
        self._entries = tuple(dict.fromkeys(entries))
        self._keys: dict[str, frozenset[str] | None] | None = None
        self._patterns: tuple[str, ...] | None = None
        self._last_signature: tuple[int, int, int] | None = None
        self._mark_read()

    @property
    def is_writable(self) -> bool:
        """Return True if a permanent approval can be saved to the allow-list file."""
        return self._file is not None

    def covers(self, key: str, rules: Collection[str] = ()) -> bool:
        """Return True if an allow-list entry for exactly this call covers all rules that the call matches."""
        if not key:
            return False
        with self._lock:
            self._refresh()
            if self._keys is None:  # parsed on first use: most runs never need it
                exact = (each for each in self._entries if not is_pattern(each))
                self._keys = dict(pair for each in exact for pair in self._normalized_pairs(each))
            known = self._keys.get(key, frozenset())
            return key in self._keys and (known is None or known.issuperset(rules))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the allow-list entries that name a rule or a kind of finding."""
        with self._lock:
            self._refresh()
            if self._patterns is None:
                self._patterns = tuple(filter(is_pattern, self._entries))
                for each in self._patterns:
                    self._warn_if_ineffective(each)
            return self._patterns

    @property
    def entries(self) -> tuple[str, ...]:
        with self._lock:
            self._refresh()
            return self._entries

    def add(self, *keys: str) -> None:
        """Add entries to the allow-list and to its file. Raises ConfigError if they cannot be saved."""
        if self._file is None or not keys or not all(keys):
            raise ConfigError(
                "nothing was added to the allow-list: the entry is empty, or the allow-list has no file",
                key=self._key,
            )
        with self._lock:
            self._change_file(lambda written: list(dict.fromkeys((*written, *keys))))
            self._set_entries(dict.fromkeys((*self._entries, *keys)))
            self._mark_read()

    def remove(self, entry: str) -> bool:
        """Remove an entry from the allow-list and its file; return False if it did not exist.

        Raises ConfigError.
        """
        with self._lock:
            known = entry in self._entries
            if self._file is not None:
                known |= entry in _read_entries(self._file, self._key)
                self._change_file(lambda written: [each for each in written if each != entry])
            self._set_entries(each for each in self._entries if each != entry)
            self._mark_read()
            return known

    def _set_entries(self, entries: Iterable[str]) -> None:
        self._entries = tuple(entries)
        self._keys = self._patterns = None

    def _normalized_pairs(self, entry: str) -> list[tuple[str, frozenset[str] | None]]:
        try:
            normalized, rules = self._normalize(entry)
            self._warn_if_ineffective(entry)
        except Exception:
            log.exception("the allow-list entry %r cannot be parsed; it allows nothing", entry)
            return []
        return [(each, rules) for each in (entry, normalized) if each]

    def _warn_if_ineffective(self, entry: str) -> None:
        if entry not in self._reported and (why := self._explain_ineffective(entry)):
            self._reported.add(entry)
            log.warning("the allow-list entry %r has no effect: %s", entry, why)

    def _change_file(self, change: Callable[[list[str]], list[str]]) -> None:
        file = self._file
        if file is None:
            return
        # A separate lock directory: writing the file locks the file's own directory.
        with lock_directory(self._lock_path or file.parent / ".allowlist"):
            before = _read_entries(file, self._key)
            after = change(before)
            if after and after != before:
                set_value(file, self._key, after, record=self._record)
            elif not after and before:
                unset_value(file, self._key, record=self._record)

    def _refresh(self) -> None:
        """Update the entries from the allow-list file, but ignore additions that Toolfold did not write."""
        signature = self._file_signature()
        if not self._follows_file or self._file is None or signature == self._last_signature:
            return
        step = self._newest_step()
        try:
            written = tuple(dict.fromkeys(_read_entries(self._file, self._key)))
            is_own_change = self._is_own_change()
        except ConfigError as error:
            log.warning("the setting %s can no longer be read, so it allows no calls: %s", self._key, error)
            written, is_own_change = (), False
        remaining = written if is_own_change else tuple(each for each in self._entries if each in written)
        if remaining != self._entries:
            self._set_entries(remaining)
        self._last_signature = signature
        if is_own_change:
            self._content, self._last_step = self._file_fingerprint(), step

    def _is_own_change(self) -> bool:
        """Return True if only Toolfold itself has changed the allow-list file since it was last read."""
        if not self._follow_own_changes or self._file is None or self._record is None:
            return False
        now = self._file_fingerprint()
        return self._record.is_own_change(self._file, self._content, now, since=self._last_step)

    def _mark_read(self) -> None:
        self._last_step = self._newest_step()
        self._last_signature, self._content = self._file_signature(), self._file_fingerprint()

    def _newest_step(self) -> int:
        if self._record is None or not self._follow_own_changes:
            return 0
        try:
            return self._record.last_step()
        except ConfigError as error:  # from now on, no change counts as Toolfold's own
            log.warning("%s", error)
            return sys.maxsize

    def _file_fingerprint(self) -> str:
        return fingerprint_path(self._file) if self._file is not None and self._follow_own_changes else ""

    def _file_signature(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            value = self._file.stat()
        except OSError:
            return None
        return value.st_mtime_ns, value.st_size, value.st_ino


def _read_entries(file: Path, key: str) -> list[str]:
    """Read the allow-list entries, the value of the setting `key`, from a settings file."""
    value = read_file_value(file, key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
