"""Lock file that records the definitions of MCP tools that a person has accepted.

One JSON file that can be read, compared and committed, beside the file that declares the server. The same
pins give the same bytes. A tool's hash decides; its definition is stored to show changes. A harmless new
version is recorded beside the accepted one and never replaces it, so that later versions are still compared
with the accepted one. An unreadable file is an error: as an empty file it would accept everything. Stores
decisions; does not make them.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from toolfold.config.atomic import lock_directory, replace_file
from toolfold.config.authority import require_user
from toolfold.config.fingerprints import ABSENT, fingerprint_bytes
from toolfold.config.project_trust import PROJECT_FILE
from toolfold.config.record import ADVICE, SettingsRecord
from toolfold.config.settings import Config
from toolfold.core.errors import ConfigError
from toolfold.core.tool_processes import find_tool_call
from toolfold.core.types import Json, read_json
from toolfold.mcp.tool_listing import ListedTool, parse_tool
from toolfold.state.copy_report import CopyReport
from toolfold.state.database import Database, DatabaseError, RowCursor

log = logging.getLogger(__name__)

Value = TypeVar("Value")

LOCK_FILE = "toolfold.lock"
VERSION = 1
MAX_LOCK_BYTES = 64_000_000
MAX_SHARED_SERVERS = 10_000
MAX_DEFINITION_CHARS = 100_000  # of JSON; of a longer one only the hash is stored

_FILE_NOTE = "Written by toolfold. What each MCP server's tools were when they were accepted."
_REPAIR_HINT = "restore it from version control, or delete it to pin the tools of every server again"


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin of one tool in the lock file: the definition that a person accepted."""

    fingerprint: str
    tool: ListedTool | None = None
    """The tool's definition, unless it is too long to store."""
    update: Pin | None = None
    """A later version of the tool with only harmless changes, which was accepted automatically."""

    def accepts(self, fingerprint: str) -> bool:
        """Return True if a tool with this fingerprint may be used."""
        return fingerprint == self.fingerprint or (
            self.update is not None and fingerprint == self.update.fingerprint
        )


Pins = Mapping[str, Pin]
_Block = dict[str, Pin]
_Blocks = dict[str, _Block]
_Texts = dict[str, tuple[Pins, str]]
"""Cache of serialized blocks."""
_NOTHING: Pins = MappingProxyType({})


def lock_path(config: Config, server: str) -> Path:
    """Return a server's lock file: the project's file if the project defines the server, else the user's."""
    declared = config.origins.get(f"mcp.servers.{server}", "")
    project = config.paths.project_file
    if project is not None and declared.startswith(f"project file {project}:"):
        return project.parent / LOCK_FILE
    return config.paths.config_dir / LOCK_FILE


class PinStore(ABC):
    """Accepted tools (pins) of each MCP server. Safe for several threads and processes."""

    @abstractmethod
    def pins(self, server: str) -> Pins | None:
        """Return the accepted tools of a server; None if no tool has been accepted. Raises ConfigError."""

    @abstractmethod
    def _update(self, server: str, change: Callable[[_Block | None], _Block | None]) -> _Block | None:
        """Apply `change` to the accepted tools of a server, store the result and return it.

        None stands for a server of which nothing was accepted.
        """

    def pin_new_server(self, server: str, tools: Iterable[ListedTool]) -> Pins:
        """Accept all tools of a new server; return the accepted tools unchanged if there already are some.

        In a process started by a tool call nothing is written: the pins are valid for this process only.
        """
        if find_tool_call():
            return self.pins(server) or MappingProxyType(_pin_tools(tools))
        found = self._update(server, lambda block: _pin_tools(tools) if block is None else block)
        return _NOTHING if found is None else found

    def accept(self, server: str, tools: Iterable[ListedTool]) -> None:
        """Record that a person accepted the current definitions of these tools; keep other accepted tools."""
        require_user(f"accepting tools of the MCP server {server!r}")
        accepted = _pin_tools(tools)
        self._update(server, lambda block: {**(block or {}), **accepted})

    def record_updates(self, server: str, tools: Iterable[ListedTool], compared: Pins) -> None:
        """Record new versions of accepted tools whose changes need no review.

        In a process started by a tool call nothing is written.
        """
        if find_tool_call():
            return
        tools = tuple(tools)

        def add_updates(block: _Block | None) -> _Block | None:
            updated = None if block is None else dict(block)
            for tool in tools if updated else ():
                pin = updated.get(tool.name) if updated else None
                if updated and pin is not None and pin.fingerprint == compared[tool.name].fingerprint:
                    update = Pin(tool.fingerprint, _definition_to_store(tool))
                    updated[tool.name] = Pin(pin.fingerprint, pin.tool, update)
            return updated

        self._update(server, add_updates)

    def forget(self, server: str) -> bool:
        """Remove all accepted tools of a server; return False if the server had none."""
        require_user(f"forgetting the tools of the MCP server {server!r}")
        if self.pins(server) is None:
            return False
        self._update(server, lambda _: None)
        return True


