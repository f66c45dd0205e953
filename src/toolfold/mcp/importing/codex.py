"""Configuration format of Codex: TOML with a table `mcp_servers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.core.errors import shorten
from toolfold.mcp.importing.client_format import ClientFormat, get_mapping
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.import_types import RejectedEntryError

_IGNORED_KEYS = ("required", "name", "description")
_PERMISSION_KEYS = ("default_tools_approval_mode", "tools")


def _read_entry(entry: EntryReader) -> None:
    entry.set("command", entry.read_text("command"))
    entry.set("args", entry.read_texts("args"))
    entry.set("env", entry.read_pairs("env"))
    entry.set("pass_env", _read_passed_variables(entry))
    entry.set("cwd", entry.read_text("cwd"))
    url = entry.read_text("url")
    entry.set("url", url)
    entry.set("headers", _read_headers(entry))
    entry.set_transport(entry.read_text("type", "transport"), url=url)
    if entry.read_flag("enabled") is False:
        entry.settings["enabled"] = False
    entry.read_seconds("startup_timeout_ms", "connect_timeout_seconds", per_second=1_000)
    entry.read_seconds("startup_timeout_sec", "connect_timeout_seconds")
    entry.read_seconds("tool_timeout_sec", "call_timeout_seconds")
    entry.read_tool_names("enabled_tools", "include")
    entry.read_tool_names("disabled_tools", "exclude")
    _read_oauth(entry)
    if entry.take(*_PERMISSION_KEYS):
        entry.add_remark("its automatic approvals are not imported: Toolfold's own approval rules apply")
    entry.ignore(*_IGNORED_KEYS)


def _read_oauth(entry: EntryReader) -> None:
    reader = EntryReader(entry.read_mapping("oauth"), entry.variables)
    scopes = entry.read_names("scopes") or reader.read_names("scopes")
    oauth = {"client_id": reader.read_text("client_id"), "scopes": scopes}
    entry.set("oauth", {key: value for key, value in oauth.items() if value})
    entry.remarks += [f"oauth.{remark}" for remark in reader.list_unread()]


def _read_passed_variables(entry: EntryReader) -> list[str]:
    """Return the environment variables passed to a server, without variables from a remote machine."""
    variables = entry.take("env_vars") or []
    if not isinstance(variables, list):
        raise RejectedEntryError("env_vars is not a list")
    names = []
    for variable in variables:
        name = variable.get("name") if isinstance(variable, Mapping) else variable
        if not isinstance(name, str):
            raise RejectedEntryError("env_vars contains an entry without a name")
        if isinstance(variable, Mapping) and variable.get("source", "local") != "local":
            entry.add_remark(f"the variable {shorten(name, 60)} comes from another machine and is left out")
        else:
            names.append(name)
    return names


def _read_headers(entry: EntryReader) -> dict[str, str]:
    headers = entry.read_pairs("http_headers")
    for header, variable in entry.read_mapping("env_http_headers").items():
        headers[header] = _make_reference(variable)
    token, variable = entry.read_text("bearer_token", is_value=True), entry.take("bearer_token_env_var")
    if variable is not None:
        headers["Authorization"] = f"Bearer {_make_reference(variable)}"
    elif token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _make_reference(variable: Any) -> str:
    if not isinstance(variable, str) or not variable.isidentifier() or not variable.isascii():
        raise RejectedEntryError(f"{shorten(str(variable), 60)!r} is not a valid variable name")
    return f"${{{variable}}}"


CODEX = ClientFormat("Codex", lambda document, _context: get_mapping(document, "mcp_servers"), _read_entry)
