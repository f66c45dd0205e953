"""Convert tools and call results to MCP types for a client.

A server's result is passed on unchanged, with its images and structured content, unless a hook changed it or
it was too large for a model; then the client gets the text that a model would get. Text that addresses the
model is marked as everywhere else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from toolfold.core.types import BRIDGE_CALL, MCP_SOURCE, Effect, Json, Tool, ToolResult
from toolfold.mcp.content import McpResponse
from toolfold.serving.gateway.client_approval import SERVER_STATE_PREFIX

if TYPE_CHECKING:
    import mcp_types

    from toolfold.mcp.pool import McpServers
    from toolfold.mcp.tool_listing import ListedTool


def to_protocol_tool(tool: Tool, servers: McpServers) -> mcp_types.Tool:
    """Convert a tool to its entry in a `tools/list` response."""
    import mcp_types

    listed = _find_listed_tool(tool, servers)
    annotations = dict(listed.annotations or {}) if listed else _builtin_annotations(tool)
    return mcp_types.Tool(
        name=tool.name,
        title=tool.title or None,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=dict(listed.output_schema) if listed and listed.output_schema is not None else None,
        annotations=mcp_types.ToolAnnotations.model_validate(annotations) if annotations else None,
    )


def _builtin_annotations(tool: Tool) -> Json:
    """Return the annotations of a built-in tool, which tell clients whether it only reads.

    `tool_call` has none: its effect depends on the tool it calls, and clients assume the worst.
    """
    only_reads = Effect.READ in tool.effects and tool.effects <= {Effect.READ, Effect.NETWORK}
    if tool.name == BRIDGE_CALL or not only_reads:
        return {}
    return {"readOnlyHint": True, "openWorldHint": Effect.NETWORK in tool.effects}


def _find_listed_tool(tool: Tool, servers: McpServers) -> ListedTool | None:
    """Return a tool as listed by its MCP server, without untrusted annotations."""
    if tool.source.kind != MCP_SOURCE:
        return None
    listed = servers.find_tool(tool.source.name, tool.own_name)
    return servers.trust.with_cautious_hints(tool.source.name, listed) if listed else None


def to_call_result(result: ToolResult) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
    """Convert a tool's result to MCP: a `tools/call` result, or the MCP server's request for input."""
    import mcp_types

    raw = result.raw.result if isinstance(result.raw, McpResponse) else None
    if isinstance(raw, mcp_types.InputRequiredResult):
        return mark_server_state(raw)
    if isinstance(raw, mcp_types.CallToolResult) and result.stored is None:
        return raw  # its text is marked already
    text = _unwrap_text(result.text) if result.error is None else result.error
    structured = raw.structured_content if isinstance(raw, mcp_types.CallToolResult) else None
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text=text)],
        structured_content=structured,
        is_error=result.error is not None,
    )


def mark_server_state(result: mcp_types.InputRequiredResult) -> mcp_types.InputRequiredResult:
    """Tag the state in a server's request for input, so that the gateway can return it to that server."""
    return result.model_copy(update={"request_state": SERVER_STATE_PREFIX + (result.request_state or "")})


def _unwrap_text(text: str) -> str:
    """Return the text inside `{"result": text}`; return any other text unchanged."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    if isinstance(parsed, dict) and set(parsed) == {"result"} and isinstance(parsed["result"], str):
        return parsed["result"]
    return text
