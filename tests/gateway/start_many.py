"""Start `toolfold mcp serve` many times and print the outcome of each start, as a JSON list.

    python start_many.py COUNT AT_ONCE

Each start is a separate process, forked from one that has imported everything but the MCP SDK, so that only
the SDK is imported. A client requests `initialize` and `tools/list`, then the process is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

TIMEOUT_S = 120.0
PRELOADED = (
    "toolfold.cli.app",
    "toolfold.cli.mcp",
    "toolfold.cli.serve",
    "toolfold.runtime.runtime",
    "toolfold.serving.gateway.stdio",
    "toolfold.serving.gateway.server",
    "toolfold.mcp.pool",
    "toolfold.selection.turn",
    "toolfold.selection.retrieval",
)
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "start-many", "version": "1"},
}
REQUESTS = (
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
)


def fork_gateway() -> tuple[int, int, int, int]:
    """Fork a gateway; return its process id and the pipes of stdin, stdout and stderr."""
    pipes = [os.pipe() for _ in range(3)]
    if pid := os.fork():
        for own in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(own)
        return pid, pipes[0][1], pipes[1][0], pipes[2][0]
    for number, own in enumerate((pipes[0][0], pipes[1][1], pipes[2][1])):
        os.dup2(own, number)
    os.closerange(3, 256)
    sys.argv = ["toolfold", "mcp", "serve"]
    try:
        import_module("toolfold.cli").main()
    finally:
        sys.stderr.flush()
        os._exit(1)


def read_answers(stdout: int, count: int) -> bytes:
    """Read the output until it has `count` lines or the process ends."""
    received, end = b"", time.monotonic() + TIMEOUT_S
    while (
        received.count(b"\n") < count and select.select([stdout], [], [], max(0, end - time.monotonic()))[0]
    ):
        chunk = os.read(stdout, 1 << 16)
        if not chunk:
            break
        received += chunk
    return received


def request_tools(process: tuple[int, int, int, int]) -> str:
    """Request the tools of a gateway. Return an empty text on success, otherwise the gateway's output."""
    pid, stdin, stdout, stderr = process
    try:
        os.write(stdin, b"".join(json.dumps(each).encode() + b"\n" for each in REQUESTS))
        answers = [json.loads(line) for line in read_answers(stdout, 2).splitlines()]
        if [each.get("id") for each in answers if each.get("result")] == [1, 2]:
            return ""
        return f"answered {answers}; wrote {os.read(stderr, 1 << 16).decode()[-2_000:]}"
    except BrokenPipeError:
        return f"ended; wrote {os.read(stderr, 1 << 16).decode()[-2_000:]}"
    finally:
        os.close(stdin)
        os.kill(pid, signal.SIGKILL)  # its servers end with it
        for each in (stdout, stderr):
            os.close(each)
        os.waitpid(pid, 0)


def main() -> None:
    count, at_once = int(sys.argv[1]), int(sys.argv[2])
    for name in PRELOADED:
        import_module(name)
    assert "mcp" not in sys.modules, "the SDK must be loaded by each start"
    outcomes: list[str] = []
    while len(outcomes) < count:
        # Fork before starting threads, which a forked process would not have.
        batch = [fork_gateway() for _ in range(min(at_once, count - len(outcomes)))]
        with ThreadPoolExecutor(len(batch)) as threads:
            outcomes += threads.map(request_tools, batch)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
