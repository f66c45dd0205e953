"""MCP server behind all gateways of `benchmarks/load.py`; it writes every call to a file.

    python load_backend.py JOURNAL [--port N]

Over Streamable HTTP at a port, or over stdio. Lists the tools of the sample catalog and two tools of its own:
`record`, which is harmless, and `erase`, which declares that it destroys data, so that its calls are entered
in the audit log. A call appends its argument `id` to JOURNAL before it is answered. Uses little CPU time, so
that the gateways are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).resolve().parents[2] / "src" / "toolfold" / "sample" / "catalog.jsonl"
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
RECORD = {
    "name": "record",
    "description": "Records an id.",
    "inputSchema": SCHEMA,
    "annotations": {"readOnlyHint": True},
}
ERASE = {
    "name": "erase",
    "description": "Erases the entry with an id.",
    "inputSchema": SCHEMA,
    "annotations": {"destructiveHint": True, "readOnlyHint": False},
}
OLD_REVISION = "2025-11-25"


def list_tools() -> list[dict[str, Any]]:
    """Return the tools of this server and those of the sample catalog."""
    rows = [json.loads(line)["function"] for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    sample = [
        {"name": row["name"], "description": row["description"], "inputSchema": row["parameters"]}
        for row in rows
    ]
    return [RECORD, ERASE, *sample]


class Backend:
    """Answers MCP messages, and writes every call to a file."""

    def __init__(self, journal: Path) -> None:
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._tools = list_tools()

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the response to a message; None for notifications."""
        if "id" not in message or "method" not in message:
            return None
        about = {"jsonrpc": "2.0", "id": message["id"]}
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            info = {"name": "load", "version": "1"}
            capabilities: dict[str, Any] = {"tools": {}}
            result: dict[str, Any] = {"protocolVersion": OLD_REVISION, "capabilities": capabilities}
            return {**about, "result": {**result, "serverInfo": info}}
        if method == "tools/list":
            return {**about, "result": {"tools": self._tools}}
        if method == "tools/call":
            wanted = str(params["arguments"]["id"])
            os.write(self._journal, f"{wanted}\n".encode())
            return {**about, "result": {"content": [{"type": "text", "text": f"done {wanted}"}]}}
        if method == "ping":
            return {**about, "result": {}}
        return {**about, "error": {"code": -32601, "message": "there is no such method"}}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one HTTP connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.split(b"\r\n")
                fields = dict(line.lower().split(b":", 1) for line in lines[1:] if b":" in line)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                writer.write(self._respond(lines[0], body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _respond(self, request: bytes, body: bytes) -> bytes:
        if not request.startswith(b"POST"):
            return b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"
        response = self.answer(json.loads(body))
        if response is None:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        text = json.dumps(response).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
        return head + text


async def serve_http(backend: Backend, port: int) -> None:
    server = await asyncio.start_server(backend.serve, "127.0.0.1", port, limit=1 << 22, backlog=1_000)
    async with server:
        await server.serve_forever()


def serve_stdio(backend: Backend) -> None:
    for line in sys.stdin.buffer:
        if response := backend.answer(json.loads(line)):
            sys.stdout.buffer.write(json.dumps(response).encode() + b"\n")
            sys.stdout.buffer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--port", type=int)
    chosen = parser.parse_args()
    backend = Backend(chosen.journal)
    if chosen.port:
        asyncio.run(serve_http(backend, chosen.port))
    else:
        serve_stdio(backend)


if __name__ == "__main__":
    main()