class LockFile(PinStore):
    """Lock file with the accepted tools; it is read again whenever it has changed."""

    def __init__(self, file: Path, record: SettingsRecord | None = None) -> None:
        """Open a lock file; with `record`, reject changes of the file that Toolfold did not make."""
        self.file, self._record = file, record
        self._project_file = str(file.parent / PROJECT_FILE)
        self._fingerprint, self._last_step = "", 0
        self._guard = threading.Lock()
        self._file_state: tuple[int, ...] | None = None
        self._blocks: _Blocks = {}
        self._texts: _Texts = {}

    @property
    def is_in_project(self) -> bool:
        """Return True if the lock file belongs to a project, and others may therefore have written it."""
        return os.path.exists(self._project_file)  # noqa: PTH110 - several times as fast, and done for every call

    def pins(self, server: str) -> Pins | None:
        with self._guard:
            block = self._read_blocks().get(server)
            return None if block is None else MappingProxyType(block)

    def list_servers(self) -> list[str]:
        """Return the servers of which tools were accepted. Raises ConfigError."""
        with self._guard:
            return list(self._read_blocks())

    def _update(self, server: str, change: Callable[[_Block | None], _Block | None]) -> _Block | None:
        with self._guard, lock_directory(self.file.parent):
            before = self._read_blocks()
            changed = change(before.get(server))
            after = {name: block for name, block in before.items() if name != server}
            if changed is not None:
                after[server] = changed
            if after != before:
                content = serialize_pins(after, self._texts)
                step = 0 if self._record is None else self._record.note_change(self.file, content)
                replace_file(self.file, content)
                self._store_state(after, _read_file_state(self.file), fingerprint_bytes(content), step)
            return changed

    def _read_blocks(self) -> _Blocks:
        try:
            file_state = _read_file_state(self.file)
            if file_state != self._file_state:
                step = self._find_last_step()
                content = self._read_content()
                self._require_own_change(fingerprint_bytes(content))
                self._store_state(
                    _parse_lock(content, self.file), file_state, fingerprint_bytes(content), step
                )
        except FileNotFoundError:
            if self._fingerprint != ABSENT:
                step = self._find_last_step()
                self._require_own_change(ABSENT)
                self._store_state({}, None, ABSENT, step)
        except OSError as error:
            raise _make_lock_error(f"cannot be read: {error.strerror}", self.file) from None
        return self._blocks

    def _store_state(
        self, blocks: _Blocks, file_state: tuple[int, ...] | None, fingerprint: str, step: int
    ) -> None:
        self._blocks, self._file_state, self._fingerprint, self._last_step = (
            blocks,
            file_state,
            fingerprint,
            step,
        )

    def _find_last_step(self) -> int:
        return 0 if self._record is None else self._record.last_step()

    def _require_own_change(self, now: str) -> None:
        """Raise ConfigError if anything but Toolfold has changed the lock file since it was first read."""
        if self._record is None or not self._fingerprint:
            return
        if self._record.is_own_change(self.file, self._fingerprint, now, since=self._last_step):
            return
        raise ConfigError(
            "the lock file was changed by a program other than Toolfold", file=str(self.file), hint=ADVICE
        )

    def _read_content(self) -> bytes:
        with self.file.open("rb") as stream:
            content = stream.read(MAX_LOCK_BYTES + 1)
        if len(content) > MAX_LOCK_BYTES:
            raise _make_lock_error(f"is larger than {MAX_LOCK_BYTES:,} bytes", self.file)
        return content


