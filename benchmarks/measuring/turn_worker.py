"""Time whole turns of one mode over one catalog, in its own process.

    python turn_worker.py JOB ANSWER

Both are JSON files. A turn is what a client does before it sends a request: select, render, count the
tokens. The time of the retriever inside of it is taken apart, so that what the rest costs can be told.
Everything is CPU time in milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolfold import Runtime, Session, load_config, open_runtime
from toolfold.selection.retrieval.tool_search import SearchResult
from toolfold.selection.turn.tokens import TokenCounter
from toolfold.tools.catalog import load_catalog

Answer = dict[str, Any]
WARM_UPS = 3


class Stopwatch:
    """Sums the CPU time of a function."""

    def __init__(self, function: Callable[..., SearchResult]) -> None:
        self._function = function
        self.milliseconds = 0.0

    def __call__(self, *args: Any, **options: Any) -> SearchResult:
        before = time.process_time()
        found = self._function(*args, **options)
        self.milliseconds += (time.process_time() - before) * 1000
        return found


class Turns:
    """Times the turns of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._counter = TokenCounter()
        self._retrieval = Stopwatch(runtime.retriever.answer)
        runtime.retriever.answer = self._retrieval  # type: ignore[method-assign]

    def count_all(self) -> float:
        """Count the tokens of every tool once, so that they are cached, as in a client after some turns."""
        before = time.process_time()
        self._counter.definitions(tool.definition() for tool in self._runtime.offered(quiet=True))
        return (time.process_time() - before) * 1000

    def turn(self, session: Session, message: str) -> tuple[float, float]:
        """Return the CPU milliseconds of a whole turn and of its search for tools."""
        self._retrieval.milliseconds = 0.0
        before = time.process_time()
        definitions = session.definitions(message)
        self._counter.definitions(definitions)
        return (time.process_time() - before) * 1000, self._retrieval.milliseconds

    def search(self, session: Session, message: str) -> float:
        """Time a `tool_search` call through dispatch."""
        before = time.process_time()
        result = session.call_sync("tool_search", {"query": message[:2_000]})
        if not result.ok:
            raise SystemExit(f"tool_search failed: {result.error}")
        return (time.process_time() - before) * 1000


def waiting(done: int, whole: int) -> None:
    """Ignore progress; with any progress callback, the runtime waits until the whole index is built."""


def run(job: Answer) -> Answer:
    """Time every message once, with the settings of the job."""
    home = Path(job["home"])
    overrides = ["plugins.enabled=false", *job["settings"]]
    config = load_config(project=home, env={"TOOLFOLD_HOME": str(home)}, overrides=overrides)
    with open_runtime(config, progress=waiting) as runtime:
        runtime.registry.add_all(load_catalog(Path(job["catalog"])))
        turns, session = Turns(runtime), runtime.session()
        first = turns.turn(session, job["messages"][0])
        counting = turns.count_all()
        warm, messages = job["messages"][1 : 1 + WARM_UPS], job["messages"][1 + WARM_UPS :]
        for message in warm:
            turns.turn(session, message)
        times = [turns.turn(session, message) for message in messages]
        if job.get("search"):  # an index of many tools takes longer to build than a call may take
            runtime.retriever.answer(runtime.registry.snapshot(), messages[0], mode="hybrid", limit=1)
        asked = [*warm, *messages] if job.get("search") else []
        searches = [turns.search(session, message) for message in asked][WARM_UPS:]
    return {
        "tools": len(session.granted()),
        "first": first[0],
        "counting": counting,
        "whole": [whole for whole, _ in times],
        "retrieval": [retrieval for _, retrieval in times],
        "search": searches,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
