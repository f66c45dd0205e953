"""What a client receives: tools as they are listed, and results as they came, within bounds.

A server's answer passes through with its images and structure where nothing on the way changed it; what
addresses the model in it is marked as everywhere. What was too large for a model, or was changed by a hook,
is given as the model would get it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from toolfold.gateway.asking import SERVERS
from toolfold.model import BRIDGE_CALL, MCP_SOURCE, Effect, Json, Tool, ToolResult

if TYPE_CHECKING:
    import mcp_types

    from toolfold.sources.mcp.offers import Offer
    from toolfold.sources.mcp.pool import McpServers


def shown_tool(tool: Tool, servers: McpServers) -> mcp_types.Tool:
    """A tool as `tools/list` has it."""
    import mcp_types

    offer = _offer(tool, servers)
    annotations = dict(offer.annotations or {}) if offer else _own_annotations(tool)
    return mcp_types.Tool(
        name=tool.name,
        title=tool.title or None,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=dict(offer.output_schema) if offer and offer.output_schema is not None else None,
        annotations=mcp_types.ToolAnnotations.model_validate(annotations) if annotations else None,
    )


def _own_annotations(tool: Tool) -> Json:
    """The hints for a tool of Toolfold's own, so that clients do not ask before it only reads.

    `tool_call` has none: what it does depends on the tool behind it, and clients assume the worst.
    """
    if tool.name == BRIDGE_CALL or tool.effects != {Effect.READ}:
        return {}
    return {"readOnlyHint": True, "openWorldHint": False}


def _offer(tool: Tool, servers: McpServers) -> Offer | None:
    if tool.source.kind != MCP_SOURCE:
        return None
    offer = servers.offer(tool.source.name, tool.own_name)
    return servers.trust.as_believed(tool.source.name, offer) if offer else None


def tool_answer(result: ToolResult) -> Any:
    """The result of a call, or what must be asked first."""
    import mcp_types

    raw = result.raw
    if isinstance(raw, mcp_types.InputRequiredResult):
        return with_own_state(raw)
    if isinstance(raw, mcp_types.CallToolResult) and result.stored is None:
        return raw  # its words are marked already
    words = mcp_types.TextContent(
        type="text", text=_plain(result.text) if result.error is None else result.error
    )
    structured = raw.structured_content if isinstance(raw, mcp_types.CallToolResult) else None
    return mcp_types.CallToolResult(
        content=[words], structured_content=structured, is_error=result.error is not None
    )


def with_own_state(raw: mcp_types.InputRequiredResult) -> mcp_types.InputRequiredResult:
    """What a server wants to know, under a state that is told apart from ours."""
    return raw.model_copy(update={"request_state": SERVERS + (raw.request_state or "")})


def _plain(text: str) -> str:
    """A text that was wrapped for JSON as the text itself."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, dict) and set(found) == {"result"} and isinstance(found["result"], str):
        return found["result"]
    return text
