"""Codex, whose file is TOML: a table `mcp_servers` with a table for each server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.errors import shorten
from toolfold.sources.mcp.importing.client_format import ClientFormat, get_mapping
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.types import RejectedEntryError

_HARMLESS = ("required", "name", "description")
_PERMISSIONS = ("default_tools_approval_mode", "tools")


def _read(entry: EntryReader) -> None:
    entry.put("command", entry.text("command"))
    entry.put("args", entry.texts("args"))
    entry.put("env", entry.pairs("env"))
    entry.put("pass_env", _passed(entry))
    entry.put("cwd", entry.text("cwd"))
    url = entry.text("url")
    entry.put("url", url)
    entry.put("headers", _headers(entry))
    entry.reached(entry.text("type", "transport"), url=url)
    if entry.is_set("enabled") is False:
        entry.settings["enabled"] = False
    entry.seconds("startup_timeout_ms", "connect_timeout_seconds", per_second=1_000)
    entry.seconds("startup_timeout_sec", "connect_timeout_seconds")
    entry.seconds("tool_timeout_sec", "call_timeout_seconds")
    entry.globs("enabled_tools", "include")
    entry.globs("disabled_tools", "exclude")
    _read_login(entry)
    if entry.take(*_PERMISSIONS):
        entry.remark("what it may do unasked is not taken over: Toolfold's own rules decide")
    entry.ignore(*_HARMLESS)


def _read_login(entry: EntryReader) -> None:
    said = EntryReader(entry.map("oauth"), entry.variables)
    scopes = entry.names("scopes") or said.names("scopes")
    wanted = {"client_id": said.text("client_id"), "scopes": scopes}
    entry.put("oauth", {key: value for key, value in wanted.items() if value})
    entry.remarks += [f"oauth.{remark}" for remark in said.left()]


def _passed(entry: EntryReader) -> list[str]:
    """The variables it is given by name; one that lives on another machine cannot be."""
    held = entry.take("env_vars") or []
    if not isinstance(held, list):
        raise RejectedEntryError("env_vars is not a list")
    names = []
    for each in held:
        name = each.get("name") if isinstance(each, Mapping) else each
        if not isinstance(name, str):
            raise RejectedEntryError("env_vars holds what is no name")
        if isinstance(each, Mapping) and each.get("source", "local") != "local":
            entry.remark(f"the variable {shorten(name, 60)} comes from another machine and is left out")
        else:
            names.append(name)
    return names


def _headers(entry: EntryReader) -> dict[str, str]:
    headers = entry.pairs("http_headers")
    for header, variable in entry.map("env_http_headers").items():
        headers[header] = _looked_up(variable)
    token, variable = entry.text("bearer_token", is_value=True), entry.take("bearer_token_env_var")
    if variable is not None:
        headers["Authorization"] = f"Bearer {_looked_up(variable)}"
    elif token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _looked_up(variable: Any) -> str:
    if not isinstance(variable, str) or not variable.isidentifier() or not variable.isascii():
        raise RejectedEntryError(f"{shorten(str(variable), 60)!r} cannot be the name of a variable")
    return f"${{{variable}}}"


CODEX = ClientFormat("Codex", lambda document, _around: get_mapping(document, "mcp_servers"), _read)
