"""Create registry tools for the tools, resources and prompts of an MCP server.

Names them, applies `include` and `exclude`, and declares their effects. Resources and prompts become
auxiliary tools. The functions that perform calls are passed in: knows no connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.authoring import build_tool
from toolfold.core.errors import InvalidTool
from toolfold.core.types import (
    MCP_PREFIX,
    MCP_SOURCE,
    CallContext,
    Content,
    Effect,
    FrozenDict,
    Handler,
    Json,
    Meaning,
    Source,
    Tool,
)
from toolfold.core.untrusted_text import TextMarker, leave_unmarked
from toolfold.mcp.content import (
    prompt_content,
    prompt_list_content,
    resource_content,
    resource_list_content,
)
from toolfold.mcp.faults import RequestRejected
from toolfold.mcp.tool_listing import ListedTool, Listing
from toolfold.mcp.tool_names import ToolNames
from toolfold.safety.approval.annotations import effects_of_annotations
from toolfold.safety.approval.parameter_names import COMMAND_NAMES, DIRECTORY_NAMES, PATH_NAMES

log = logging.getLogger(__name__)

__all__ = ["CallTool", "SendRequest", "approval_traits", "build_auxiliary_tools", "build_tools", "is_wanted"]

CallTool = Callable[[ListedTool, Json, CallContext], Awaitable[Content]]
SendRequest = Callable[[str, Json, CallContext], Awaitable[Any]]

DISPATCH_GRACE_S = 5.0
"""Time that the runtime waits longer than the connection, whose own timeout error is more specific."""

_CODE_PARAMETERS = frozenset(
    {"code", "script", "javascript", "js_code", "python", "python_code", "source_code", "shell", "bash"}
    | {"shell_code", "shell_script", "bash_script", "bash_code"}
)
_SHELL_WORDS = re.compile(r"\b(?:bash|zsh|sh|shell)\b", re.IGNORECASE)
_OTHER_LANGUAGE_WORDS = re.compile(
    r"\b(?:java|type|apps ?)script\b|\b(?:js|python|ruby|lua|sql)\b", re.IGNORECASE
)
_FLAT_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_READ_ONLY = frozenset({Effect.READ})


def build_tools(
    server: str, settings: McpServerSettings, listed: Iterable[ListedTool], names: ToolNames, call: CallTool
) -> list[Tool]:
    """Create the registry tools of an MCP server; skip invalid tools and log the reasons."""
    tools: dict[str, Tool] = {}
    for each in listed:
        if not is_wanted(settings, each.name):
            continue
        try:
            tool = _build_listed_tool(server, settings, each, names, call)
        except InvalidTool as error:
            log.warning("MCP server %r: a tool is ignored: %s", server, error)
            continue
        tools.setdefault(tool.name, tool)
    return list(tools.values())


def is_wanted(settings: McpServerSettings, tool: str) -> bool:
    """Return True if the server's settings include this tool and do not exclude it."""
    included = any(fnmatchcase(tool, glob) for glob in settings.include)
    return included and not any(fnmatchcase(tool, glob) for glob in settings.exclude)


def _build_listed_tool(
    server: str, settings: McpServerSettings, tool: ListedTool, names: ToolNames, call: CallTool
) -> Tool:
    effects, judged_as = approval_traits(tool)

    async def run(args: Json, context: CallContext) -> Content:
        return await call(tool, args, context)

    return _build_tool(
        server,
        settings,
        names,
        tool.name,
        run,
        description=tool.description or tool.title,
        title=tool.title,
        schema={"parameters": tool.input_schema},
        effects=effects,
        judged_as=judged_as,
        parallel=tool.annotations.get("readOnlyHint") is True and Effect.DESTRUCTIVE not in effects,
    )


def approval_traits(tool: ListedTool) -> tuple[frozenset[Effect], Mapping[str, Meaning]]:
    """Return the effects of a tool and the meanings of its arguments, from which approval is decided."""
    effects = effects_of_annotations(tool.annotations)
    if Effect.READ not in effects and any(
        name.casefold() in _CODE_PARAMETERS for name in _parameter_schemas(tool)
    ):
        effects |= {Effect.EXECUTE}
    return effects, _argument_meanings(tool, effects)


def _build_tool(
    server: str,
    settings: McpServerSettings,
    names: ToolNames,
    tool_name: str,
    handler: Handler,
    **attributes: Any,
) -> Tool:
    known = names.names_of(server, tool_name)
    tool = build_tool(
        name=names.registered_name(server, tool_name),
        toolset=f"{MCP_PREFIX}{server}",
        handler=handler,
        is_async=True,
        timeout=settings.max_call_seconds + DISPATCH_GRACE_S,
        source=Source(MCP_SOURCE, server),
        **attributes,
    )
    return replace(
        tool,
        original_name=known.original,
        listed_name="" if names.for_clients or known.client == tool.name else known.client,
        alias=known.agent if names.for_clients and known.agent != tool.name else "",
    )


