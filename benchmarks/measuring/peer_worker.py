"""Runs one peer over one catalog, in the peers' own interpreter. Standard library only.

    python peer_worker.py JOB ANSWER

JOB is a JSON file that names the folder of adapters, the adapter, the catalog and the messages; ANSWER
receives what was found and the CPU time of each search. An adapter has `build(definitions) -> index` and
`search(index, message, count) -> names`. Stops asking when the CPU time that it was given is spent, and ends
with TOO_LATE where one step by itself takes far longer than that.
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
    """What the peer finds for each message, for as many as there is time for."""
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
    """Whether the first messages took so long that all of them would take thrice the time there is."""
    few = 3
    return len(times) == few and sum(times) / few * len(job["messages"]) > 3_000 * job["seconds"]


def watch(most: float) -> None:
    """Ends the process. A limit set by the system would make its clock of CPU time too coarse to use."""
    while time.process_time() < most:
        time.sleep(1)
    os._exit(TOO_LATE)


def definitions(catalog: Path) -> list[dict[str, Any]]:
    with catalog.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [{"type": "function", "function": row["function"]} for row in rows]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
