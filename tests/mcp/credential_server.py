"""MCP server over stdio or HTTP that tells with which credential it is used.

    python credential_server.py               the credential is the environment variable TOKEN
    python credential_server.py --http PORT   the credential is the header X-Token of each request

The tool `whoami` returns the credential, and the only resource has it in its name.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = {
    "name": "whoami",
    "description": "Tell whose credential is used.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True},
}


def answer(method: str, credential: str) -> dict[str, Any] | None:
    """Return the result of a request; None for an unknown method."""
    results: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "credentials", "version": "1"},
        },
        "ping": {},
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"content": [{"type": "text", "text": f"{credential} in process {os.getpid()}"}]},
        "resources/list": {"resources": [{"uri": "note://all", "name": f"notes of {credential}"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [{"uri": "note://all", "text": f"notes of {credential}"}]},
    }
    return results.get(method)


def respond(message: dict[str, Any], credential: str) -> dict[str, Any] | None:
    """Return the response to a message; None for a notification."""
    if "id" not in message:
        return None
    result = answer(message["method"], credential)
    content = (
        {"error": {"code": -32601, "message": "unknown method"}} if result is None else {"result": result}
    )
    return {"jsonrpc": "2.0", "id": message["id"], **content}


class Handler(BaseHTTPRequestHandler):
    """Answers each POST request with JSON."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response = respond(message, self.headers.get("X-Token", ""))
        body = b"" if response is None else json.dumps(response).encode()
        self.send_response(200 if response else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    """Serve until standard input ends, or over HTTP until the process is ended."""
    if sys.argv[1:2] == ["--http"]:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
        return
    for line in sys.stdin:
        response = respond(json.loads(line), os.environ.get("TOKEN", ""))
        if response is not None:
            sys.stdout.write(json.dumps(response) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
