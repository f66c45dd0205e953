"""Read a client's configuration file, and build its content with the gateway added or removed.

The new content is parsed again and must differ by the wanted change only; otherwise the change is refused.
Writes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from toolfold.cli.connecting import json_edit, toml_edit, yaml_edit
from toolfold.cli.connecting.gateway_entries import servers_key
from toolfold.config.yaml_document import MAX_CONFIG_BYTES, read_text
from toolfold.core.errors import ConfigError
from toolfold.core.types import Json
from toolfold.mcp.importing import CLIENTS, ClientConfigFile, read_client_file
from toolfold.mcp.importing.client_format import get_mapping
from toolfold.mcp.importing.documents import MAX_BYTES_WITH_HISTORY, parse_document
from toolfold.mcp.importing.import_types import ClientName, ImportResult

ProgramName = ClientName | Literal["aider"]
"""Programs that can be connected: MCP clients, and programs that only use models."""
_UTF8_BOM = b"\xef\xbb\xbf"
_SUFFIXES: Mapping[ClientName, tuple[str, ...]] = {"codex": (".toml",), "goose": (".yaml", ".yml")}
_WRITABLE = 0o222


@dataclass(frozen=True, slots=True)
class ClientFile:
    """Configuration file of a program."""

    client: ProgramName
    file: Path
    """Path by which the client opens the file."""
    target: Path
    """Real file; differs from `file` if that is a symbolic link."""
    data: bytes | None
    """Content of the file; None if the file does not exist."""

    @property
    def text(self) -> str:
        return (self.data or b"").decode("utf-8-sig")

    @property
    def servers(self) -> Json:
        """Return the servers in the file by name, in the client's format. Raises ConfigError."""
        return _get_servers(self.client, self.document, self.file)

    @property
    def document(self) -> Json:
        """Return the parsed content of the file. Raises ConfigError."""
        return parse_document(self.text, self.file)

    def project_servers(self, project: Path) -> Json:
        """Return the servers for one project, which only the file of Claude Code has beside the user's."""
        return dict(get_mapping(self.document, *_project_path(str(project)))) if self.has_projects else {}

    @property
    def has_projects(self) -> bool:
        return self.client == "claude-code"

    def import_servers(self, home: Path, project: Path | None = None) -> ImportResult:
        """Convert the user's servers in the file, or those for one project, to Toolfold's settings."""
        source = ClientConfigFile(require_client(self.client), "user", self.file)
        if project is None:
            return read_client_file(source, home=home, project=self.file)  # a file matches no project
        found, names = read_client_file(source, home=home, project=project), self.project_servers(project)
        return replace(
            found,
            servers=tuple(each for each in found.servers if each.name in names),
            rejected=tuple(each for each in found.rejected if each.name in names),
        )


def require_client(program: ProgramName) -> ClientName:
    """Return the name of an MCP client. Raises ConfigError if the program is not a known client."""
    if program == "aider":
        raise ConfigError(
            "aider is not an MCP client",
            hint="Use --proxy: aider then sends its model requests through Toolfold.",
        )
    return program


def open_client_file(client: ClientName, file: Path) -> ClientFile:
    """Read a client's file. Raises ConfigError if Toolfold cannot parse or change it."""
    client_file = load_client_file(client, file)
    _ = client_file.servers
    return client_file


def reopen_client_file(before: ClientFile, project: Path | None = None) -> ClientFile:
    """Read a client's file again. Raises ConfigError if its servers have changed since `before`.

    With `project`, also if the servers for this project have changed.
    """
    now = open_client_file(require_client(before.client), before.file)
    is_same = project is None or now.project_servers(project) == before.project_servers(project)
    if now.servers != before.servers or not is_same:
        raise ConfigError(
            "the servers in the client's file were changed meanwhile; nothing was written",
            file=str(now.file),
            hint="try again",
        )
    return now


def load_client_file(client: ClientName, file: Path) -> ClientFile:
    """Return a client's file without parsing it. Raises ConfigError if it cannot be read or replaced."""
    suffixes = _SUFFIXES.get(client, (".json", ".jsonc"))
    if file.suffix not in suffixes:
        title = CLIENTS[client].title
        raise ConfigError(
            f"{title} stores its servers in {suffixes[0]} files; this file has another suffix", file=str(file)
        )
    limit = MAX_BYTES_WITH_HISTORY if CLIENTS[client].has_history else MAX_CONFIG_BYTES
    return load_file(client, file, limit)


def load_file(client: ProgramName, file: Path, limit: int = MAX_CONFIG_BYTES) -> ClientFile:
    """Return a program's file without parsing it. Raises ConfigError if it cannot be read or replaced."""
    target = _resolve_link(file)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return ClientFile(client, file, target, None)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=str(file)) from None
    text = read_text(target, limit=limit)
    data = target.read_bytes()
    if data.removeprefix(_UTF8_BOM) != text.encode():
        raise ConfigError("another program is writing the file", file=str(file), hint="try again")
    if not mode & _WRITABLE:
        raise ConfigError(
            "the file is read-only",
            file=str(target),
            hint="Another program may manage this file. Make the change in that program, or "
            "make the file writable.",
        )
    return ClientFile(client, file, target, data)


