"""The clients with the common JSON form: Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Gemini CLI.

The form is a map of servers with `command` or `url`. The clients differ in a few keys and in how they expand
variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfold.errors import shorten
from toolfold.model import Json
from toolfold.sources.mcp.importing.client_format import ClientFormat, ImportContext, get_mapping
from toolfold.sources.mcp.importing.entry_reader import EntryReader
from toolfold.sources.mcp.importing.types import RejectedEntryError
from toolfold.sources.mcp.importing.variables import Variables

_HARMLESS = (
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
_PERMISSIONS = ("alwaysAllow", "autoApprove", "trust", "permissions")
_ITS_SANDBOX = ("sandbox", "sandboxEnabled")


def read_server(entry: EntryReader) -> None:
    """The common form, with every name one of these programs has for a part of it."""
    _read_start(entry)
    url = entry.text("url", "serverUrl", "httpUrl", "endpoint")
    entry.put("url", url)
    entry.put("headers", entry.pairs("headers"))
    entry.reached(entry.text("type", "transport", "transportType"), url=url)
    if entry.is_set("disabled") or entry.is_set("enabled") is False:
        entry.settings["enabled"] = False
    entry.globs("disabledTools", "exclude")
    entry.globs("enabledTools", "include")
    _read_login(entry)
    _tell_of_the_rest(entry)


def _read_start(entry: EntryReader) -> None:
    command = entry.take("command")
    words = [command] if isinstance(command, str) else command or []
    if not isinstance(words, list) or not all(isinstance(each, str) for each in words):
        raise RejectedEntryError("command is not text")
    program, *more = [entry.translated(each) for each in words] or [""]
    entry.put("command", program)
    entry.put("args", [*more, *entry.texts("args", "arguments")])
    entry.put("env", entry.pairs("env", "environment"))
    entry.put("cwd", entry.text("cwd", "workingDirectory"))


def _read_login(entry: EntryReader) -> None:
    """What was registered by hand, under the two sets of names it goes by."""
    said = EntryReader({**entry.map("auth"), **entry.map("oauth")}, entry.variables)
    oauth: Json = {
        "client_id": said.text("clientId", "CLIENT_ID", "client_id", is_value=True),
        "client_secret": said.text("clientSecret", "CLIENT_SECRET", "client_secret", is_value=True),
        "scopes": said.names("scopes", "scope"),
        "redirect_port": said.take("callbackPort"),
    }
    entry.put("oauth", {key: value for key, value in oauth.items() if value not in (None, "", [])})
    entry.remarks += [*said.remarks, *(f"oauth.{remark}" for remark in said.left())]


def _tell_of_the_rest(entry: EntryReader) -> None:
    entry.ignore(*_HARMLESS)
    if file := entry.take("envFile"):
        entry.remark(
            f"its variables lie in {shorten(str(file), 120)}: name those it needs in env or pass_env"
        )
    if entry.take("headersHelper"):
        entry.remark("headersHelper is not run: write the headers it makes, with references for secrets")
    if entry.take(*_PERMISSIONS):
        entry.remark("what it may do unasked is not taken over: Toolfold's own rules decide")
    if entry.take(*_ITS_SANDBOX):
        entry.remark("the editor runs it in a sandbox; Toolfold does not")


def _read_for_claude_code(entry: EntryReader) -> None:
    entry.seconds("timeout", "call_timeout_seconds", per_second=1_000)
    read_server(entry)


def _read_for_gemini(entry: EntryReader) -> None:
    """Gemini tells the two HTTP transports apart by the key: `httpUrl` is Streamable HTTP, `url` is SSE."""
    if entry.has("url") and not entry.has("httpUrl", "type"):
        entry.settings["transport"] = "sse"
    entry.seconds("timeout", "call_timeout_seconds", per_second=1_000)
    entry.globs("excludeTools", "exclude")
    entry.globs("includeTools", "include")
    read_server(entry)


def _of_claude_code(document: Json, around: ImportContext) -> Mapping[str, Any]:
    """The user's own, and over them those kept for the project somebody is in."""
    local = get_mapping(document, "projects", str(around.current))
    here = {name: _starting_in(held, around) for name, held in get_mapping(local, "mcpServers").items()}
    servers = {**get_mapping(document, "mcpServers"), **here}
    disabled = local.get("disabledMcpServers")
    for name in disabled if isinstance(disabled, list) else ():
        if isinstance(name, str) and isinstance(servers.get(name), Mapping):
            servers[name] = {**servers[name], "disabled": True}
    return servers


def _starting_in(held: Any, around: ImportContext) -> Any:
    if not isinstance(held, Mapping) or "command" not in held:
        return held
    return {"cwd": str(around.current), **held}


def _kept_for_others(document: Json, around: ImportContext) -> tuple[str, ...]:
    others = [
        folder
        for folder in get_mapping(document, "projects")
        if folder != str(around.current) and get_mapping(document, "projects", folder, "mcpServers")
    ]
    if not others:
        return ()
    projects = "project" if len(others) == 1 else "projects"
    return (f"it also keeps servers for {len(others)} other {projects}; import those from their folders",)


def _of_vscode(document: Json, _around: ImportContext) -> Mapping[str, Any]:
    """Its own form, the older one within its settings, and the one people copy from elsewhere."""
    older = {**get_mapping(document, "mcp", "servers"), **get_mapping(document, "mcp", "mcpServers")}
    return {**older, **get_mapping(document, "mcpServers"), **get_mapping(document, "servers")}


def _as_editors(document: Json, around: ImportContext) -> Variables:
    folders = {"userHome": str(around.home), "pathSeparator": "/", "/": "/"}
    if around.project is not None:
        folders |= {
            "workspaceFolder": str(around.project),
            "workspaceRoot": str(around.project),
            "workspaceFolderBasename": around.project.name,
        }
    listed = document.get("inputs") or get_mapping(document, "mcp").get("inputs")
    inputs = {
        each["id"]: each
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, Mapping) and isinstance(each.get("id"), str)
    }
    return Variables("editor", {key: text.replace("${", "$${") for key, text in folders.items()}, inputs)


def _common(document: Json, _around: ImportContext) -> Mapping[str, Any]:
    return get_mapping(document, "mcpServers")


CLAUDE_DESKTOP = ClientFormat("Claude Desktop", _common, read_server)
CLAUDE_CODE = ClientFormat(
    "Claude Code",
    _of_claude_code,
    _read_for_claude_code,
    lambda _document, _around: Variables("shell"),
    _kept_for_others,
    has_history=True,
)
CURSOR = ClientFormat("Cursor", _common, read_server, _as_editors)
VSCODE = ClientFormat("VS Code", _of_vscode, read_server, _as_editors)
WINDSURF = ClientFormat("Windsurf", _common, read_server, _as_editors)
GEMINI = ClientFormat("Gemini CLI", _common, _read_for_gemini, lambda _document, _around: Variables("shell"))
