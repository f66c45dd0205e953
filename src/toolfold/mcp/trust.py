"""Trust policy for tools of MCP servers: new, changed and suspicious tools wait for a person's review.

Adding a server is the first approval, so its first listing is pinned, except for tools that the scanner
flags. After that a tool that is new or has changed meaningfully is held until a person accepts it (`pin`),
reported (`warn`) or allowed (`off`); a harmless change is recorded. Checked again at every call, because a
listing may be older than the lock file. Knows no connection and asks no person.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeGuard

from toolfold.config.record import SettingsRecord
from toolfold.config.settings import Config
from toolfold.core.errors import ConfigError, shorten
from toolfold.mcp.lock import LockFile, Pins, PinStore, SharedPins, lock_path
from toolfold.mcp.scan import ScanFinding, escape_hidden, scan_tool, scan_tools
from toolfold.mcp.tool_changes import cautious_annotations, find_meaningful_changes
from toolfold.mcp.tool_listing import ListedTool
from toolfold.state.database import Database

Policy = Literal["pin", "warn", "off"]
HoldReason = Literal["new", "changed", "flagged"]
_Findings = Mapping[str, tuple[ScanFinding, ...]]

MAX_COMPARED_LINES = 400  # longer texts are compared without positions, which is faster

_SENTENCES = re.compile(r"(?<=[.!?:;。！？])[^\S\n]+|\n")
_PLAIN_KEY = re.compile(r"[$\w-]{1,200}", re.ASCII)
_ORDER = ("name", "title", "description", "annotations", "inputSchema", "outputSchema")
_REASON_TEXTS = {"new": "is new", "changed": "has changed", "flagged": "is suspicious"}


@dataclass(frozen=True, slots=True)
class HeldTool:
    """A tool of a server that a person must review before it can be used."""

    tool: ListedTool
    accepted_version: ListedTool | None
    """The version that a person accepted, if it is known."""
    reason: HoldReason
    findings: tuple[ScanFinding, ...] = ()
    changes: tuple[str, ...] = ()
    """Changes that a person must decide about."""

    def __str__(self) -> str:
        return self.describe(self.tool.name)

    def describe(self, name: str) -> str:
        """Return why the tool must be reviewed before use; the text refers to the tool by `name`."""
        reasons = "".join(f"; {shorten(str(each), 300)}" for each in (*self.findings[:3], *self.changes[:3]))
        return f"{shorten(escape_hidden(name), 80)!r} {_REASON_TEXTS[self.reason]}{reasons}"


@dataclass(frozen=True, slots=True)
class TrustResult:
    """Tools of a server, divided into accepted tools and tools that a person must review."""

    accepted: tuple[ListedTool, ...] = ()
    held: tuple[HeldTool, ...] = ()
    warnings: tuple[str, ...] = ()
    updated: tuple[ListedTool, ...] = ()
    """Accepted tools whose new versions were accepted automatically, because the changes are harmless."""


class Trust:
    """Decides which tools of MCP servers may be used, and which a person must review first. Thread-safe."""

    def __init__(
        self,
        lock_of: Callable[[str], Path],
        *,
        own: Path | None = None,
        record: SettingsRecord | None = None,
        strict: bool = False,
        shared: SharedPins | None = None,
    ) -> None:
        """Create the trust policy; `own` is the file with the tools accepted on this machine.

        `record` distinguishes Toolfold's changes of the user's lock files from others. `strict` also holds
        tools with doubtful findings. `shared` replaces the lock files that are not in a project.
        """
        self.shared = shared
        self._lock_of, self._record, self._strict = lock_of, record, strict
        self._local_lock = None if own is None else LockFile(own, record)
        self._guard = threading.Lock()
        self._locks: dict[Path, PinStore] = {}
        self._listed: dict[str, tuple[ListedTool, ...]] = {}
        self._scan_cache: dict[tuple[str, str], bool] = {}
        """Cached scan results: (server, fingerprint) → True if the tool is suspicious."""
        self._harmless_changes: set[tuple[str, str, str]] = set()
        """Harmless changes: (server, accepted fingerprint, new fingerprint)."""

    @classmethod
    def from_config(cls, config: Config, database: Database | None = None) -> Trust:
        """Create the trust policy with the lock files of the configured servers.

        With a database, what replicas share replaces the user's lock file.
        """
        shared = None if database is None else SharedPins(database)
        own = config.paths.state_dir / "mcp" / "accepted.lock"
        record = SettingsRecord(config.paths.state_dir)
        strict = config.mcp.scan == "strict"
        return cls(
            functools.cache(lambda server: lock_path(config, server)),
            own=own,
            record=record,
            strict=strict,
            shared=shared,
        )

    def use_config(self, config: Config) -> None:
        """Apply a changed configuration, which determines the lock file of each server."""
        self._lock_of = functools.cache(lambda server: lock_path(config, server))

    def drop_listing(self, server: str) -> None:
        """Forget the listed tools of a server that is no longer used; accepted tools stay accepted."""
        with self._guard:
            self._listed.pop(server, None)

    def check_tools(self, server: str, policy: Policy, tools: Iterable[ListedTool]) -> TrustResult:
        """Divide a server's tools into accepted tools and tools that a person must review first.

        The tools of a new server are accepted, except those that the scanner flags. Raises ConfigError if the
        lock file cannot be used: no tool of the server may be used then.
        """
        tools = tuple(tools)
        if policy == "off":
            return self._store_accepted(server, TrustResult(tools))
        lock, pins = self._lock_for(server), self._effective_pins(server, tools)
        unknown = tools if pins is None else [each for each in tools if _is_unaccepted(each, pins)]
        others = self._add_listed(server, tools)
        findings = _scan_by_name(unknown, server, others)
        if pins is None:
            pins = lock.pin_new_server(
                server, [each for each in tools if not self._should_hold(findings[each.name])]
            )
        changes = {
            each.name: _find_changes_to_review(each, pins, findings, server, others) for each in unknown
        }
        updated = [each for each in unknown if changes[each.name] == ()]
        self._record_updates(server, lock, updated, pins)
        result = _partition_tools(server, policy, tools, pins, findings, changes)
        return self._store_accepted(server, replace(result, updated=tuple(updated)))

    def check_call(self, server: str, policy: Policy, tool: ListedTool) -> HeldTool | None:
        """Return the tool to review if its current definition may not be called; None if it may be called.

        Compares pins only: scanning a held tool at every call would let a server consume time. Raises
        ConfigError.
        """
        if policy != "pin":
            return None
        pins = self._effective_pins(server, [tool]) or {}
        if not _is_unaccepted(tool, pins) or self._was_harmless(server, tool, pins):
            return None
        return _make_held_tool(tool, pins, ())

    def with_cautious_hints(self, server: str, tool: ListedTool) -> ListedTool:
        """Return a tool without annotations that make it look safer than its accepted version."""
        try:
            pin = (self._lock_for(server).pins(server) or {}).get(tool.name)
        except ConfigError:
            return tool
        if pin is None or pin.tool is None or pin.fingerprint == tool.fingerprint:
            return tool
        return replace(tool, annotations=cautious_annotations(pin.tool, tool))

    def accept(self, server: str, tools: Iterable[ListedTool]) -> None:
        """Record tools that a person has reviewed and accepted."""
        tools, lock = tuple(tools), self._lock_for(server)
        lock.accept(server, tools)
        if self._local_lock is not None and _is_project_lock(lock):
            self._local_lock.accept(_local_lock_key(server, lock), tools)

    def forget(self, server: str) -> bool:
        """Delete the records of all accepted tools of a server; return False if there were none.

        Those that replicas share are kept: another replica that still has the server would accept all its
        present tools as those of a new server.
        """
        with self._guard:
            self._listed.pop(server, None)
        lock = self._lock_for(server)
        if self._local_lock is not None and isinstance(lock, LockFile):
            self._local_lock.forget(_local_lock_key(server, lock))
        return False if isinstance(lock, SharedPins) else lock.forget(server)

    def _effective_pins(self, server: str, tools: Iterable[ListedTool]) -> Pins | None:
        """Return a server's accepted tools, except those with scan findings not accepted on this machine.

        The project's lock file may come from the author of the tools: a suspicious tool must have been
        accepted on this machine as well.
        """
        lock = self._lock_for(server)
        pins = lock.pins(server)
        if pins is None or self._local_lock is None or not _is_project_lock(lock):
            return pins
        own = self._local_lock.pins(_local_lock_key(server, lock)) or {}
        doubtful = {
            each.name
            for each in tools
            if not _is_unaccepted(each, pins)
            and _is_unaccepted(each, own)
            and self._is_suspicious(server, each)
        }
        return {name: pin for name, pin in pins.items() if name not in doubtful}

    def _record_updates(self, server: str, lock: PinStore, updated: Sequence[ListedTool], pins: Pins) -> None:
        if not updated:
            return
        self._harmless_changes |= {
            (server, pins[each.name].fingerprint, each.fingerprint) for each in updated
        }
        lock.record_updates(server, updated, pins)
        if self._local_lock is not None and _is_project_lock(lock):
            self._local_lock.record_updates(_local_lock_key(server, lock), updated, pins)

    def _was_harmless(self, server: str, tool: ListedTool, pins: Pins) -> bool:
        """Return True if an earlier check found that this change of an accepted tool needs no review."""
        pin = pins.get(tool.name)
        return pin is not None and (server, pin.fingerprint, tool.fingerprint) in self._harmless_changes

    def find_suspicious(
        self, server: str, tools: Sequence[ListedTool]
    ) -> list[tuple[ListedTool, ScanFinding]]:
        """Scan a server's tools that are in use, and return the findings that require a review."""
        with self._guard:
            others = dict(self._listed)
        findings = scan_tools(tools, server, others)
        return [(each, one) for each, ones in zip(tools, findings, strict=True) for one in ones if one.grave]

    def _should_hold(self, findings: Iterable[ScanFinding]) -> bool:
        return any(finding.requires_review(strict=self._strict) for finding in findings)

    def _is_suspicious(self, server: str, tool: ListedTool) -> bool:
        key = server, tool.fingerprint
        if key not in self._scan_cache:
            self._scan_cache[key] = self._should_hold(scan_tool(tool, server, {}))
        return self._scan_cache[key]

    def _lock_for(self, server: str) -> PinStore:
        file = self._lock_of(server)
        with self._guard:
            if file not in self._locks:
                lock = LockFile(file)
                own = self.shared or LockFile(file, self._record)
                self._locks[file] = lock if _is_project_lock(lock) else own
            return self._locks[file]

    def _add_listed(self, server: str, tools: tuple[ListedTool, ...]) -> Mapping[str, tuple[ListedTool, ...]]:
        """Record the tools listed by a server, and return the tools of all servers by server name."""
        with self._guard:
            self._listed[server] = tools
            return dict(self._listed)

    def _store_accepted(self, server: str, result: TrustResult) -> TrustResult:
        with self._guard:
            self._listed[server] = result.accepted
        return result


