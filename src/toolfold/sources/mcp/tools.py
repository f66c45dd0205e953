"""A server's offers as tools of the registry.

Names them, leaves out what the configuration leaves out, and says of each what it may do. Resources and
prompts become tools as well. What happens when one is called is handed in: knows no connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from toolfold.approval.annotations import effects_of_annotations
from toolfold.authoring import build_tool
from toolfold.config.servers import McpServer
from toolfold.errors import InvalidTool
from toolfold.model import (
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
from toolfold.sources.mcp.content import (
    Mark,
    as_it_is,
    listed_prompts,
    listed_resources,
    prompt_content,
    resource_content,
)
from toolfold.sources.mcp.faults import Rejected
from toolfold.sources.mcp.naming import Names
from toolfold.sources.mcp.offers import Listing, Offer

log = logging.getLogger(__name__)

__all__ = ["Ask", "Caller", "extras_of", "is_wanted", "read_by_approval", "tools_of"]

Caller = Callable[[Offer, Json, CallContext], Awaitable[Content]]
Ask = Callable[[str, Json, CallContext], Awaitable[Any]]

GRACE_SECONDS = 5.0
"""How much longer than a connection the line waits: the connection's own error says more."""

_CODE = frozenset(
    {"code", "script", "javascript", "js_code", "python", "python_code", "source_code", "shell", "bash"}
    | {"shell_code", "shell_script", "bash_script", "bash_code"}
)
# The names that approval knows by itself, which a declaration must not make it forget.
_COMMANDS = frozenset({"command", "cmd", "commands", "shell_command", "command_line", "commandline", "bash"})
_FOLDERS = frozenset({"cwd", "workdir", "working_directory", "working_dir"})
_PATHS = frozenset(
    {"path", "paths", "file", "files", "file_path", "filepath", "filename", "destination", "dest", "target"}
    | {"target_path", "output", "output_path", "output_file", "new_path", "to", "to_path", "target_file"}
)
_A_SHELL = re.compile(r"\b(?:bash|zsh|sh|shell)\b", re.IGNORECASE)
_NO_SHELL = re.compile(r"\b(?:java|type|apps ?)script\b|\b(?:js|python|ruby|lua|sql)\b", re.IGNORECASE)
_FLAT = frozenset({"string", "integer", "number", "boolean", "null"})
_READS = frozenset({Effect.READ})


def tools_of(
    server: str, settings: McpServer, offers: Iterable[Offer], names: Names, call: Caller
) -> list[Tool]:
    """The tools that a server brings. One that cannot be used is left out, and told of."""
    tools: dict[str, Tool] = {}
    for offer in offers:
        if not is_wanted(settings, offer.name):
            continue
        try:
            tool = _tool(server, settings, offer, names, call)
        except InvalidTool as error:
            log.warning("MCP server %r: a tool is left out: %s", server, error)
            continue
        tools.setdefault(tool.name, tool)
    return list(tools.values())


def is_wanted(settings: McpServer, tool: str) -> bool:
    """Whether the configuration takes a tool of this name from the server."""
    included = any(fnmatchcase(tool, glob) for glob in settings.include)
    return included and not any(fnmatchcase(tool, glob) for glob in settings.exclude)


def _tool(server: str, settings: McpServer, offer: Offer, names: Names, call: Caller) -> Tool:
    effects, judged_as = read_by_approval(offer)

    async def run(args: Json, context: CallContext) -> Content:
        return await call(offer, args, context)

    return _built(
        server,
        settings,
        names,
        offer.name,
        run,
        description=offer.description or offer.title,
        title=offer.title,
        schema={"parameters": offer.input_schema},
        effects=effects,
        judged_as=judged_as,
        parallel=offer.annotations.get("readOnlyHint") is True and Effect.DESTRUCTIVE not in effects,
    )


def read_by_approval(offer: Offer) -> tuple[frozenset[Effect], Mapping[str, Meaning]]:
    """Return what approval goes by: the effects a tool declares, and the arguments declared as commands."""
    effects = effects_of_annotations(offer.annotations)
    if Effect.READ not in effects and any(name.casefold() in _CODE for name in _properties(offer)):
        effects |= {Effect.EXECUTE}
    return effects, _judged_as(offer, effects)


def _built(server: str, settings: McpServer, names: Names, own: str, handler: Handler, **said: Any) -> Tool:
    name, original = names.name(server, own)
    tool = build_tool(
        name=name,
        toolset=f"{MCP_PREFIX}{server}",
        handler=handler,
        is_async=True,
        timeout=settings.max_call_seconds + GRACE_SECONDS,
        source=Source(MCP_SOURCE, server),
        **said,
    )
    listed = names.listed(server, own)
    return replace(tool, original_name=original, listed_name="" if listed == tool.name else listed)


