"""Detect settings files that change while a tool call runs.

Before and after each call that may write or execute, the runtime's settings files are compared with their
last known state. A change that Toolfold did not make itself is logged, recorded in the approval log, reported
in the result, and stored as pending: no runtime uses it until the user has accepted it. Also covered are
processes that a call has left running, and calls during which the runtime was killed. A change between
calls, while none of their processes runs, is taken for the user's own. An open runtime that follows its
settings files asks here first which changes it may use. Knows nothing of what the settings mean.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from toolfold.config.call_notes import make_pending_change, note_directory, note_prefix, record_changes
from toolfold.config.fingerprints import (
    Signature,
    fingerprint_path,
    have_signatures,
    stat_signature,
)
from toolfold.config.project_trust import PLUGINS_DIR, PROJECT_FILE
from toolfold.config.record import ADVICE, PendingChange, SettingsRecord
from toolfold.config.settings import Config
from toolfold.config.yaml_document import MAX_CONFIG_BYTES
from toolfold.core.errors import ConfigError
from toolfold.core.tool_processes import has_tool_processes

log = logging.getLogger(__name__)

__all__ = [
    "CallWatch",
    "PathState",
    "SettingsMonitor",
    "WatchedCall",
    "WatchedPath",
    "read_path_state",
    "require_accepted",
    "watched_paths",
]

NOTICE_TEMPLATE = (
    "Toolfold's settings were changed while this call ran ({paths}). Only the user may change them."
    " The change was recorded and reported to the user, and has no effect until the user accepts it."
)
_LOCK_FILE = "toolfold.lock"
PROCESS_SEARCH_INTERVAL_S = 1.0
"""How often processes of ended calls are searched for while some are running."""


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A file or directory with settings of the runtime that is watched for changes."""

    path: Path
    binding: bool = True
    """True if no runtime uses a change until it is accepted. False for files of projects."""
    is_noted: bool = False
    """True if its content is stored, to stay in force until a change is accepted."""


@dataclass(slots=True)
class CallWatch:
    """Result of watching one tool call: the settings files that changed during the call."""

    paths: list[str] = field(default_factory=list)

    @property
    def notice(self) -> str:
        """Return a notice for the model about changed settings; empty if nothing changed."""
        return NOTICE_TEMPLATE.format(paths=", ".join(self.paths)) if self.paths else ""


@dataclass(frozen=True, slots=True)
class PathState:
    """State of a watched settings file when it was last read."""

    signature: Signature
    fingerprint: str
    content: str | None
    last_step: int = 0
    """Number of the newest change in Toolfold's own record when the path was read."""


def watched_paths(config: Config) -> tuple[WatchedPath, ...]:
    """Return the paths of all settings that decide what tools may do, even of files that do not exist."""
    paths = config.paths
    project = paths.project_dir
    own = (
        *(paths.user_file, paths.config_dir / _LOCK_FILE, paths.state_dir / "trust.json"),
        *(paths.state_dir / "gateway" / "tokens.json", paths.state_dir / "gateway" / "users.json"),
        paths.state_dir / "mcp" / "accepted.lock",
        config.plugins_folder,
    )
    others = (paths.project_file or project / PROJECT_FILE, project / _LOCK_FILE, project / PLUGINS_DIR)
    found = {path: WatchedPath(path, binding=False) for path in others}
    found |= {path: WatchedPath(path, is_noted=path == paths.user_file) for path in own}
    return tuple(found.values())


def require_accepted(config: Config, record: SettingsRecord) -> None:
    """Raise ConfigError if a tool call may have changed other settings than the user's settings file.

    Of that file, `load_config` uses the last accepted content. The others are written by Toolfold only, or
    are plugins, which may restrict calls: without them, more would be allowed.
    """
    record_changes(record)
    pending = record.list_pending()
    for each in watched_paths(config):
        change = pending.get(_absolute(each.path))
        if change is None or each.path == config.paths.user_file:
            continue
        if change.binding:
            raise ConfigError(str(change), hint=ADVICE)
        log.warning("%s; %s", change, ADVICE)


