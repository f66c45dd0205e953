"""Goose, whose file is YAML: a map `extensions`, of which some are servers and some are parts of Goose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.model import Json
from toolfold.sources.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.types import RejectedEntryError

_ITS_OWN = frozenset({"builtin", "platform", "frontend", "inline_python"})
_HARMLESS = ("name", "display_name", "description", "bundled", "id")


def _entries(document: Json, _around: ImportContext) -> Mapping[str, Any]:
    return {name: _flat(held) for name, held in get_mapping(document, "extensions").items()}


def _flat(held: Any) -> Any:
    """Some versions put what describes the server one level deeper."""
    inner = held.get("config") if isinstance(held, Mapping) else None
    if not isinstance(inner, Mapping):
        return held
    return {**{key: value for key, value in held.items() if key != "config"}, **inner}


def _read(entry: EntryReader) -> None:
    kind = entry.text("type") or "stdio"
    if kind in _ITS_OWN:
        raise RejectedEntryError("it is a part of Goose, and no server")
    entry.put("command", entry.text("cmd"))
    entry.put("args", entry.texts("args"))
    entry.put("env", entry.pairs("envs") | _kept_secrets(entry))
    entry.put("cwd", entry.text("cwd"))
    url = entry.text("uri", "url")
    entry.put("url", url)
    entry.put("headers", entry.pairs("headers"))
    entry.reached(kind, url=url)
    if entry.is_set("enabled") is False:
        entry.settings["enabled"] = False
    entry.seconds("timeout", "call_timeout_seconds")
    entry.globs("available_tools", "include")
    entry.ignore(*_HARMLESS)


def _kept_secrets(entry: EntryReader) -> dict[str, str]:
    """Goose looks these up in a keyring of its own, which nobody else can read."""
    names = [name for name in entry.names("env_keys") if name.isidentifier() and name.isascii()]
    if names:
        entry.remark(f"Goose keeps {', '.join(names)} in its own keyring: set the variables")
    return {name: f"${{{name}}}" for name in names}


GOOSE = ClientFormat("Goose", _entries, _read)
