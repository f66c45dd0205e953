"""Measure one configuration in its own process: cold start, queries, memory, one changed tool.

    python fresh.py JOB ANSWER

Both are JSON files. The retriever is the one that a runtime with default settings (or with
`rag_embed_model: light`) would use, and its index is kept in the home folder that the job names: the first
process builds it, the next ones load it. With a `size`, variants of the tools are added up to this number.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring.variants import load_tools
from toolfold import load_config, open_runtime
from toolfold.config import Config
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.tool_search import Retriever

Answer = dict[str, Any]
PROGRESS_TOOLS = 100_000
BATCH_TOOLS = 64
"""Tools that are embedded between two reports of progress."""


class Clock:
    """Wall-clock and CPU time since its creation, in milliseconds."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"wall": round(wall * 1000, 2), "cpu": round(cpu * 1000, 2)}


def run(job: Answer) -> Answer:
    """Run all measurements of the job, in the order in which a program would run them."""
    answer: Answer = {"imports": {"cpu": round(time.process_time() * 1000, 2)}}
    clock = Clock()
    tools = Snapshot(load_tools(Path(job["catalog"]), job.get("size")), 0)
    answer["catalog"], answer["tools"] = clock.read(), len(tools)
    answer["memory_of_catalog_mb"] = peak_memory()
    settings = configured(Path(job["home"]), job["model"])
    first, *others = job["messages"]
    clock = Clock()
    with open_runtime(settings, progress=waiting) as runtime:
        answer["runtime"] = clock.read()
        clock = Clock()
        ask(runtime.retriever, tools, first)
        answer["first"] = clock.read()
        times = [timed(runtime.retriever, tools, message) for message in others]
        answer["ms"], answer["wall_ms"] = [each["cpu"] for each in times], [each["wall"] for each in times]
    answer["memory_mb"] = peak_memory()
    if job.get("change"):
        answer["change"] = changed(settings, tools, first, job["model"])
    return answer


def configured(home: Path, model: str) -> Config:
    """Return the default settings with the given embedding model."""
    overrides = ["plugins.enabled=false", f"tools.rag_embed_model={model}"]
    return load_config(project=home, env={"TOOLFOLD_HOME": str(home)}, overrides=overrides)


def waiting(done: int, whole: int) -> None:
    """Print progress from time to time; with a progress callback, the runtime waits for the whole index."""
    if done % PROGRESS_TOOLS < BATCH_TOOLS and done:
        print(f"    {done:,} of {whole:,} tools are embedded", file=sys.stderr, flush=True)


def ask(retriever: Retriever, tools: Snapshot, message: str) -> None:
    """Run a complete search, including the need classifier."""
    retriever.answer(tools, message, mode="hybrid", limit=8)


def timed(retriever: Retriever, tools: Snapshot, message: str) -> dict[str, float]:
    clock = Clock()
    ask(retriever, tools, message)
    return clock.read()


def changed(settings: Config, tools: Snapshot, message: str, model: str) -> dict[str, float]:
    """Return the extra time of the first search after one tool's description has changed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        shutil.copytree(settings.paths.cache_dir, configured(home, model).paths.cache_dir)
        name = sorted(tools)[len(tools) // 2]
        other = replace(tools[name], description=f"{tools[name].description} In a new way.")
        with open_runtime(configured(home, model), progress=waiting) as runtime:
            ask(runtime.retriever, tools, message)
            usual = measured(runtime.retriever, tools, message)
            after = measured(runtime.retriever, Snapshot({**tools, name: other}, 1), message)
    return {clock: round(after[clock] - usual[clock], 2) for clock in usual}


def measured(retriever: Retriever, tools: Snapshot, message: str) -> dict[str, float]:
    assert tools.ordered  # sorted here: a runtime does it when a tool is registered, not when one is searched
    clock = Clock()
    ask(retriever, tools, message)
    return clock.read()


def peak_memory() -> float:
    """Return the peak memory of this process in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # elsewhere the figure may be the parent's, from before this program was loaded
        kilobytes = next(
            int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM:")
        )
    else:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 1024, 1)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
