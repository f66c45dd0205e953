"""Detect settings files that change while a tool call runs.

Before and after each call that may write or execute, the runtime's settings files are compared with their
last known state. A change that Toolfold did not make itself is logged, recorded in the approval log, reported
in the result, and stored as pending: no later runtime starts with it until the user has accepted it. Also
covered are processes that a call has left running, and calls during which the runtime was killed. A change
between calls, while none of their processes runs, is taken for the user's own. An open runtime that follows
its settings files asks here first which changes it may use. Knows nothing of what the settings mean.
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

from toolfold.config.document import MAX_CONFIG_BYTES
from toolfold.config.fingerprints import (
    ABSENT,
    Signature,
    fingerprint_path,
    have_signatures,
    stat_signature,
)
from toolfold.config.record import ADVICE, PendingChange, SettingsRecord
from toolfold.config.settings import Config
from toolfold.config.trust import PLUGINS_DIR, PROJECT_FILE
from toolfold.errors import ConfigError
from toolfold.provenance import find_tool_call

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
_MAX_CALL_FILES = 256
_LOCK_FILE = "toolfold.lock"


@dataclass(frozen=True, slots=True)
class WatchedPath:
    """A file or directory with settings of the runtime that is watched for changes."""

    path: Path
    binding: bool = True
    """True if no runtime starts after a change until it is accepted. False for files of projects."""


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
    found |= {path: WatchedPath(path) for path in own}
    return tuple(found.values())


def require_accepted(config: Config, record: SettingsRecord) -> None:
    """Raise ConfigError if settings changed during a tool call and the user has not accepted the change."""
    if (
        not find_tool_call()
    ):  # a sandboxed tool call may not see the runtime's process and would take it for killed
        _recover_calls(config, record)
    pending = record.list_pending()
    for each in watched_paths(config):
        change = pending.get(_absolute(each.path))
        if change is None:
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
        has_tool_processes: Callable[[], bool] = lambda: False,
        has_servers: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a monitor; `report` gets each changed settings file and the tool calls that were running.

        The other callbacks return True while processes of tool calls, or MCP servers, are running.
        """
        self._watched, self._record, self._report = tuple(watched), record, report
        self._has_tool_processes, self._has_servers = has_tool_processes, has_servers
        self._lock = threading.Lock()
        self._notes = record.directory / "calls"
        self._noted_states = ""
        """State of the settings for the files that record calls, as JSON; empty if it must be computed."""
        self._owner = 0, ""
        """Id and start time of this process, for the names of the files that record calls."""
        step = record.last_step()
        self._known_states = {each.path: read_path_state(each.path, step) for each in self._watched}
        self._signatures: list[tuple[str, Signature]] | None = None
        """The watched paths with their known signatures; None if the list must be made again."""
        self._active: dict[str, tuple[str, CallWatch]] = {}
        """Tool calls that run now, by the name of the file that records the call on disk."""
        self._left_running: dict[str, str] = {}
        """Ended tool calls that may have left processes running, by the name of the same file."""
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

    def find_unusable(self, paths: Iterable[Path]) -> list[str]:
        """Return a description of each change of the files `paths` that the user has not accepted.

        A tool call in progress that made one of the changes is told so in its result.
        """
        with self._lock:
            self._check_changes()
            wanted = {_absolute(path): path for path in paths}
            try:
                pending = {path: str(each) for path, each in self._record.list_pending().items()}
            except ConfigError as error:  # without the record, no change is known to be accepted
                return [str(error)]
            unrecorded = {
                _absolute(path): f"{path} was changed {why}" for path, why in self._unrecorded.items()
            }
            return [why for path, why in (unrecorded | pending).items() if path in wanted]

    def find_other_calls(self) -> list[str]:
        """Describe the tool calls of other runtimes that run now or whose processes may still be running."""
        found = []
        with self._lock, contextlib.suppress(OSError):
            for file in sorted(self._notes.iterdir())[:_MAX_CALL_FILES]:
                pid, began = _parse_owner(file)
                is_own = file.name in self._active or file.name in self._left_running
                if not is_own and pid and _is_running(pid, began):
                    found.append(f"a call of process {pid}")
        return found

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
            self._owner = pid, _start_time(pid) or ""
        return f"{pid}-{self._owner[1]}-{secrets.token_hex(4)}.json"

    def _finish_call(self, name: str, call: str, *, executes: bool) -> None:
        if not executes:
            if not self._must_keep_notes:
                self._delete_call_note(name)
            return
        self._left_running[name] = call
        if not self._has_tool_processes():
            for each in () if self._must_keep_notes else self._left_running:
                self._delete_call_note(each)
            self._left_running.clear()

    def _check_changes(self) -> None:
        """Find the settings files that have changed since the last check, and handle each change."""
        for each in self._watched:
            before = self._known_states[each.path]
            if stat_signature(each.path) == before.signature:
                continue
            now = read_path_state(each.path, self._last_step())
            self._known_states[each.path], self._noted_states, self._signatures = now, "", None
            if now.fingerprint != before.fingerprint:
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
            self._record.add_pending(_make_pending_change(each, before, during))
        except (ConfigError, OSError) as error:
            self._must_keep_notes = True
            self._unrecorded[each.path] = during
            log.error("the change of %s could not be recorded: %s", each.path, error)
        self._report_change(each.path, during)

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
            calls = list(dict.fromkeys(self._left_running.values()))[-3:]
            return f"by what {', '.join(calls)} may have left running"
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
            states = self._known_states.items()
            self._noted_states = json.dumps(
                {str(path): [each.fingerprint, each.last_step] for path, each in states}
            )
        content = f'{{"call": {json.dumps(call)}, "time": {time.time()}, "known": {self._noted_states}}}'
        with contextlib.suppress(OSError):
            try:
                _write_small_file(f"{self._notes}/{name}", content.encode())
            except FileNotFoundError:
                self._notes.mkdir(parents=True, exist_ok=True, mode=0o700)
                _write_small_file(f"{self._notes}/{name}", content.encode())

    def _delete_call_note(self, name: str) -> None:
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
            try:
                monitor._check_changes()
            finally:
                self._finish()

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
                self._finish()
            return is_unchanged
        finally:
            self._monitor._lock.release()

    def _finish(self) -> None:
        del self._monitor._active[self.name]
        self._monitor._finish_call(self.name, self.call, executes=self.executes)