class SharedPins(PinStore):
    """Accepted tools (pins) of MCP servers, in the database that replicas share.

    They are in memory and follow changes of other replicas. While the database cannot be reached, the last
    known ones are used, and nothing can be accepted.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._change_lock = threading.Lock()
        """Held while pins are read or changed, so that an older state does not replace a newer one."""
        self._blocks: _Blocks | None = None

    def pins(self, server: str) -> Pins | None:
        if self._blocks is None:
            self.reload()
        block = (self._blocks or {}).get(server)
        return None if block is None else MappingProxyType(block)

    def reload(self) -> None:
        """Read all accepted tools again; on failure, keep the previous ones and raise ConfigError."""
        with self._change_lock:
            self._blocks = self._load()

    def copy_from(self, source: LockFile, *, dry_run: bool) -> CopyReport:
        """Add the accepted tools of servers that the database lacks; with `dry_run`, only report it."""
        report = CopyReport("servers with accepted tools")
        for server in source.list_servers():
            accepted, known = dict(source.pins(server) or {}), self.pins(server)
            if known is not None:
                report.note_known(server, is_same=dict(known) == accepted)
                continue
            if not dry_run:
                self._update(server, functools.partial(_keep_or_add, accepted))
            report.copied.append(server)
        return report

    def _update(self, server: str, change: Callable[[_Block | None], _Block | None]) -> _Block | None:
        def update(cursor: RowCursor) -> _Block | None:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"pins {server}",))
            row = cursor.execute("SELECT tools FROM pins WHERE server = %s", (server,)).fetchone()
            before = None if row is None else self._parse(server, row["tools"])
            after = change(before)
            if after is None and before is not None:
                cursor.execute("DELETE FROM pins WHERE server = %s", (server,))
            elif after is not None and after != before:
                cursor.execute(
                    "INSERT INTO pins (server, tools) VALUES (%s, %s)"
                    " ON CONFLICT (server) DO UPDATE SET tools = excluded.tools",
                    (server, _serialize_block(after)),
                )
            return after

        with self._change_lock:
            changed = self._call(lambda: self._database.run(update))
            if self._blocks is not None:
                others = {name: block for name, block in self._blocks.items() if name != server}
                self._blocks = others if changed is None else {**others, server: changed}
        return changed

    def _load(self) -> _Blocks:
        statement = "SELECT server, tools FROM pins LIMIT %s"
        rows = self._call(lambda: self._database.query(statement, (MAX_SHARED_SERVERS,)))
        return {row["server"]: self._parse(row["server"], row["tools"]) for row in rows}

    def _parse(self, server: str, text: str) -> _Block:
        """Return the accepted tools of a row; none if it is damaged, so that all wait for a review."""
        place = Path(f"database {self._database.address}")
        try:
            return _parse_block(server, read_json(text, unique_keys=True), place)
        except (ConfigError, ValueError, RecursionError) as error:
            log.error("the accepted tools of the server %r are damaged, and need a review: %s", server, error)
            return {}

    def _call(self, work: Callable[[], Value]) -> Value:
        try:
            return work()
        except DatabaseError as error:
            raise ConfigError(
                f"the accepted tools of MCP servers cannot be read: {error}", key="store"
            ) from None


def _keep_or_add(accepted: _Block, block: _Block | None) -> _Block:
    return accepted if block is None else block


def _read_file_state(file: Path) -> tuple[int, ...]:
    state = file.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


def serialize_pins(blocks: Mapping[str, Pins], texts: _Texts | None = None) -> bytes:
    """Return the lock file's content, in ASCII so that invisible characters are visible in a review.

    `texts` caches serialized blocks: with many servers most are unchanged.
    """
    texts = {} if texts is None else texts
    for server, pins in blocks.items():
        if server not in texts or texts[server][0] is not pins:
            texts[server] = pins, _serialize_block(pins)
    servers = ",".join(f"\n    {json.dumps(server)}: {texts[server][1]}" for server in sorted(blocks))
    block = f"{{{servers}\n  }}" if servers else "{}"
    note = json.dumps(_FILE_NOTE)
    return f'{{\n  "note": {note},\n  "servers": {block},\n  "version": {VERSION}\n}}\n'.encode()


def _serialize_block(pins: Pins) -> str:
    block = {"tools": {name: _pin_to_json(pin) for name, pin in pins.items()}}
    text = json.dumps(block, indent=2, sort_keys=True, ensure_ascii=True)
    return text.replace("\n", "\n    ")  # JSON strings contain no line breaks


def _pin_to_json(pin: Pin) -> Json:
    plain: Json = {"hash": pin.fingerprint}
    if pin.tool is not None:
        plain["definition"] = pin.tool.to_json()
    if pin.update is not None:
        plain["update"] = _pin_to_json(pin.update)
    return plain


def _pin_tools(tools: Iterable[ListedTool]) -> dict[str, Pin]:
    return {tool.name: Pin(tool.fingerprint, _definition_to_store(tool)) for tool in tools}


def _definition_to_store(tool: ListedTool) -> ListedTool | None:
    return tool if len(json.dumps(tool.to_json())) <= MAX_DEFINITION_CHARS else None


def _parse_lock(content: bytes, file: Path) -> _Blocks:
    try:
        data = read_json(content.decode(), unique_keys=True)
    except (ValueError, RecursionError):
        raise _make_lock_error("is not valid JSON, or contains merge conflict markers", file) from None
    if not isinstance(data, dict) or not isinstance(data.get("servers"), dict):
        raise _make_lock_error("has no `servers`", file)
    if data.get("version") != VERSION:
        raise ConfigError(
            f"the lock file has version {data.get('version')!r}; this release of Toolfold supports"
            f" version {VERSION}",
            file=str(file),
            hint="use the release of Toolfold that wrote the lock file, or a newer release",
        )
    return {server: _parse_block(server, block, file) for server, block in data["servers"].items()}


def _parse_block(server: str, block: Any, file: Path) -> dict[str, Pin]:
    tools = block.get("tools") if isinstance(block, dict) else None
    if not isinstance(tools, dict):
        raise _make_lock_error(f"has no `tools` for the server {server!r}", file)
    return {name: _parse_pin(server, name, pin, file) for name, pin in tools.items()}


def _parse_pin(server: str, name: str, pin: Any, file: Path) -> Pin:
    fingerprint = pin.get("hash") if isinstance(pin, dict) else None
    if not isinstance(fingerprint, str) or not fingerprint.startswith("sha256:"):
        raise _make_lock_error(f"has no hash for {name!r} of the server {server!r}", file)
    update = _parse_pin(server, name, {**pin["update"], "update": None}, file) if _has_update(pin) else None
    if "definition" not in pin:
        return Pin(fingerprint, None, update)
    try:
        tool = parse_tool(pin["definition"])
    except ValueError as error:
        raise _make_lock_error(
            f"has an invalid tool definition for the server {server!r}: {error}", file
        ) from None
    if tool.name != name or tool.fingerprint != fingerprint:
        # The definition that a person reviewed must be the one that the hash allows.
        raise _make_lock_error(
            f"has a hash for {name!r} of the server {server!r} that does not match its definition", file
        )
    return Pin(fingerprint, tool, update)


def _has_update(pin: Any) -> bool:
    return isinstance(pin.get("update"), dict)


def _make_lock_error(problem: str, file: Path) -> ConfigError:
    return ConfigError(f"the lock file {problem}", file=str(file), hint=_REPAIR_HINT)
