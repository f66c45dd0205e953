"""Measure search time (cold and warm) and memory by catalog size.

CPU time of one thread. Each figure comes from its own process, so that none warms up another.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from measuring.peers import ONE_THREAD, Kept, Peers, print_progress
from measuring.scores import Figures, spread
from measuring.sets import Row, Sets
from measuring.weights import ENCODER_FILES, LIGHT_FILES, SHIPPED, Weights

FRESH = Path(__file__).with_name("fresh.py")
SETTINGS = {
    "default": ("embedded", (*ENCODER_FILES, *LIGHT_FILES)),
    "light": ("light", LIGHT_FILES),
}
STARTS = 3
CHANGED_AT = 10_000


@dataclass(frozen=True, slots=True)
class Speed:
    """Measures Toolfold and the peers on catalogs of several sizes."""

    sets: Sets
    weights: Weights
    homes: Path
    """Directory of indexes between runs, with a subdirectory per model."""
    messages: int

    def measure(self, sizes: Sequence[int], peers: Peers | None) -> list[Figures]:
        """Return one row per catalog size, smallest first, so that larger indexes reuse the vectors."""
        return [self._measure_size(size, peers) for size in sorted(sizes)]

    def embedding(self, servers: Path) -> Figures:
        """Measure the time to embed the tools of real servers for the first time."""
        catalog = self.sets.write("servers", server_tools(servers))
        told: Figures = {}
        for name, (model, _) in SETTINGS.items():
            print_progress(f"  embedding the tools of real servers: {name}")
            with tempfile.TemporaryDirectory() as home:
                answer = fresh(catalog, Path(home), model, ["warm up"])
            told |= {"tools": answer["tools"], name: answer["first"]}
        return told

    def _measure_size(self, size: int, peers: Peers | None) -> Figures:
        catalog = self.sets.of_size(size)
        queries = self.sets.messages(size, self.messages)
        texts = [query.text for query in queries]
        row: Figures = {"tools": size, "messages": len(texts)}
        for name, (setting, files) in SETTINGS.items():
            print_progress(f"  {size:,} tools: {name}")
            home = self.homes / f"{name}-{self.weights.fingerprint(SHIPPED, files)}"
            row[name] = self._measure_toolfold(catalog, home, setting, texts, change=size == CHANGED_AT)
        row["peers"] = {}
        for peer in peers.names() if peers else ():
            print_progress(f"  {size:,} tools: {peer}")
            assert peers is not None
            row["peers"][peer] = peers.speed(peer, catalog, queries)
        return row

    def _measure_toolfold(
        self, catalog: Path, home: Path, model: str, texts: Sequence[str], *, change: bool
    ) -> Figures:
        built = _build_index(catalog, home, model, texts[:1])
        starts = [fresh(catalog, home, model, texts[:1]) for _ in range(STARTS)]
        answer = fresh(catalog, home, model, texts, change=change)
        told = spread(answer["ms"]) | {
            "build": built["first"],
            "cold": {clock: median(start["first"][clock] for start in starts) for clock in ("wall", "cpu")},
            "memory_mb": answer["memory_mb"],
            "memory_of_catalog_mb": answer["memory_of_catalog_mb"],
            "memory_to_build_mb": built["memory_mb"],
        }
        return told | ({"change": answer["change"]} if change else {})


def _build_index(catalog: Path, home: Path, model: str, messages: Sequence[str]) -> Figures:
    """Build the index if necessary and return the measurements of its build."""
    home.mkdir(parents=True, exist_ok=True)
    kept = Kept(home / "built.json", fresh=False)
    key = hashlib.blake2b(catalog.read_bytes(), digest_size=12).hexdigest()
    known = kept.get(key)
    if known is None:
        known = fresh(catalog, home, model, messages)
        kept.put(key, known)
    return known


def fresh(
    catalog: Path,
    home: Path,
    model: str,
    messages: Sequence[str],
    *,
    change: bool = False,
    size: int | None = None,
) -> Figures:
    """Run a measurement in its own process; with `size`, of so many tools, variants included."""
    home.mkdir(parents=True, exist_ok=True)
    job = {"catalog": str(catalog), "home": str(home.resolve()), "model": model, "messages": list(messages)}
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "job.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(job | {"change": change, "size": size}))
        subprocess.run(
            [sys.executable, str(FRESH), str(asked), str(answered)],
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": make_path(FRESH.parent.parent)},
            check=True,
        )
        answer: Figures = json.loads(answered.read_text())
        return answer


def make_path(folder: Path) -> str:
    """Return PYTHONPATH with a directory in front of what it contains now."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))


def server_tools(folder: Path) -> list[Row]:
    """Return the tools of `tools/list` results, one file per server, as catalog rows."""
    rows: list[Row] = []
    for file in sorted(folder.glob("*.json")):
        listed = json.loads(file.read_text(encoding="utf-8"))
        rows += [_make_row(tool, file.stem) for tool in listed["tools"]]
    return rows


def _make_row(tool: Row, server: str) -> Row:
    function = {
        "name": f"mcp_{server}_{tool['name']}",
        "description": tool.get("description") or "",
        "parameters": tool.get("inputSchema") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function, "meta": {"server": server}}
