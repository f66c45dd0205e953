"""Minimal MCP server over stdio that imports only what reads and writes JSON.

    python -I -S small_server.py TOOLS FIRST

Lists TOOLS tools, the first of them under the name FIRST. Fifty of these start in the time that one with
the usual imports takes ten times over, so that what is measured is the client.
"""

import json
import sys


def tool(name: str) -> "dict[str, object]":
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": f"Gives back the text it is given ({name}).", "inputSchema": schema}


def answer(method: str) -> "dict[str, object]":
    if method == "initialize":
        about = {"name": "small", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [tool(sys.argv[2]), *(tool(f"tool_{n}") for n in range(2, int(sys.argv[1]) + 1))]}
    return {}


for line in sys.stdin.buffer:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    reply = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] in ("initialize", "tools/list", "ping"):
        reply["result"] = answer(asked["method"])
    else:
        reply["error"] = {"code": -32601, "message": "there is no such method"}
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()
