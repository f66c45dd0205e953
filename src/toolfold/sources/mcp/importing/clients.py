"""Every program whose servers can be taken over, and reading one of their files.

A file that cannot be read is told of and gives nothing; an entry that cannot be used is told of and takes no
other with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolfold.errors import ConfigError, shorten
from toolfold.model import Json, encodable
from toolfold.sources.mcp.importing.client_format import ClientFormat, ImportContext
from toolfold.sources.mcp.importing.codex import CODEX
from toolfold.sources.mcp.importing.documents import read_document
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.goose import GOOSE
from toolfold.sources.mcp.importing.mcp_json import (
    CLAUDE_CODE,
    CLAUDE_DESKTOP,
    CURSOR,
    GEMINI,
    VSCODE,
    WINDSURF,
)
from toolfold.sources.mcp.importing.opencode import OPENCODE
from toolfold.sources.mcp.importing.snippets import parse_snippet
from toolfold.sources.mcp.importing.types import (
    ClientConfigFile,
    ClientName,
    ImportedServer,
    ImportResult,
    RejectedEntry,
    RejectedEntryError,
)
from toolfold.sources.mcp.importing.variables import Variables

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


def read_client_file(place: ClientConfigFile, *, home: Path, project: Path) -> ImportResult:
    """All that one file gives. `project` is the folder somebody is in."""
    program = CLIENTS[place.client_name]
    around = ImportContext(home, project if place.scope == "project" else None, project)
    try:
        has_history = program.has_history and place.scope == "user"
        document = read_document(place.file, with_history=has_history)
    except ConfigError as error:
        return ImportResult(place, problem=error.problem)
    return _read_document(document, place, program, around)


def read_snippet(
    text: str,
    place: ClientConfigFile,
    *,
    home: Path,
    project: Path,
    name_entry: Callable[[Sequence[str]], str],
) -> ImportResult:
    """Read servers from a text that was copied, in any of the forms that READMEs print."""
    try:
        document = parse_snippet(text, place.file, name_entry)
    except ConfigError as error:
        hint = f" ({error.hint})" if error.hint else ""
        return ImportResult(place, problem=f"{error.problem}{hint}")
    return _read_document(document, place, VSCODE, ImportContext(home, None, project))


def _read_document(
    document: Json, place: ClientConfigFile, program: ClientFormat, around: ImportContext
) -> ImportResult:
    entries = program.entries(document, around)
    variables = program.variables(document, around)
    entries_read = [
        _read_entry(program, shorten(encodable(name), 200), held, variables, place, around)
        for name, held in islice(entries.items(), MAX_SERVERS)
    ]
    remarks = program.remarks(document, around)
    if len(entries) > MAX_SERVERS:
        remarks = (*remarks, f"it names more than {MAX_SERVERS} servers; the rest is left out")
    return ImportResult(
        place,
        tuple(each for each in entries_read if isinstance(each, ImportedServer)),
        tuple(each for each in entries_read if isinstance(each, RejectedEntry)),
        remarks=remarks,
    )


def guess_client(file: Path) -> ClientName:
    """Whose file it most likely is, by its name."""
    if file.suffix == ".toml":
        return "codex"
    if file.suffix in (".yaml", ".yml"):
        return "goose"
    folder = file.parent.name
    if file.stem == "opencode":
        return "opencode"
    if folder == ".gemini":
        return "gemini"
    if folder in (".vscode", "User") or file.name == "settings.json":
        return "vscode"
    if folder == ".cursor":
        return "cursor"
    if file.name == "mcp_config.json":
        return "windsurf"
    return "claude-desktop" if file.name == "claude_desktop_config.json" else "claude-code"


def _read_entry(
    program: ClientFormat,
    name: str,
    held: Any,
    variables: Variables,
    place: ClientConfigFile,
    around: ImportContext,
) -> ImportedServer | RejectedEntry:
    try:
        entry = EntryReader(held, variables)
        program.read(entry)
        _set_working_directory(entry, around)
        return entry.done(name, place)
    except RejectedEntryError as error:
        return RejectedEntry(name, place, encodable(str(error)))
    except (ValueError, OverflowError):  # a number of more digits than Python prints or divides
        return RejectedEntry(name, place, "it holds a number that cannot be used")


def _set_working_directory(entry: EntryReader, around: ImportContext) -> None:
    """The folder a server starts in: that of its project, where it has one."""
    if "${" in entry.settings.get("cwd", ""):
        entry.remark(f"cwd {shorten(entry.settings.pop('cwd'), 80)} is not looked up and is left out")
    if not entry.settings.get("command"):
        entry.settings.pop("cwd", None)
        return
    written = entry.settings.get("cwd", "")
    if around.project is not None:
        entry.settings["cwd"] = str(around.project / written)
    elif written and not Path(written).is_absolute():
        entry.settings["cwd"] = str(around.home / written.removeprefix("~/"))