def _is_project_lock(lock: PinStore) -> TypeGuard[LockFile]:
    """Return True if the accepted tools are in a project's lock file, which others may have written."""
    return isinstance(lock, LockFile) and lock.is_in_project


def _local_lock_key(server: str, lock: LockFile) -> str:
    return f"{server} {lock.file}"


def _scan_by_name(
    tools: Sequence[ListedTool], server: str, others: Mapping[str, tuple[ListedTool, ...]]
) -> _Findings:
    findings = scan_tools(tools, server, others)
    return {each.name: ones for each, ones in zip(tools, findings, strict=True)}


def _find_changes_to_review(
    tool: ListedTool,
    pins: Pins,
    findings: _Findings,
    server: str,
    others: Mapping[str, tuple[ListedTool, ...]],
) -> tuple[str, ...] | None:
    """Return the changes that a person must review; None if there is no accepted version of the tool."""
    pin = pins.get(tool.name)
    if pin is None or pin.tool is None or pin.fingerprint == tool.fingerprint:
        return None
    changes = find_meaningful_changes(pin.tool, tool)
    if changes or not findings[tool.name]:
        return changes
    accepted = scan_tools([pin.tool], server, others)[0]
    return tuple(str(finding) for finding in findings[tool.name] if finding not in accepted)


