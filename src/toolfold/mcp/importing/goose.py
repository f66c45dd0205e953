"""Configuration format of Goose: YAML with a mapping `extensions`; only some extensions are MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.core.types import Json
from toolfold.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.import_types import RejectedEntryError

_BUILTIN_TYPES = frozenset({"builtin", "platform", "frontend", "inline_python"})
_IGNORED_KEYS = ("name", "display_name", "description", "bundled", "id")


def _list_entries(document: Json, _context: ImportContext) -> Mapping[str, Any]:
    return {name: _flatten(entry) for name, entry in get_mapping(document, "extensions").items()}


def _flatten(entry: Any) -> Any:
    """Merge the nested mapping `config`, which some versions of Goose write, into its entry."""
    inner = entry.get("config") if isinstance(entry, Mapping) else None
    if not isinstance(inner, Mapping):
        return entry
    return {**{key: value for key, value in entry.items() if key != "config"}, **inner}


def _read_entry(entry: EntryReader) -> None:
    kind = entry.read_text("type") or "stdio"
    if kind in _BUILTIN_TYPES:
        raise RejectedEntryError("the extension is a part of Goose, not an MCP server")
    entry.set("command", entry.read_text("cmd"))
    entry.set("args", entry.read_texts("args"))
    entry.set("env", entry.read_pairs("envs") | _read_keyring_secrets(entry))
    entry.set("cwd", entry.read_text("cwd"))
    url = entry.read_text("uri", "url")
    entry.set("url", url)
    entry.set("headers", entry.read_pairs("headers"))
    entry.set_transport(kind, url=url)
    if entry.read_flag("enabled") is False:
        entry.settings["enabled"] = False
    entry.read_seconds("timeout", "call_timeout_seconds")
    entry.read_tool_names("available_tools", "include")
    entry.ignore(*_IGNORED_KEYS)


def _read_keyring_secrets(entry: EntryReader) -> dict[str, str]:
    """Return `${NAME}` references for the secrets that Goose stores in its own keyring."""
    names = [name for name in entry.read_names("env_keys") if name.isidentifier() and name.isascii()]
    if names:
        entry.add_remark(
            f"Goose stores {', '.join(names)} in its own keyring: set them as environment variables"
        )
    return {name: f"${{{name}}}" for name in names}


GOOSE = ClientFormat("Goose", _list_entries, _read_entry)