def _parameter_schemas(tool: ListedTool) -> Mapping[str, Any]:
    properties = tool.input_schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _argument_meanings(tool: ListedTool, effects: Collection[Effect]) -> dict[str, Meaning]:
    """Return the meaning of each argument (command, path …) of a tool that accepts a shell script.

    Declared meanings replace the default names at any depth, so the defaults are declared as well, and
    nothing is declared for a tool with nested parameters.
    """
    properties = _parameter_schemas(tool)
    scripts = [name for name, schema in properties.items() if _is_shell_script(name, schema, tool)]
    if not scripts or any(map(_is_nested, properties.values())):
        return {}
    meanings = {name: _default_meaning(name.casefold(), effects) for name in properties}
    defaults = {name: meaning for name, meaning in meanings.items() if meaning is not None}
    return defaults | dict.fromkeys(scripts, Meaning.COMMAND)


def _default_meaning(name: str, effects: Collection[Effect]) -> Meaning | None:
    if name in COMMAND_NAMES:
        return Meaning.COMMAND
    if name in DIRECTORY_NAMES:
        return Meaning.FOLDER
    return Meaning.PATH if name in PATH_NAMES and Effect.WRITE in effects else None


def _is_shell_script(name: str, schema: Any, tool: ListedTool) -> bool:
    if (
        name.casefold() not in _CODE_PARAMETERS
        or not isinstance(schema, Mapping)
        or schema.get("type") != "string"
    ):
        return False
    text = f"{name.replace('_', ' ')} {schema.get('description')} {tool.name.replace('_', ' ')}"
    text = f"{text} {tool.description}"
    return bool(_SHELL_WORDS.search(text)) and not _OTHER_LANGUAGE_WORDS.search(text)


def _is_nested(schema: Any) -> bool:
    return not isinstance(schema, Mapping) or schema.get("type") not in _FLAT_TYPES


def build_auxiliary_tools(
    server: str,
    settings: McpServerSettings,
    listing: Listing,
    names: ToolNames,
    ask: SendRequest,
    *,
    mark: TextMarker = leave_unmarked,
) -> list[Tool]:
    """Create tools that read a server's resources and prompts."""
    extras: list[_AuxiliaryTool] = []
    if settings.resources and listing.has_resources:
        extras += _resource_tools(server, ask, mark)
    if settings.prompts and listing.has_prompts:
        extras += _prompt_tools(server, ask, mark)
    taken = {tool.name for tool in listing.tools}
    return [
        replace(_build_auxiliary_tool(server, settings, names, each), is_auxiliary=True)
        for each in extras
        if each.name not in taken
    ]


def _build_auxiliary_tool(
    server: str, settings: McpServerSettings, names: ToolNames, extra: _AuxiliaryTool
) -> Tool:
    return _build_tool(
        server,
        settings,
        names,
        extra.name,
        extra.run,
        description=extra.description,
        schema={"parameters": extra.parameters},
        effects=_READ_ONLY,
        parallel=True,
    )


@dataclass(frozen=True, slots=True)
class _AuxiliaryTool:
    name: str
    description: str
    parameters: Json
    run: Handler


def _resource_tools(server: str, ask: SendRequest, mark: TextMarker) -> list[_AuxiliaryTool]:
    # Long results are scanned in a thread: in the event loop they would block other servers.
    async def listed(args: Json, context: CallContext) -> Content:
        page = await ask("resources/list", args, context)
        templates = None if args else await _list_templates(ask, context)
        return await asyncio.to_thread(resource_list_content, page, templates, mark=mark)

    async def read(args: Json, context: CallContext) -> Content:
        answer = await ask("resources/read", args, context)
        return await asyncio.to_thread(resource_content, answer, mark=mark)

    return [
        _AuxiliaryTool(
            "list_resources",
            f"List the resources (files, records, pages) that the MCP server {server} provides, with their"
            " URIs.",
            _CURSOR_SCHEMA,
            listed,
        ),
        _AuxiliaryTool(
            "read_resource",
            f"Read a resource of the MCP server {server} by its URI.",
            _object_schema(
                {"uri": {"type": "string", "description": "The URI, as listed or linked."}}, "uri"
            ),
            read,
        ),
    ]


async def _list_templates(ask: SendRequest, context: CallContext) -> Any:
    """Return the server's resource templates; None if the server does not support the request."""
    try:
        return await ask("resources/templates/list", {}, context)
    except RequestRejected:
        return None


def _prompt_tools(server: str, ask: SendRequest, mark: TextMarker) -> list[_AuxiliaryTool]:
    async def listed(args: Json, context: CallContext) -> Content:
        answer = await ask("prompts/list", args, context)
        return await asyncio.to_thread(prompt_list_content, answer, mark=mark)

    async def get(args: Json, context: CallContext) -> Content:
        answer = await ask("prompts/get", args, context)
        return await asyncio.to_thread(prompt_content, answer, mark=mark)

    return [
        _AuxiliaryTool(
            "list_prompts",
            f"List the prompt templates that the MCP server {server} has, with their arguments.",
            _CURSOR_SCHEMA,
            listed,
        ),
        _AuxiliaryTool(
            "get_prompt",
            f"Get a prompt template of the MCP server {server}, filled in.",
            _object_schema(
                {
                    "name": {"type": "string", "description": "The name, as listed."},
                    "arguments": {
                        "type": "object",
                        "description": "Values of its arguments.",
                        "additionalProperties": {"type": "string"},
                    },
                },
                "name",
            ),
            get,
        ),
    ]


def _object_schema(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_CURSOR_SCHEMA = FrozenDict(
    _object_schema({"cursor": {"type": "string", "description": "The `next_cursor` of the previous page."}})
)