def _partition_tools(
    server: str,
    policy: Policy,
    tools: Sequence[ListedTool],
    pins: Pins,
    findings: _Findings,
    changes: Mapping[str, tuple[str, ...] | None],
) -> TrustResult:
    held = [
        _make_held_tool(each, pins, findings.get(each.name, ()), changes.get(each.name) or ())
        for each in tools
        if _is_unaccepted(each, pins) and changes.get(each.name) != ()
    ]
    held_names = {each.tool.name for each in held}
    accepted = [each for each in tools if each.name not in held_names]
    warnings = [
        _format_warning(server, each.name, note) for each in accepted for note in findings.get(each.name, ())
    ]
    if policy == "warn":
        return TrustResult(tuple(tools), (), (*(f"{server}: {each}" for each in held), *warnings))
    return TrustResult(tuple(accepted), tuple(held), tuple(warnings))


def _format_warning(server: str, name: str, finding: ScanFinding) -> str:
    return f"{server}: {shorten(escape_hidden(name), 80)!r}: {finding}"


def _is_unaccepted(tool: ListedTool, pins: Pins) -> bool:
    pin = pins.get(tool.name)
    return pin is None or not pin.accepts(tool.fingerprint)


def _make_held_tool(
    tool: ListedTool, pins: Pins, findings: tuple[ScanFinding, ...], changes: tuple[str, ...] = ()
) -> HeldTool:
    pin = pins.get(tool.name)
    if pin is not None:
        return HeldTool(tool, pin.tool, "changed", findings, changes)
    return HeldTool(tool, None, "flagged" if any(each.grave for each in findings) else "new", findings)