def _make_pending_change(each: WatchedPath, before: PathState, during: str) -> PendingChange:
    return PendingChange(
        path=str(each.path),
        during=during,
        time=time.time(),
        accepted=before.fingerprint,
        before=before.content,
        restorable=before.content is not None or before.fingerprint == ABSENT,
        binding=each.binding,
    )


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


def _recover_calls(config: Config, record: SettingsRecord) -> None:
    """Check settings for changes by earlier tool calls whose runtime has ended or was killed."""
    watched = {str(each.path): each for each in watched_paths(config)}
    with contextlib.suppress(OSError):
        for file in sorted((record.directory / "calls").iterdir())[:_MAX_CALL_FILES]:
            pid, began = _parse_owner(file)
            if pid and _is_running(pid, began):
                continue  # its runtime still checks for changes
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                _recover_call(json.loads(file.read_bytes()[:MAX_CONFIG_BYTES]), watched, record)
            file.unlink(missing_ok=True)


def _recover_call(noted: dict[str, object], watched: dict[str, WatchedPath], record: SettingsRecord) -> None:
    known = noted["known"]
    for path, (before, step) in known.items() if isinstance(known, dict) else ():
        now = fingerprint_path(Path(path))
        if path not in watched or now == before:
            continue
        if record.is_own_change(Path(path), str(before), now, since=int(step)):
            continue
        seen = PathState((), str(before), None)
        log.error(
            "the settings in %s were changed by the call %s or by processes that it left running; %s",
            path,
            noted["call"],
            ADVICE,
        )
        record.add_pending(
            _make_pending_change(watched[path], seen, f"by {noted['call']} or what it left running,")
        )


def _parse_owner(file: Path) -> tuple[int, str]:
    """Parse the process id (0 if unknown) and the process start time in the name of a call's file."""
    pid, began = [*file.name.split("-"), "", ""][:2]
    return (int(pid) if pid.isdecimal() else 0), began


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links may have changed


def _is_running(pid: int, began: str) -> bool:
    """Return True if a process still runs; without /proc, also if a new process has the same id."""
    start = _start_time(pid)
    if start is not None:
        return start == began
    if os.name != "posix":  # on Windows, signal 0 is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _start_time(pid: int) -> str | None:
    """Return the start time of a process from the kernel; None if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except (OSError, IndexError):
        return None
