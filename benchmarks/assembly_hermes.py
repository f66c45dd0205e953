"""Time hermes-agent's assembly of the definitions from standard input. Runs in its environment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time


def main() -> None:
    entries = json.load(sys.stdin)
    os.environ["HERMES_HOME"] = tempfile.mkdtemp()
    with contextlib.redirect_stdout(io.StringIO()):
        import model_tools  # type: ignore[import-not-found]
        from tools.registry import registry  # type: ignore[import-not-found]
    for name in list(registry._tools):
        registry._tools.pop(name)
    for number, entry in enumerate(entries):
        registry.register(
            name=entry["name"],
            toolset=f"mcp-s{number % 20}",
            schema=entry,
            handler=lambda args, **_: args,
            check_fn=is_up,
        )
    toolsets = [f"mcp-s{number}" for number in range(20)]
    times = []
    for _ in range(10 if len(entries) < 5_000 else 3):
        with contextlib.redirect_stdout(io.StringIO()):
            started = time.process_time()
            # The whole list, without its own collapsing into bridge tools: the work that both do.
            found = model_tools.get_tool_definitions(toolsets, skip_tool_search_assembly=True)
            times.append(time.process_time() - started)
    print(json.dumps({"tools": len(found), "ms": statistics.median(times) * 1000}))


def is_up() -> bool:
    return True


if __name__ == "__main__":
    main()
