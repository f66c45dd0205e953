"""Detect changes of the settings files while a runtime is open, and load the permitted changes.

Files are compared by their metadata, which takes a few system calls. A change is loaded once the files have
not changed for a moment, so that a half-written file is not read. Changes made by tool calls are not used
until the user accepts them, and the content that is loaded is the content that was checked. If a file is
invalid, all settings stay as they are. Knows nothing of what the settings are used for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from toolfold.config.load import reload_config
from toolfold.config.monitor import PathState, SettingsMonitor, read_path_state
from toolfold.config.project_trust import PROJECT_FILE
from toolfold.config.record import ADVICE, SettingsRecord
from toolfold.config.settings import Config
from toolfold.core.errors import ConfigError

log = logging.getLogger(__name__)

_Signatures: TypeAlias = tuple[tuple[int, ...], ...]

__all__ = ["LoadedSettings", "SettingsFollower", "SettingsWatch"]

POLL_INTERVAL_S = 0.25
STABLE_AFTER_S = 0.05
EMPTIED_STABLE_AFTER_S = 0.4
"""How long a file must stay unchanged if it has become empty or is gone: an editor may be replacing it."""
MAX_SETTLE_S = 2.0
RETRY_INTERVAL_S = 1.0
"""How often loading is retried while the settings keep changing."""


class _TryLater(Exception):
    """The changed settings cannot be loaded yet, for example because a file is still being written."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings that were loaded after a change of the settings files."""

    config: Config
    is_own_change: bool
    """True if commands of Toolfold have made all changes, and not an editor or a tool."""
    changed_locks: bool
    """True if the file with the accepted tools of MCP servers has changed."""
    states: Mapping[Path, PathState]
    """State of each settings file when it was loaded."""


class SettingsFollower:
    """Reloads the settings of one runtime when the settings files have changed. Not thread-safe."""

    def __init__(self, config: Config, record: SettingsRecord, monitor: SettingsMonitor) -> None:
        self._config, self._record, self._monitor = config, record, monitor
        paths = config.paths
        self._settings_files = (
            paths.user_file,
            paths.project_file or paths.project_dir / PROJECT_FILE,
            paths.state_dir / "trust.json",
        )
        self._lock_files = tuple(
            folder / "toolfold.lock" for folder in dict.fromkeys((paths.config_dir, paths.project_dir))
        )
        watched = (*self._settings_files, *self._lock_files, record.file)
        self._watched_files = tuple(map(str, watched))
        self._states: Mapping[Path, PathState] = self._read_accepted_states()
        self._signatures = self._read_signatures()
        self._retry_at = float("inf")
        self._reported = ""

    def has_changed(self) -> bool:
        """Return True if a settings file has changed since the last `load`, or `load` should be retried."""
        self._monitor.forget_ended_processes()
        return self._read_signatures() != self._signatures or time.monotonic() >= self._retry_at

    def load(self) -> LoadedSettings | None:
        """Return the changed settings; None if nothing has changed, or if the change may not be used yet.

        The reason why a change may not be used is logged.

        Call `accept` once they are in use. Until then, later changes are compared with the settings before.
        """
        self._retry_at = float("inf")
        try:
            return self._load_stable()
        except _TryLater as reason:
            self._retry_at = time.monotonic() + RETRY_INTERVAL_S
            log.debug("changed settings are not read yet: %s", reason)
        except ConfigError as error:
            self._report(f"the changed settings are not used: {error}")
        return None

    def _load_stable(self) -> LoadedSettings | None:
        before = self._wait_until_stable()
        self._signatures = before
        states = self._read_states()
        changed = {path for path, state in states.items() if _differs(state, self._states[path])}
        if not changed:
            return None
        is_own_change = all(self._is_own_change(path, states[path]) for path in changed)
        if unusable := self._monitor.find_unusable((*self._settings_files, *self._lock_files)):
            self._report(f"{'; '.join(unusable)}. Until then, no changed settings are used; {ADVICE}")
            return None
        config = reload_config(self._config)
        _require_same_paths(self._config, config)
        if self._read_signatures() != before:
            self._signatures = ()
            raise _TryLater("they have changed again")
        self._reported = ""
        return LoadedSettings(config, is_own_change, not changed.isdisjoint(self._lock_files), states)

    def accept(self, loaded: LoadedSettings) -> None:
        """Record that these settings are in use now, so that later changes are compared with them."""
        self._states, self._config = loaded.states, loaded.config

    def _wait_until_stable(self) -> _Signatures:
        """Wait until the settings files have not changed for a moment, and return their signatures."""
        end = time.monotonic() + MAX_SETTLE_S
        found = self._read_signatures()
        while time.monotonic() < end:
            time.sleep(EMPTIED_STABLE_AFTER_S if self._is_emptied() else STABLE_AFTER_S)
            now = self._read_signatures()
            if now == found:
                return now
            found = now
        raise _TryLater("they keep changing")

    def _is_emptied(self) -> bool:
        """Return True if a settings file that had content is empty now."""
        return any(self._states[path].content and not _has_content(path) for path in self._settings_files)

    def _is_own_change(self, path: Path, now: PathState) -> bool:
        before = self._states[path]
        return self._record.is_own_change(path, before.fingerprint, now.fingerprint, since=before.last_step)

    def _read_states(self) -> dict[Path, PathState]:
        step = self._record.last_step()
        return {path: read_path_state(path, step) for path in (*self._settings_files, *self._lock_files)}

    def _read_accepted_states(self) -> dict[Path, PathState]:
        """Return the state of each settings file without the changes that the user has not accepted."""
        states, pending = self._read_states(), self._record.list_pending()
        for path, change in pending.items():
            if path in states:
                states[path] = replace(states[path], fingerprint=change.accepted, content=change.before)
        return states

    def _read_signatures(self) -> _Signatures:
        return tuple(map(_stat_file, self._watched_files))

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            self._reported = problem
            log.warning("%s", problem)


class SettingsWatch:
    """Thread that calls `on_change` whenever `has_changed` returns True."""

    def __init__(self, has_changed: Callable[[], bool], on_change: Callable[[], object]) -> None:
        self._has_changed, self._on_change = has_changed, on_change
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolfold-settings", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watching thread; if it is applying changed settings, wait a limited time."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(MAX_SETTLE_S)

    def _run(self) -> None:
        while not self._ended.wait(POLL_INTERVAL_S):
            try:
                if self._has_changed():
                    self._on_change()
            except Exception:
                log.exception("changed settings could not be applied")


def _stat_file(path: str) -> tuple[int, ...]:
    """Return metadata that changes whenever the file, or the symbolic link at its path, is changed.

    Runs several times a second, so it uses plain system calls instead of `Path`.
    """
    found: list[int] = []
    for stat in (os.stat, os.lstat):
        try:
            each = stat(path)
        except OSError:
            found.append(0)
        else:
            found += (each.st_mtime_ns, each.st_ctime_ns, each.st_size, each.st_ino)
    return tuple(found)


def _differs(now: PathState, before: PathState) -> bool:
    return now.fingerprint != before.fingerprint


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _require_same_paths(before: Config, now: Config) -> None:
    """Raise ConfigError if the changed settings use other directories than the running runtime."""
    for name in ("config_dir", "state_dir", "cache_dir", "user_file", "project_dir"):
        if getattr(before.paths, name) != getattr(now.paths, name):
            raise ConfigError(
                f"the {name.replace('_', ' ')} is now {getattr(now.paths, name)}",
                hint="restart Toolfold to use the new path",
            )
