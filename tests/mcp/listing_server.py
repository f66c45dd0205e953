"""MCP server over stdio that answers list requests with the contents of a JSON file.

    python listing_server.py FILE

FILE holds an object: method → result, or method → a list of results, one per page. The entry `initialize` is
merged over the default result. A call of any tool returns its arguments and is followed by notifications
that the lists of resources and prompts have changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CAPABILITIES = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}


def default_initialize_result(revision: str) -> dict[str, Any]:
    return {
        "protocolVersion": revision,
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "listing", "version": "1"},
    }


def find_result(results: dict[str, Any], message: dict[str, Any]) -> Any:
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        return {**default_initialize_result(params["protocolVersion"]), **results.get("initialize", {})}
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
        found = find_result(json.loads(file.read_text()), message)
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
