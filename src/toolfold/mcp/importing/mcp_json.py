"""Clients with the common JSON format: Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Gemini CLI.

The format is a mapping of servers with `command` or `url`. The clients differ in a few keys and in how they
expand variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.core.errors import shorten
from toolfold.core.types import Json
from toolfold.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.mcp.importing.entry_reader import EntryReader
from toolfold.mcp.importing.import_types import RejectedEntryError
from toolfold.mcp.importing.variables import Variables

_IGNORED_KEYS = (
    "name",
    "description",
    "icon",
    "gallery",
    "version",
    "dev",
    "metadata",
    "note",
    "id",
    "alwaysLoad",
)
_PERMISSION_KEYS = ("alwaysAllow", "autoApprove", "trust", "permissions")
_SANDBOX_KEYS = ("sandbox", "sandboxEnabled")


def read_server(entry: EntryReader) -> None:
    """Read a server's entry in the common JSON format; accept the key names of all clients."""
    _read_command(entry)
    url = entry.read_text("url", "serverUrl", "httpUrl", "endpoint")
    entry.set("url", url)
    entry.set("headers", entry.read_pairs("headers"))
    entry.set_transport(entry.read_text("type", "transport", "transportType"), url=url)
    if entry.read_flag("disabled") or entry.read_flag("enabled") is False:
        entry.settings["enabled"] = False
    entry.read_tool_names("disabledTools", "exclude")
    entry.read_tool_names("enabledTools", "include")
    _read_oauth(entry)
    _read_remarks(entry)


def _read_command(entry: EntryReader) -> None:
    command = entry.take("command")
    words = [command] if isinstance(command, str) else command or []
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise RejectedEntryError("command is not text")
    program, *more = [entry.translate(each) for each in words] or [""]
    entry.set("command", program)
    entry.set("args", [*more, *entry.read_texts("args", "arguments")])
    entry.set("env", entry.read_pairs("env", "environment"))
    entry.set("cwd", entry.read_text("cwd", "workingDirectory"))


def _read_oauth(entry: EntryReader) -> None:
    """Read the OAuth client settings of an entry; clients spell the keys in several ways."""
    reader = EntryReader({**entry.read_mapping("auth"), **entry.read_mapping("oauth")}, entry.variables)
    oauth: Json = {
        "client_id": reader.read_text("clientId", "CLIENT_ID", "client_id", is_value=True),
        "client_secret": reader.read_text("clientSecret", "CLIENT_SECRET", "client_secret", is_value=True),
        "scopes": reader.read_names("scopes", "scope"),
        "redirect_port": reader.take("callbackPort"),
    }
    entry.set("oauth", {key: value for key, value in oauth.items() if value not in (None, "", [])})
    entry.remarks += [*reader.remarks, *(f"oauth.{remark}" for remark in reader.list_unread())]


def _read_remarks(entry: EntryReader) -> None:
    entry.ignore(*_IGNORED_KEYS)
    if file := entry.take("envFile"):
        entry.add_remark(
            f"its variables are in {shorten(str(file), 120)}: list the ones it needs in env or pass_env"
        )
    if entry.take("headersHelper"):
        entry.add_remark(
            "headersHelper is not run: add the headers it produces, with ${NAME} references for secrets"
        )
    if entry.take(*_PERMISSION_KEYS):
        entry.add_remark("its automatic approvals are not imported: Toolfold's own approval rules apply")
    if entry.take(*_SANDBOX_KEYS):
        entry.add_remark("the editor runs it in a sandbox; Toolfold does not")


def _read_claude_code_entry(entry: EntryReader) -> None:
    entry.read_seconds("timeout", "call_timeout_seconds", per_second=1_000)
    read_server(entry)


def _read_gemini_entry(entry: EntryReader) -> None:
    """Read a Gemini CLI entry, in which `httpUrl` means Streamable HTTP and `url` means SSE."""
    if entry.has("url") and not entry.has("httpUrl", "type"):
        entry.settings["transport"] = "sse"
    entry.read_seconds("timeout", "call_timeout_seconds", per_second=1_000)
    entry.read_tool_names("excludeTools", "exclude")
    entry.read_tool_names("includeTools", "include")
    read_server(entry)


def _list_claude_code_entries(document: Json, context: ImportContext) -> Mapping[str, Any]:
    """Return the user's servers in Claude Code's file, overridden by the current project's servers."""
    local = get_mapping(document, "projects", str(context.current))
    project_servers = {
        name: _set_default_cwd(entry, context) for name, entry in get_mapping(local, "mcpServers").items()
    }
    servers = {**get_mapping(document, "mcpServers"), **project_servers}
    disabled = local.get("disabledMcpServers")
    for name in disabled if isinstance(disabled, list) else ():
        if isinstance(name, str) and isinstance(servers.get(name), Mapping):
            servers[name] = {**servers[name], "disabled": True}
    return servers


def _set_default_cwd(entry: Any, context: ImportContext) -> Any:
    if not isinstance(entry, Mapping) or "command" not in entry:
        return entry
    return {"cwd": str(context.current), **entry}


def _list_other_projects(document: Json, context: ImportContext) -> tuple[str, ...]:
    others = [
        directory
        for directory in get_mapping(document, "projects")
        if directory != str(context.current) and get_mapping(document, "projects", directory, "mcpServers")
    ]
    if not others:
        return ()
    projects = "project" if len(others) == 1 else "projects"
    return (f"it also has servers for {len(others)} other {projects}; run the import in their directories",)


def _list_vscode_entries(document: Json, _context: ImportContext) -> Mapping[str, Any]:
    """Return the servers from the three sections of VS Code settings that may contain servers."""
    older = {**get_mapping(document, "mcp", "servers"), **get_mapping(document, "mcp", "mcpServers")}
    return {**older, **get_mapping(document, "mcpServers"), **get_mapping(document, "servers")}


def _build_editor_variables(document: Json, context: ImportContext) -> Variables:
    values = {"userHome": str(context.home), "pathSeparator": "/", "/": "/"}
    if context.project is not None:
        values |= {
            "workspaceFolder": str(context.project),
            "workspaceRoot": str(context.project),
            "workspaceFolderBasename": context.project.name,
        }
    declared = document.get("inputs") or get_mapping(document, "mcp").get("inputs")
    inputs = {
        each["id"]: each
        for each in (declared if isinstance(declared, list) else ())
        if isinstance(each, Mapping) and isinstance(each.get("id"), str)
    }
    return Variables("editor", {key: text.replace("${", "$${") for key, text in values.items()}, inputs)


def _list_common_entries(document: Json, _context: ImportContext) -> Mapping[str, Any]:
    return get_mapping(document, "mcpServers")


CLAUDE_DESKTOP = ClientFormat("Claude Desktop", _list_common_entries, read_server)
CLAUDE_CODE = ClientFormat(
    "Claude Code",
    _list_claude_code_entries,
    _read_claude_code_entry,
    lambda _document, _context: Variables("shell"),
    _list_other_projects,
    has_history=True,
)
CURSOR = ClientFormat("Cursor", _list_common_entries, read_server, _build_editor_variables)
VSCODE = ClientFormat("VS Code", _list_vscode_entries, read_server, _build_editor_variables)
WINDSURF = ClientFormat("Windsurf", _list_common_entries, read_server, _build_editor_variables)
GEMINI = ClientFormat(
    "Gemini CLI", _list_common_entries, _read_gemini_entry, lambda _document, _context: Variables("shell")
)
