"""Add prefixes and server names to servers' results, so that gateway clients can tell servers apart.

URIs get the prefix of the server that sent them, so that reading one never reaches another server. Untrusted
text is marked where results are converted. Knows the protocol's types, and no client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from toolfold.mcp.call_relay import name_requesting_server
from toolfold.mcp.content import mark_result
from toolfold.mcp.result_scanning import mark_injections

if TYPE_CHECKING:
    import mcp_types

AddPrefix = Callable[[str], str]
M = TypeVar("M", bound=BaseModel)

_WEB_SCHEMES = ("http://", "https://")  # clients fetch these themselves


def has_resource_uris(result: mcp_types.CallToolResult) -> bool:
    """Return True if the result contains resources or resource links."""
    return any(block.type in ("resource", "resource_link") for block in result.content)


def prefix_call_result(result: mcp_types.CallToolResult, add_prefix: AddPrefix) -> mcp_types.CallToolResult:
    """Add a server's prefix to the resource URIs in a `tools/call` result."""
    return result.model_copy(update={"content": [_prefix_block(each, add_prefix) for each in result.content]})


def prefix_read_result(
    result: mcp_types.ReadResourceResult, add_prefix: AddPrefix
) -> mcp_types.ReadResourceResult:
    """Add a server's prefix to the URIs in a `resources/read` result."""
    contents = [each.model_copy(update={"uri": add_prefix(str(each.uri))}) for each in result.contents]
    return result.model_copy(update={"contents": contents})


def prefix_prompt_result(
    result: mcp_types.GetPromptResult, add_prefix: AddPrefix
) -> mcp_types.GetPromptResult:
    """Add a server's prefix to the resource URIs in a `prompts/get` result."""
    messages = [
        each.model_copy(update={"content": _prefix_block(each.content, add_prefix)})
        for each in result.messages
    ]
    return result.model_copy(update={"messages": messages})


def prefix_listing(
    items: Iterable[tuple[str, M]], field: str, add_prefix: Callable[[str, str], str]
) -> list[M]:
    """Concatenate the list items of several servers, adding the server's prefix to `field` of each item."""
    return [
        mark_result(each, mark_injections).model_copy(
            update={field: add_prefix(server, str(getattr(each, field)))}
        )
        for server, each in items
    ]


def name_server_in_requests(
    result: mcp_types.InputRequiredResult, server: str
) -> mcp_types.InputRequiredResult:
    """Add the server's name to the messages shown to the user in a server's input requests."""
    requests = {
        key: each.model_copy(update={"params": name_requesting_server(each.params, server)})
        if hasattr(each.params, "message")
        else each
        for key, each in (result.input_requests or {}).items()
    }
    return result.model_copy(update={"input_requests": requests or None})


def _prefix_block(block: mcp_types.ContentBlock, add_prefix: AddPrefix) -> mcp_types.ContentBlock:
    if block.type == "resource_link":
        uri = _prefix_unless_web(str(block.uri), add_prefix)
        return block.model_copy(update={"uri": uri})
    if block.type == "resource":
        resource = block.resource
        uri = _prefix_unless_web(str(resource.uri), add_prefix)
        return block.model_copy(update={"resource": resource.model_copy(update={"uri": uri})})
    return block


def _prefix_unless_web(uri: str, add_prefix: AddPrefix) -> str:
    return uri if uri.lower().startswith(_WEB_SCHEMES) else add_prefix(uri)