class SettingsMonitor:
    """Watches the settings files of one runtime for changes during tool calls."""

    def __init__(
        self,
        watched: Iterable[WatchedPath],
        record: SettingsRecord,
        *,
        report: Callable[[str, str], None] = lambda _path, _during: None,
        client_id: str = "",
        has_servers: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a monitor; `report` gets each changed settings file and the tool calls that were running.

        Processes of commands are recognized by `client_id`. `has_servers` returns True while MCP servers run.
        """
        self._watched, self._record, self._report = tuple(watched), record, report
        self._client_id, self._has_servers = client_id, has_servers
        self._lock = threading.Lock()
        self._notes = note_directory(record)
        self._noted_states = ""
        """State of the settings for the files that record calls, as JSON; empty if it must be computed."""
        self._owner = 0, ""
        """Id of this process, and how the names of its files that record calls begin."""
        step = record.last_step()
        self._known_states = {each.path: read_path_state(each.path, step) for each in self._watched}
        self._signatures: list[tuple[str, Signature]] | None = None
        """The watched paths with their known signatures; None if the list must be made again."""
        self._active: dict[str, tuple[str, CallWatch]] = {}
        """Tool calls that run now, by the name of the file that records the call on disk."""
        self._left_running: tuple[str, str] | None = None
        """The first ended call since which processes of tool calls are running, and its file's name."""
        self._next_search = 0.0
        """Monotonic time from which processes of ended calls may be searched for again."""
        self._must_keep_notes = False
        """True if a change could not be recorded, so that the files that record calls must be kept."""
        self._unrecorded: dict[Path, str] = {}
        """Changes that could not be recorded as pending: changed path → what was running."""

    def watch_call(self, call: str, *, executes: bool = True, noted: bool = True) -> WatchedCall:
        """Watch the settings while a tool call runs; `executes` means that the call starts processes.

        A call that is `noted` in a file is known to other runtimes, also if this one is killed.

        Entering and leaving read and write files, so use it in a thread if a loop runs, or without waiting.
        Neither raises.
        """
        return WatchedCall(self, call, executes=executes, noted=noted)

    def forget_ended_processes(self) -> None:
        """Find changes up to now, and no longer suspect processes of ended calls if none is running any more.

        Call it often: an edit after the end of the processes is the user's only if their end was noticed.
        """
        if self._left_running is None or time.monotonic() < self._next_search:
            return
        with self._lock:
            has_processes = self._has_processes()  # before the check, as at the end of a call
            self._next_search = time.monotonic() + PROCESS_SEARCH_INTERVAL_S
            self._check_changes()
            self._forget_left_call(has_processes=has_processes)

    def find_unusable(self, paths: Iterable[Path]) -> list[str]:
        """Return a description of each change of the files `paths` that the user has not accepted.

        A tool call in progress that made one of the changes is told so in its result.
        """
        with self._lock:
            self._check_changes()
            wanted = {_absolute(path): path for path in paths}
            try:
                record_changes(self._record)  # also those during calls of other runtimes
                pending = {path: str(each) for path, each in self._record.list_pending().items()}
            except ConfigError as error:  # without the record, no change is known to be accepted
                return [str(error)]
            unrecorded = {
                _absolute(path): f"{path} was changed {why}" for path, why in self._unrecorded.items()
            }
            return [why for path, why in (unrecorded | pending).items() if path in wanted]

    def _start_call(self, started: WatchedCall) -> None:
        self._active[started.name] = started.call, started.watch
        if started.noted or started.executes:
            self._write_call_note(started.name, started.call)

    def _is_unchanged(self) -> bool:
        """Return True if the metadata of every settings file is unchanged; False if files must be read."""
        if self._signatures is None:
            self._signatures = [(str(path), each.signature) for path, each in self._known_states.items()]
        return have_signatures(self._signatures)

    def _new_note_name(self) -> str:
        """Return a new name for the file that records a tool call: process id, start time, random digits."""
        pid = os.getpid()
        if self._owner[0] != pid:
            self._owner = pid, note_prefix(pid)
        return f"{self._owner[1]}{secrets.token_hex(4)}.json"

    def _has_processes(self) -> bool:
        return bool(self._client_id) and has_tool_processes(self._client_id)

    def _finish_call(self, name: str, call: str, *, executes: bool, has_processes: bool) -> None:
        """Forget an ended call, except the first one since which processes of calls are running."""
        if executes and has_processes and self._left_running is None:
            self._left_running = call, name
            return
        if executes:
            self._forget_left_call(has_processes=has_processes)
        self._delete_call_note(name)

    def _forget_left_call(self, *, has_processes: bool) -> None:
        if self._left_running is not None and not has_processes:
            self._delete_call_note(self._left_running[1])
            self._left_running = None

    def _check_changes(self) -> None:
        """Find the settings files that have changed since the last check, and handle each change."""
        for each in self._watched:
            before = self._known_states[each.path]
            if stat_signature(each.path) == before.signature:
                continue
            now = read_path_state(each.path, self._last_step())
            self._known_states[each.path], self._noted_states, self._signatures = now, "", None
            self._classify_change(each, before, now)

    def _last_step(self) -> int:
        try:
            return self._record.last_step()
        except ConfigError as error:  # the record is damaged: no later change counts as Toolfold's own
            log.error("%s", error)
            return sys.maxsize

    def _classify_change(self, each: WatchedPath, before: PathState, now: PathState) -> None:
        """Report a changed settings file and record the change as pending, unless the user made it."""
        if self._is_user_change(each.path, before, now):
            self._unrecorded.pop(each.path, None)
            return
        during = self._describe_suspects()
        if not during:
            self._warn_of_running_servers(each.path)
            return
        log.error(
            "the settings in %s were changed %s, and not by Toolfold itself; %s", each.path, during, ADVICE
        )
        for _, watch in self._active.values():
            watch.paths.append(str(each.path))
        try:
            self._record.add_pending(self._describe_change(each, before, during))
        except (ConfigError, OSError) as error:
            self._must_keep_notes = True
            self._unrecorded[each.path] = during
            log.error("the change of %s could not be recorded: %s", each.path, error)
        self._report_change(each.path, during)

    def _describe_change(self, each: WatchedPath, before: PathState, during: str) -> PendingChange:
        """Describe a change since the last state that Toolfold or the user has made."""
        accepted = self._record.find_accepted(each.path, before.fingerprint, since=before.last_step)
        content = before.content if accepted == before.fingerprint else self._record.find_content(accepted)
        return make_pending_change(each.path, accepted, content, during=during, binding=each.binding)

    def _is_user_change(self, path: Path, before: PathState, now: PathState) -> bool:
        """Return True if Toolfold changed the file for the user, or the user undid a pending change."""
        known = before.fingerprint
        try:
            if self._record.is_own_change(path, known, now.fingerprint, since=before.last_step):
                return True
            pending = self._record.find_pending(path)
            if pending is not None and pending.accepted == now.fingerprint:
                self._record.drop_restored(path)
                return True
        except (ConfigError, OSError) as error:  # without the record, no change is known to be Toolfold's own
            log.error("%s", error)
        return False

    def _report_change(self, path: Path, during: str) -> None:
        try:
            self._report(str(path), during)
        except Exception:  # a failed report must not lose the result of the call
            log.exception("the change of %s could not be reported", path)

    def _describe_suspects(self) -> str:
        if self._active:
            active = dict.fromkeys(call for call, _ in self._active.values())
            return f"while {', '.join(active)} ran"
        if self._left_running:
            return f"while a process was running that {self._left_running[0]} or another call has left behind"
        return ""

    def _warn_of_running_servers(self, path: Path) -> None:
        if self._has_servers():
            during = "while MCP servers were running and no call was"
            log.warning(
                "the settings in %s were changed %s. If you did not change them, check their content.",
                path,
                during,
            )
            self._report_change(path, during)

    def _write_call_note(self, name: str, call: str) -> None:
        """Record the call and the settings' state in a file, to find changes if this process is killed."""
        if not self._noted_states:
            self._noted_states = json.dumps(
                {str(each.path): self._describe_state(each) for each in self._watched}
            )
        about = json.dumps({"call": call, "client": self._client_id})[:-1]
        content = f'{about}, "known": {self._noted_states}}}'
        with contextlib.suppress(OSError):
            try:
                _write_small_file(f"{self._notes}/{name}", content.encode())
            except FileNotFoundError:
                self._notes.mkdir(parents=True, exist_ok=True, mode=0o700)
                _write_small_file(f"{self._notes}/{name}", content.encode())

    def _describe_state(self, watched: WatchedPath) -> list[object]:
        known = self._known_states[watched.path]
        if watched.is_noted and known.content is not None:
            self._record.keep_content(known.content.encode("utf-8", "surrogateescape"))
        return [known.fingerprint, known.last_step, watched.binding]

    def _delete_call_note(self, name: str) -> None:
        if self._must_keep_notes:
            return
        with contextlib.suppress(OSError):
            os.unlink(f"{self._notes}/{name}")  # noqa: PTH108 - several times as fast, and done for every call


def _write_small_file(file: str, content: bytes) -> None:
    """Write a small file with few system calls, because one is written for every tool call."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


class WatchedCall:
    """Context manager that watches the settings while one tool call runs."""

    def __init__(self, monitor: SettingsMonitor, call: str, *, executes: bool, noted: bool) -> None:
        self._monitor, self.call, self.executes, self.noted = monitor, call, executes, noted
        self.watch = CallWatch()
        self.name = monitor._new_note_name()

    def __enter__(self) -> CallWatch:
        monitor = self._monitor
        with monitor._lock:
            monitor._check_changes()
            monitor._start_call(self)
        return self.watch

    def __exit__(self, *_: object) -> None:
        monitor = self._monitor
        with monitor._lock:
            # Before the check, which then sees the last change of every process that has ended.
            has_processes = self.executes and monitor._has_processes()
            try:
                monitor._check_changes()
            finally:
                self._finish(has_processes=has_processes)

    def enter_nowait(self) -> CallWatch | None:
        """Start watching the settings without blocking; return None if only a thread can do it.

        A thread is needed if a settings file has changed and must be read, if there are directories to list,
        and for a call that executes, after which processes are searched.
        """
        if self.executes or not self._monitor._lock.acquire(blocking=False):
            return None
        try:
            if not self._monitor._is_unchanged():
                return None
            self._monitor._start_call(self)
            return self.watch
        finally:
            self._monitor._lock.release()

    def exit_nowait(self) -> bool:
        """Stop watching the settings without blocking; return False if only a thread can do it."""
        if self.executes or not self._monitor._lock.acquire(blocking=False):
            return False
        try:
            is_unchanged = self._monitor._is_unchanged()
            if is_unchanged:
                self._finish(has_processes=False)
            return is_unchanged
        finally:
            self._monitor._lock.release()

    def _finish(self, *, has_processes: bool) -> None:
        del self._monitor._active[self.name]
        self._monitor._finish_call(self.name, self.call, executes=self.executes, has_processes=has_processes)


def read_path_state(path: Path, last_step: int) -> PathState:
    """Read the current state of a watched file or directory.

    `last_step` is the number of the last change that Toolfold itself recorded before.
    """
    seen, found = stat_signature(path), fingerprint_path(path)
    content: str | None = None
    with contextlib.suppress(OSError):  # such as a name that is too long
        if path.is_file() and path.stat().st_size <= MAX_CONFIG_BYTES:
            content = path.read_bytes().decode("utf-8", "surrogateescape")
    return PathState(seen, found, content, last_step)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links may have changed
