"""MCP server over stdio with the simulated services of the sample catalog, for tutorials.

Reads one JSON-RPC message per line and writes one response per line, without the MCP SDK, so that it starts
fast. Its data is in memory and starts anew with each process.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection
from typing import IO, Any

from toolfold.core.errors import CallError, ConfigError
from toolfold.core.types import Json, Tool
from toolfold.tools.catalog import sample_catalog
from toolfold.tools.sample.sample_services import SampleServices

MAX_MESSAGE_BYTES = 1 << 20
REVISION = "2025-11-25"
"""Protocol revision of the answers to a client that names none."""
INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602

_DESTROYING = frozenset({"cancel", "delete", "revoke", "trash", "void", "withdraw"})


class RequestError(Exception):
    """Raised for a request that cannot be answered, with the JSON-RPC error code for the client."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SampleServer:
    """MCP server that offers the tools of some simulated services."""

    def __init__(self, services: Collection[str] = ()) -> None:
        """Serve the named services, or all services. Raises ConfigError for an unknown name."""
        tools = sample_catalog()
        known = sorted({tool.source.name for tool in tools})
        if unknown := sorted(set(services) - set(known)):
            raise ConfigError(
                f"there is no sample service {unknown[0]!r}. The services are {', '.join(known)}."
            )
        self._services = SampleServices(datetime.date.today())
        self._single = len(set(services)) == 1
        self._tools = {
            self._name_tool(tool): tool for tool in tools if tool.source.name in (services or known)
        }

    def serve(self, requests: IO[bytes], responses: IO[bytes]) -> None:
        """Answer requests until the input ends or a message is too long."""
        while (line := requests.readline(MAX_MESSAGE_BYTES)).endswith(b"\n"):
            if (response := self._answer_line(line)) is not None:
                responses.write(json.dumps(response).encode() + b"\n")
                responses.flush()

    def _name_tool(self, tool: Tool) -> str:
        """Return the name of a tool, without the service's name if there is only one service."""
        return _own_name(tool) if self._single else tool.name

    def _answer_line(self, line: bytes) -> Json | None:
        """Return the response to a message, or None for a notification."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return _build_response(None, RequestError(INVALID_REQUEST, "the message is not JSON"))
        if not isinstance(message, dict) or "method" not in message or message.get("id") is None:
            return None
        params = message.get("params")
        try:
            result = self._answer_request(message["method"], params if isinstance(params, dict) else {})
        except RequestError as error:
            return _build_response(message["id"], error)
        return _build_response(message["id"], result)

    def _answer_request(self, method: object, params: Json) -> Json:
        if method == "initialize":
            return {
                "protocolVersion": params.get("protocolVersion", REVISION),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "toolfold-sample", "version": "1"},
                "instructions": "Simulated services with sample data.",
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [self._describe_tool(name, tool) for name, tool in self._tools.items()]}
        if method == "tools/call":
            return self._call_tool(params.get("name"), params.get("arguments") or {})
        raise RequestError(METHOD_NOT_FOUND, f"the method {method!r} is not supported")

    def _describe_tool(self, name: str, tool: Tool) -> Json:
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", tool.name)}
        only_reads = self._services.is_read_only(tool.source.name, _own_name(tool))
        return {
            "name": name,
            "description": tool.description,
            "inputSchema": tool.parameters,
            "annotations": {"readOnlyHint": only_reads, "destructiveHint": bool(words & _DESTROYING)},
        }

    def _call_tool(self, name: object, args: Any) -> Json:
        if not isinstance(name, str) or name not in self._tools or not isinstance(args, dict):
            raise RequestError(
                INVALID_PARAMS, f"there is no tool {name!r}, or its arguments are not an object"
            )
        tool = self._tools[name]
        try:
            result = self._services.call(tool.source.name, _own_name(tool), args)
        except CallError as error:
            return {"content": [{"type": "text", "text": str(error)}], "isError": True}
        text = json.dumps(result, ensure_ascii=False, indent=1)
        return {"content": [{"type": "text", "text": text}], "structuredContent": result}


def _own_name(tool: Tool) -> str:
    return tool.name.removeprefix(f"{tool.source.name}_")


def _build_response(id_: object, result: Json | RequestError) -> Json:
    if isinstance(result, RequestError):
        return {"jsonrpc": "2.0", "id": id_, "error": {"code": result.code, "message": str(result)}}
    return {"jsonrpc": "2.0", "id": id_, "result": result}
