"""An MCP server over stdio that answers each list request with what a JSON file says.

    python listing_server.py FILE

FILE holds an object: method → result, or method → a list of results, one per page. `initialize` is answered
with the entry of that name merged over a usual answer. A call of any tool answers with its arguments and is
followed by notifications that the lists of resources and prompts have changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}


def usual(revision: str) -> dict[str, Any]:
    return {
        "protocolVersion": revision,
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "listing", "version": "1"},
    }


def result_of(results: dict[str, Any], message: dict[str, Any]) -> Any:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {**usual(params["protocolVersion"]), **results.get("initialize", {})}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": json.dumps(params.get("arguments") or {})}]}
    if method == "ping":
        return {}
    found = results.get(method)
    return found[int(params.get("cursor") or 0)] if isinstance(found, list) else found


def main() -> None:
    file = Path(sys.argv[1])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        found = result_of(json.loads(file.read_text()), message)
        if found is None:
            answer["error"] = {"code": -32601, "message": "no such method"}
        else:
            answer["result"] = found
        print(json.dumps(answer), flush=True)
        if message["method"] == "tools/call":
            for kind in ("resources", "prompts"):
                notice = {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}
                print(json.dumps(notice), flush=True)


if __name__ == "__main__":
    main()
