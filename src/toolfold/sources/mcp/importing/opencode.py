"""opencode: JSON with comments, and a map `mcp` whose servers are `local` or `remote`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolfold.errors import shorten
from toolfold.model import Json
from toolfold.sources.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.types import RejectedEntryError
from toolfold.sources.mcp.importing.variables import Variables

# opencode replaces these in the text of the file, before it is parsed.
_REFERENCE = re.compile(r"\{(env|file):([^{}]*)\}")


def _list_entries(document: Json, _around: ImportContext) -> Mapping[str, Any]:
    return {name: _expand(held) for name, held in get_mapping(document, "mcp").items()}


def _expand(value: Any) -> Any:
    """Write opencode's `{env:NAME}` as `${NAME}` in every text of an entry."""
    if isinstance(value, str):
        return _REFERENCE.sub(_translate_reference, value.replace("${", "$${"))
    if isinstance(value, list):
        return [_expand(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _expand(each) for name, each in value.items()}
    return value


def _translate_reference(found: re.Match[str]) -> str:
    # A file is not read here: _read refuses the entry and says so.
    return f"${{{found[2]}}}" if found[1] == "env" and found[2].isidentifier() else found[0]


def _read(entry: EntryReader) -> None:
    kind = entry.text("type")
    command = entry.texts("command")
    if command:
        entry.put("command", command[0])
        entry.put("args", command[1:])
    entry.put("env", entry.pairs("environment", "env"))
    entry.put("cwd", entry.text("cwd"))
    url = entry.text("url")
    entry.put("url", url)
    entry.put("headers", entry.pairs("headers"))
    entry.reached(kind, url=url)
    if entry.is_set("enabled") is False:
        entry.settings["enabled"] = False
    entry.seconds("timeout", "connect_timeout_seconds", per_second=1_000)
    _read_login(entry)
    _refuse_files(entry.settings)


def _read_login(entry: EntryReader) -> None:
    held = entry.take("oauth")
    if not isinstance(held, Mapping):
        return
    login = EntryReader(held, entry.variables)
    wanted = {
        "client_id": login.text("clientId", is_value=True),
        "client_secret": login.text("clientSecret", is_value=True),
        "scopes": login.names("scope"),
    }
    entry.put("oauth", {key: value for key, value in wanted.items() if value})
    entry.remarks += [f"oauth.{remark}" for remark in login.left()]


def _refuse_files(settings: Any) -> None:
    """Raise RejectedEntryError for a reference to a file's content, which Toolfold's settings cannot express."""
    if isinstance(settings, str) and (found := re.search(r"\{(?:file|env):[^{}]*\}", settings)):
        raise RejectedEntryError(f"{shorten(found[0], 80)} cannot be expanded: use an environment variable")
    values = settings.values() if isinstance(settings, Mapping) else settings
    for each in values if isinstance(settings, (Mapping, list)) else ():
        _refuse_files(each)


OPENCODE = ClientFormat("opencode", _list_entries, _read, lambda _document, _around: Variables("shell"))