def describe_difference(before: ListedTool | None, after: ListedTool) -> tuple[str, ...]:
    """Describe the difference between two versions of a tool, for a person who reviews it.

    Complete, and free of terminal control characters.
    """
    old = dict(_flatten_values(before)) if before else {}
    new = dict(_flatten_values(after))
    lines: list[str] = []
    for path in sorted({*old, *new}, key=_path_order):
        if old.get(path) != new.get(path):
            lines += _describe_value_change(path, old.get(path), new.get(path))
    return tuple(lines)


def _path_order(path: str) -> tuple[int, str]:
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    return (_ORDER.index(first) if first in _ORDER else len(_ORDER)), path


def _flatten_values(tool: ListedTool) -> Iterator[tuple[str, str]]:
    """Yield each scalar or flat list in a tool definition as text, with its path."""
    stack: list[tuple[str, Any]] = [(key, value) for key, value in tool.to_json().items()]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Mapping) and value:
            stack += [(f"{path}{_format_path_step(key)}", each) for key, each in value.items()]
        elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
            stack += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        else:
            yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_path_step(key: str) -> str:
    """Format one key of a path in a tool definition; quote it if it could be read as several keys."""
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"


def _describe_value_change(path: str, old: str | None, new: str | None) -> list[str]:
    label = escape_hidden(path)
    was, now = _split_sentences(old), _split_sentences(new)
    if was == now:
        return [f"  {label}: only its whitespace has changed"]
    if len(was) <= 1 and len(now) <= 1:
        return [f"- {label}: {each}" for each in was] + [f"+ {label}: {each}" for each in now]
    return [f"  {label}:", *_diff_lines(was, now)]


def _split_sentences(text: str | None) -> list[str]:
    """Split text into sentences, so that a sentence inserted into a long paragraph is shown as a change."""
    if text is None:
        return []
    return [part for line in _SENTENCES.split(escape_hidden(text)) if (part := line.strip())] or ["(empty)"]


def _diff_lines(was: list[str], now: list[str]) -> Iterator[str]:
    if len(was) + len(now) <= MAX_COMPARED_LINES:
        yield from (line for line in difflib.ndiff(was, now) if not line.startswith("?"))
        return
    removed, added = Counter(was) - Counter(now), Counter(now) - Counter(was)
    if not removed and not added:
        yield "  (the same sentences in another order)"
    yield from chain((f"- {line}" for line in removed), (f"+ {line}" for line in added))
