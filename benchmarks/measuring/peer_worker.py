"""Run one peer over one catalog, in the peers' own interpreter. Standard library only.

    python peer_worker.py JOB ANSWER

JOB is a JSON file with the directory of adapters, the adapter, the catalog and the messages. ANSWER
receives the hits and the CPU time of each search. An adapter has `build(definitions) -> index` and
`search(index, message, count) -> names`. The worker stops when its CPU time is used up, and exits with
TOO_LATE if a single step takes far longer than that.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TOO_LATE = 24
GRACE = 30  # CPU seconds for a step that began in time


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the peer's hits for as many messages as the time limit allows."""
    sys.path.insert(0, job["adapters"])
    threading.Thread(target=watch, args=(job["seconds"] + GRACE,), daemon=True).start()
    adapter = importlib.import_module(job["peer"])
    tools = definitions(Path(job["catalog"]))
    started = time.process_time()
    index = adapter.build(tools)
    answer: dict[str, Any] = {"build_ms": (time.process_time() - started) * 1000, "ranked": {}, "ms": []}
    for number, text in job["messages"].items():
        before = time.process_time()
        if before > job["seconds"] or (job["all"] and hopeless(answer["ms"], job)):
            break
        answer["ranked"][number] = list(adapter.search(index, text, job["count"]))
        answer["ms"].append((time.process_time() - before) * 1000)
    return answer


def hopeless(times: list[float], job: dict[str, Any]) -> bool:
    """Return True if the first messages suggest three times the time limit for all."""
    few = 3
    return len(times) == few and sum(times) / few * len(job["messages"]) > 3_000 * job["seconds"]


def watch(most: float) -> None:
    """Exit the process. A system limit would make the CPU clock too coarse to use."""
    while time.process_time() < most:
        time.sleep(1)
    os._exit(TOO_LATE)


def definitions(catalog: Path) -> list[dict[str, Any]]:
    with catalog.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [{"type": "function", "function": row["function"]} for row in rows]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
