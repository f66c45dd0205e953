"""Supported clients (Claude Code, Cursor …), and functions that read their configuration files.

A file that cannot be read, or an entry that cannot be used, is reported and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolfold.core.errors import ConfigError, shorten
from toolfold.core.types import Json, make_encodable
from toolfold.mcp.importing.client_format import ClientFormat, ImportContext
from toolfold.mcp.importing.codex import CODEX
from toolfold.mcp.importing.documents import read_document
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.goose import GOOSE
from toolfold.mcp.importing.import_types import (
    ClientConfigFile,
    ClientName,
    ImportedServer,
    ImportResult,
    RejectedEntry,
    RejectedEntryError,
)
from toolfold.mcp.importing.mcp_json import (
    CLAUDE_CODE,
    CLAUDE_DESKTOP,
    CURSOR,
    GEMINI,
    VSCODE,
    WINDSURF,
)
from toolfold.mcp.importing.opencode import OPENCODE
from toolfold.mcp.importing.snippets import parse_snippet
from toolfold.mcp.importing.variables import Variables

MAX_SERVERS = 500

CLIENTS: Mapping[ClientName, ClientFormat] = MappingProxyType(
    {
        "claude-desktop": CLAUDE_DESKTOP,
        "claude-code": CLAUDE_CODE,
        "cursor": CURSOR,
        "vscode": VSCODE,
        "windsurf": WINDSURF,
        "codex": CODEX,
        "gemini": GEMINI,
        "opencode": OPENCODE,
        "goose": GOOSE,
    }
)


def read_client_file(source: ClientConfigFile, *, home: Path, project: Path) -> ImportResult:
    """Read all MCP servers in a client's configuration file.

    `project` is the directory of the current project.
    """
    client_format = CLIENTS[source.client_name]
    context = ImportContext(home, project if source.scope == "project" else None, project)
    try:
        has_history = client_format.has_history and source.scope == "user"
        document = read_document(source.file, with_history=has_history)
    except ConfigError as error:
        return ImportResult(source, problem=error.problem)
    return _read_document(document, source, client_format, context)


def read_snippet(
    text: str,
    source: ClientConfigFile,
    *,
    home: Path,
    project: Path,
    name_entry: Callable[[Sequence[str]], str],
) -> ImportResult:
    """Read MCP servers from text copied from a README, in any common format."""
    try:
        document = parse_snippet(text, source.file, name_entry)
    except ConfigError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return ImportResult(source, problem=f"{error.problem}{hint}")
    return _read_document(document, source, VSCODE, ImportContext(home, None, project))


def _read_document(
    document: Json, source: ClientConfigFile, client_format: ClientFormat, context: ImportContext
) -> ImportResult:
    entries = client_format.list_entries(document, context)
    variables = client_format.build_variables(document, context)
    entries_read = [
        _read_entry(client_format, shorten(make_encodable(name), 200), raw_entry, variables, source, context)
        for name, raw_entry in islice(entries.items(), MAX_SERVERS)
    ]
    remarks = client_format.list_remarks(document, context)
    if len(entries) > MAX_SERVERS:
        remarks = (*remarks, f"it contains more than {MAX_SERVERS} servers; the rest is left out")
    return ImportResult(
        source,
        tuple(entry for entry in entries_read if isinstance(entry, ImportedServer)),
        tuple(entry for entry in entries_read if isinstance(entry, RejectedEntry)),
        remarks=remarks,
    )


def guess_client(file: Path) -> ClientName:
    """Return the client that most likely owns a configuration file, judged by the file's name."""
    if file.suffix == ".toml":
        return "codex"
    if file.suffix in (".yaml", ".yml"):
        return "goose"
    directory = file.parent.name
    if file.stem == "opencode":
        return "opencode"
    if directory == ".gemini":
        return "gemini"
    if directory in (".vscode", "User") or file.name == "settings.json":
        return "vscode"
    if directory == ".cursor":
        return "cursor"
    if file.name == "mcp_config.json":
        return "windsurf"
    return "claude-desktop" if file.name == "claude_desktop_config.json" else "claude-code"


def _read_entry(
    client_format: ClientFormat,
    name: str,
    raw_entry: Any,
    variables: Variables,
    source: ClientConfigFile,
    context: ImportContext,
) -> ImportedServer | RejectedEntry:
    try:
        entry = EntryReader(raw_entry, variables)
        client_format.read_entry(entry)
        _set_working_directory(entry, context)
        return entry.finish(name, source)
    except RejectedEntryError as error:
        return RejectedEntry(name, source, make_encodable(str(error)))
    except (ValueError, OverflowError):  # a number with too many digits for Python to convert
        return RejectedEntry(name, source, "it contains a number that is too large")


def _set_working_directory(entry: EntryReader, context: ImportContext) -> None:
    """Set the working directory of an imported server, relative to its project or the home directory."""
    if "${" in entry.settings.get("cwd", ""):
        entry.add_remark(f"cwd {shorten(entry.settings.pop('cwd'), 80)} contains a variable and is left out")
    if not entry.settings.get("command"):
        entry.settings.pop("cwd", None)
        return
    cwd = entry.settings.get("cwd", "")
    if context.project is not None:
        entry.settings["cwd"] = str(context.project / cwd)
    elif cwd and not Path(cwd).is_absolute():
        entry.settings["cwd"] = str(context.home / cwd.removeprefix("~/"))
