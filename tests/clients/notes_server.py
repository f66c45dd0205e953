"""A small MCP server over stdio for tests with real clients. Standard library only, so that it starts fast.

    python notes_server.py RECORD

Its tools are `echo`, `delete_note` and `delete_draft` (declared destructive) and `crash`, which ends the
process. RECORD gets a line for each call that reaches the server.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
DESTRUCTIVE = {"destructiveHint": True, "readOnlyHint": False}
TOOLS = [
    {"name": "echo", "description": "Echo a message back.", "inputSchema": TEXT},
    {
        "name": "delete_note",
        "description": "Delete a note for good.",
        "inputSchema": TEXT,
        "annotations": DESTRUCTIVE,
    },
    {
        "name": "delete_draft",
        "description": "Delete an unfinished note for good.",
        "inputSchema": TEXT,
        "annotations": DESTRUCTIVE,
    },
    {
        "name": "crash",
        "description": "End the server without an answer.",
        "inputSchema": {"type": "object", "properties": {}},
    },
]


def answer_request(method: str, params: Json, record: Path) -> Json:
    """Return the result of a request; a call is recorded first."""
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        name, text = params["name"], params.get("arguments", {}).get("text", "")
        with record.open("a") as file:
            file.write(f"{name} {text}\n")
        if name == "crash":
            os._exit(7)
        return {"content": [{"type": "text", "text": f"{name}: {text}"}]}
    return {}


def main() -> None:
    record = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer_request(message["method"], message.get("params") or {}, record)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