def build_content(
    client_file: ClientFile,
    name: str,
    entry: Json | None,
    others: Mapping[str, Json | None],
    projects: Mapping[str, Mapping[str, Json | None]] = MappingProxyType({}),
) -> bytes:
    """Return the file's content with the gateway's entry set, or removed if `entry` is None.

    `others` are further entries to set or remove, and `projects` those for single projects, by directory.
    Raises ConfigError if that would change anything else.
    """
    document = parse_document(client_file.text, client_file.file)
    changes = {name: entry, **others}
    text = client_file.text
    for server, new_entry in changes.items():
        if (
            new_entry is not None
            and _get_servers(client_file.client, document, client_file.file).get(server) != new_entry
        ):
            document = _add_entry(document, servers_key(client_file.client), server, new_entry)
            text = _add_to_text(client_file.client, text, server, document)
    removed = {server for server, new_entry in changes.items() if new_entry is None}
    removed &= set(_get_servers(client_file.client, document, client_file.file))
    if removed:
        document = _remove_entries(document, servers_key(client_file.client), removed)
        text = _remove_from_text(client_file.client, text, removed, document)
    for directory, servers in projects.items():
        document, text = _change_project(document, text, directory, servers)
    _require_exact_change(client_file, text, document)
    return encode_content(client_file, text)


def _change_project(
    document: Json, text: str, directory: str, servers: Mapping[str, Json | None]
) -> tuple[Json, str]:
    """Set or remove servers for one project in the file of Claude Code."""
    path = _project_path(directory)
    changed = copy.deepcopy(document)
    entries: Any = changed
    for key in path:
        entries = entries.setdefault(key, {})
    for server, entry in servers.items():
        if entry is None:
            entries.pop(server, None)
        elif entries.get(server) != entry:
            entries[server] = entry
            text = json_edit.set_value(text, (*path, server), entry)
    removed = {server for server, entry in servers.items() if entry is None}
    return changed, json_edit.remove_members(text, path, removed) if removed else text


def _project_path(directory: str) -> tuple[str, ...]:
    """Return the keys of the servers for one project in the file of Claude Code."""
    return "projects", directory, "mcpServers"


def encode_content(client_file: ClientFile, text: str) -> bytes:
    """Return a new text of a program's file as bytes, with a byte order mark if the file had one."""
    bom = _UTF8_BOM if (client_file.data or b"").startswith(_UTF8_BOM) else b""
    try:
        return bom + text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "a name or path contains characters that are not valid text", file=str(client_file.file)
        ) from None


def _resolve_link(file: Path) -> Path:
    try:
        if not file.is_symlink():
            return file
        return file.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ConfigError(
            "the symbolic link is broken",
            file=str(file),
            hint="repair or delete the symbolic link, then connect again",
        ) from None


def _get_servers(client: ProgramName, document: Json, file: Path) -> Json:
    section = servers_key(client)
    servers = document.get(section)
    if servers is not None and not isinstance(servers, dict):
        raise ConfigError(f"{section} is not a mapping of servers", file=str(file), hint="correct it by hand")
    return servers or {}


def _add_entry(document: Json, section: str, name: str, entry: Json) -> Json:
    return {**document, section: {**(document.get(section) or {}), name: copy.deepcopy(entry)}}


def _remove_entries(document: Json, section: str, names: Collection[str]) -> Json:
    remaining = {name: entry for name, entry in document[section].items() if name not in names}
    return {**document, section: remaining}


def _add_to_text(client: ProgramName, text: str, name: str, document: Json) -> str:
    section = servers_key(client)
    entry = document[section][name]
    if client == "codex":
        return toml_edit.set_table(text, section, name, entry)
    if client == "goose":
        return yaml_edit.set_entry(text, section, name, document)
    return json_edit.set_value(text, (section, name), entry)


def _remove_from_text(client: ProgramName, text: str, names: Collection[str], document: Json) -> str:
    section = servers_key(client)
    if client == "codex":
        return toml_edit.remove_tables(text, section, names)
    if client == "goose":
        return yaml_edit.remove_entries(text, section, names, document)
    return json_edit.remove_members(text, (section,), names)


def _require_exact_change(client_file: ClientFile, text: str, expected: Json) -> None:
    section = servers_key(client_file.client)
    try:
        is_exact = is_equal(
            _drop_empty_section(parse_document(text, client_file.file), section),
            _drop_empty_section(expected, section),
        )
    except ConfigError:
        is_exact = False
    if not is_exact:
        raise ConfigError(
            f"{section} cannot be changed without changing other parts of the file",
            file=str(client_file.file),
            hint="edit the file by hand as described in docs/connect.md",
        )


def _drop_empty_section(document: Json, section: str) -> Json:
    """Return the document without the named section if that section is empty."""
    if document.get(section):
        return document
    return {name: each for name, each in document.items() if name != section}


def is_equal(one: Any, other: Any) -> bool:
    """Return True if two parsed documents are equal."""
    return bool(one == other) or repr(one) == repr(other)  # NaN does not equal itself
