"""Configuration format of opencode: JSON with comments and a mapping `mcp` of servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.import_types import RejectedEntryError
from toolfold.mcp.importing.variables import Variables

# opencode replaces these in the text of the file, before it is parsed.
_REFERENCE = re.compile(r"\{(env|file):([^{}]*)\}")


def _list_entries(document: Json, _context: ImportContext) -> Mapping[str, Any]:
    return {
        name: _expand_references(entry_value) for name, entry_value in get_mapping(document, "mcp").items()
    }


def _expand_references(value: Any) -> Any:
    """Replace opencode's `{env:NAME}` with `${NAME}` in every string of an entry."""
    if isinstance(value, str):
        return _REFERENCE.sub(_translate_reference, value.replace("${", "$${"))
    if isinstance(value, list):
        return [_expand_references(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _expand_references(each) for name, each in value.items()}
    return value


def _translate_reference(match: re.Match[str]) -> str:
    # A file is not read here: _read_entry rejects the entry.
    return f"${{{match[2]}}}" if match[1] == "env" and match[2].isidentifier() else match[0]


def _read_entry(entry: EntryReader) -> None:
    kind = entry.read_text("type")
    command = entry.read_texts("command")
    if command:
        entry.set("command", command[0])
        entry.set("args", command[1:])
    entry.set("env", entry.read_pairs("environment", "env"))
    entry.set("cwd", entry.read_text("cwd"))
    url = entry.read_text("url")
    entry.set("url", url)
    entry.set("headers", entry.read_pairs("headers"))
    entry.set_transport(kind, url=url)
    if entry.read_flag("enabled") is False:
        entry.settings["enabled"] = False
    entry.read_seconds("timeout", "connect_timeout_seconds", per_second=1_000)
    _read_oauth(entry)
    _reject_file_references(entry.settings)


def _read_oauth(entry: EntryReader) -> None:
    entry_value = entry.take("oauth")
    if not isinstance(entry_value, Mapping):
        return
    login = EntryReader(entry_value, entry.variables)
    settings = {
        "client_id": login.read_text("clientId", is_value=True),
        "client_secret": login.read_text("clientSecret", is_value=True),
        "scopes": login.read_names("scope"),
    }
    entry.set("oauth", {key: value for key, value in settings.items() if value})
    entry.remarks += [f"oauth.{remark}" for remark in login.list_unread()]


def _reject_file_references(settings: Any) -> None:
    """Raise RejectedEntryError for a reference to a file's content, which Toolfold does not support."""
    if isinstance(settings, str) and (found := re.search(r"\{(?:file|env):[^{}]*\}", settings)):
        raise RejectedEntryError(f"{shorten(found[0], 80)} cannot be expanded: use an environment variable")
    values = settings.values() if isinstance(settings, Mapping) else settings
    for each in values if isinstance(settings, (Mapping, list)) else ():
        _reject_file_references(each)


OPENCODE = ClientFormat(
    "opencode", _list_entries, _read_entry, lambda _document, _context: Variables("shell")
)
