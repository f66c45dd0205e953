"""Run one peer over catalogs, in the peers' own interpreter. Standard library only.

    python peer_worker.py JOBS ANSWERS

JOBS is a JSON file with the directory of adapters, the adapter, and `jobs`: for each a catalog, messages,
the number of hits and a limit of CPU time. ANSWERS receives, after each job, the hits and the CPU time of
each search. An adapter has `build(definitions) -> index` and `search(index, message, count) -> names`.
A message in `candidates` is searched in an index of only those tools. The worker goes on to the next job when
the job's CPU time is used up, and exits with TOO_LATE if a single step takes far longer than that.
"""

from __future__ import annotations

import contextlib
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


class Deadline:
    """Exits the process when a job exceeds its CPU time limit and a grace period."""

    def __init__(self) -> None:
        self.at = float("inf")
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        # A system limit would make the CPU clock too coarse to use.
        while time.process_time() < self.at:
            time.sleep(1)
        os._exit(TOO_LATE)


def run_all(work: dict[str, Any], answers: Path) -> None:
    """Run the jobs one after the other, and write the answers after each."""
    sys.path.insert(0, work["adapters"])
    deadline = Deadline()
    adapter = importlib.import_module(work["peer"])
    done = []
    for job in work["jobs"]:
        deadline.at = time.process_time() + job["seconds"] + GRACE
        try:
            done.append(run(adapter, job))
        except Exception as error:  # a peer may fail in any way
            done.append({"problem": f"failed: {type(error).__name__}: {error}"[:160]})
        answers.write_text(json.dumps(done), encoding="utf-8")


def run(adapter: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Return the peer's hits for as many messages as the time limit allows."""
    tools = definitions(Path(job["catalog"]))
    candidates: dict[str, list[str]] = job.get("candidates", {})
    started = time.process_time()
    last = started + job["seconds"]
    index = adapter.build(tools) if len(candidates) < len(job["messages"]) else None
    answer: dict[str, Any] = {"build_ms": (time.process_time() - started) * 1000, "ranked": {}, "ms": []}
    for number, text in job["messages"].items():
        if time.process_time() > last or (job["all"] and hopeless(answer["ms"], job)):
            break
        if number in candidates:
            few = [tool for tool in tools if tool["function"]["name"] in candidates[number]]
            with contextlib.suppress(Exception):  # some retrievers cannot search a handful of tools
                answer["ranked"][number] = list(adapter.search(adapter.build(few), text, job["count"]))
            continue
        before = time.process_time()
        answer["ranked"][number] = list(adapter.search(index, text, job["count"]))
        answer["ms"].append((time.process_time() - before) * 1000)
    return answer


def hopeless(times: list[float], job: dict[str, Any]) -> bool:
    """Return True if, judged by the first messages, all would take three times the time limit.

    The median of them, because some retrievers build their index with the first search.
    """
    few = 3
    return len(times) == few and sorted(times)[1] * len(job["messages"]) > 3_000 * job["seconds"]


def definitions(catalog: Path) -> list[dict[str, Any]]:
    with catalog.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [{"type": "function", "function": row["function"]} for row in rows]


if __name__ == "__main__":
    run_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