def _properties(offer: Offer) -> Mapping[str, Any]:
    properties = offer.input_schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _judged_as(offer: Offer, effects: Collection[Effect]) -> dict[str, Meaning]:
    """Which arguments hold a script for a shell. Nothing where there is none: the usual names speak then.

    What is declared takes the place of the usual names, at any depth, so that they are declared as well and
    nothing is declared for a tool with depths.
    """
    properties = _properties(offer)
    scripts = [name for name, schema in properties.items() if _is_for_a_shell(name, schema, offer)]
    if not scripts or any(map(_has_depths, properties.values())):
        return {}
    meanings = {name: _usual_meaning(name.casefold(), effects) for name in properties}
    usual = {name: meaning for name, meaning in meanings.items() if meaning is not None}
    return usual | dict.fromkeys(scripts, Meaning.COMMAND)


def _usual_meaning(name: str, effects: Collection[Effect]) -> Meaning | None:
    if name in _COMMANDS:
        return Meaning.COMMAND
    if name in _FOLDERS:
        return Meaning.FOLDER
    return Meaning.PATH if name in _PATHS and Effect.WRITE in effects else None


def _is_for_a_shell(name: str, schema: Any, offer: Offer) -> bool:
    if name.casefold() not in _CODE or not isinstance(schema, Mapping) or schema.get("type") != "string":
        return False
    said = f"{name.replace('_', ' ')} {schema.get('description')} {offer.name.replace('_', ' ')}"
    said = f"{said} {offer.description}"
    return bool(_A_SHELL.search(said)) and not _NO_SHELL.search(said)


def _has_depths(schema: Any) -> bool:
    return not isinstance(schema, Mapping) or schema.get("type") not in _FLAT


def extras_of(
    server: str, settings: McpServer, listing: Listing, names: Names, ask: Ask, *, mark: Mark = as_it_is
) -> list[Tool]:
    """What a server has beside tools, as tools. A tool of its own by the same name stands before them."""
    extras: list[_Extra] = []
    if settings.resources and listing.has_resources:
        extras += _for_resources(server, ask, mark)
    if settings.prompts and listing.has_prompts:
        extras += _for_prompts(server, ask, mark)
    taken = {offer.name for offer in listing.offers}
    return [
        replace(_extra_tool(server, settings, names, each), is_auxiliary=True)
        for each in extras
        if each.name not in taken
    ]


def _extra_tool(server: str, settings: McpServer, names: Names, extra: _Extra) -> Tool:
    return _built(
        server,
        settings,
        names,
        extra.name,
        extra.run,
        description=extra.description,
        schema={"parameters": extra.parameters},
        effects=_READS,
        parallel=True,
    )


@dataclass(frozen=True, slots=True)
class _Extra:
    name: str
    description: str
    parameters: Json
    run: Handler


def _for_resources(server: str, ask: Ask, mark: Mark) -> list[_Extra]:
    # Long answers take a while to be looked through, in which others are to be served.
    async def listed(args: Json, context: CallContext) -> Content:
        page = await ask("resources/list", args, context)
        templates = None if args else await _templates(ask, context)
        return await asyncio.to_thread(listed_resources, page, templates, mark=mark)

    async def read(args: Json, context: CallContext) -> Content:
        answer = await ask("resources/read", args, context)
        return await asyncio.to_thread(resource_content, answer, mark=mark)

    return [
        _Extra(
            "list_resources",
            f"List the resources (files, records, pages) that the MCP server {server} can give, with their"
            " addresses.",
            _PAGED,
            listed,
        ),
        _Extra(
            "read_resource",
            f"Read a resource of the MCP server {server} by its address.",
            _object(
                {"uri": {"type": "string", "description": "The address, as listed or linked to."}}, "uri"
            ),
            read,
        ),
    ]


async def _templates(ask: Ask, context: CallContext) -> Any:
    """The patterns of addresses; many servers that have resources know no such question."""
    try:
        return await ask("resources/templates/list", {}, context)
    except Rejected:
        return None


def _for_prompts(server: str, ask: Ask, mark: Mark) -> list[_Extra]:
    async def listed(args: Json, context: CallContext) -> Content:
        answer = await ask("prompts/list", args, context)
        return await asyncio.to_thread(listed_prompts, answer, mark=mark)

    async def get(args: Json, context: CallContext) -> Content:
        answer = await ask("prompts/get", args, context)
        return await asyncio.to_thread(prompt_content, answer, mark=mark)

    return [
        _Extra(
            "list_prompts",
            f"List the prompt templates that the MCP server {server} has, with their arguments.",
            _PAGED,
            listed,
        ),
        _Extra(
            "get_prompt",
            f"Get a prompt template of the MCP server {server}, filled in.",
            _object(
                {
                    "name": {"type": "string", "description": "The name, as listed."},
                    "arguments": {
                        "type": "object",
                        "description": "What its arguments are filled with.",
                        "additionalProperties": {"type": "string"},
                    },
                },
                "name",
            ),
            get,
        ),
    ]


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_PAGED = FrozenDict(
    _object({"cursor": {"type": "string", "description": "The `next_cursor` of the page before."}})
)
