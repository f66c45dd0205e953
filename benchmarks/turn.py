"""Measure the time of a turn before its request is sent, by mode and catalog size, compared with peers.

    python benchmarks/turn.py [--data DIR] [--peers DIR --peer-python PATH] [--json FILE]

A turn is the whole assembly: select, render, count. `beyond` is what it takes more than the query's own
retrieval. `--data` holds catalogs for the larger sizes (without it, renamed copies of the sample's tools),
`--peers` adapters whose search is timed on the same catalogs and messages in the same run; they run with
`--peer-python` (see `scripts/peers_env.sh`). CPU times of one thread; every figure from a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring.peers import (
    ONE_THREAD,
    Peers,
    add_peer_options,
    open_peers,
    print_progress,
    require_peer_python,
)
from measuring.scores import Figures, spread
from measuring.sets import Sets

WORKER = Path(__file__).parent / "measuring" / "turn_worker.py"
SIZES = (226, 1_000, 10_000)
BARS = {226: 0.5, 10_000: 2.0}
PEERS = "hermes_tool_search,fastmcp_bm25"
MODES = {
    "eager": ["tools.selection=eager", "tools.tool_search=off"],
    "tool_search": ["tools.selection=eager", "tools.tool_search=auto"],
    "hybrid": ["tools.selection=hybrid", "tools.tool_search=off"],
    "both": ["tools.selection=hybrid", "tools.tool_search=auto"],
}
SEARCH = "tool_search called"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="directory of data sets")
    add_peer_options(parser, PEERS)
    add("--sizes", default=",".join(map(str, SIZES)), help="comma-separated catalog sizes")
    add("--messages", type=int, default=200, help="number of messages for timing")
    add("--out", type=Path, default=Path("build/benchmarks"), help="directory of catalogs and indexes")
    add("--json", type=Path, help="write the whole result to this file")
    chosen = parser.parse_args()
    require_peer_python(parser, chosen)
    return chosen


def measure(chosen: argparse.Namespace) -> list[Figures]:
    """Return one row per catalog size, smallest first, so that larger indexes reuse the vectors."""
    sets = Sets(chosen.data, chosen.out / "catalogs")
    home = chosen.out / "turn-home"
    peers = open_peers(chosen, "turn-peers.json", fresh=True)
    sizes = sorted(int(size) for size in chosen.sizes.split(","))
    return [by_size(sets, size, chosen.messages, home, peers) for size in sizes]


def by_size(sets: Sets, size: int, count: int, home: Path, peers: Peers | None) -> Figures:
    """Measure Toolfold's modes and the peers on one catalog, one after the other."""
    catalog, queries = sets.of_size(size), sets.messages(size, count)
    texts = list(dict.fromkeys(query.text for query in queries))
    row: Figures = {"tools": size, "messages": len(texts), "modes": {}, "peers": {}}
    for mode, settings in MODES.items():
        print_progress(f"{size:,} tools: {mode}")
        job = {"catalog": str(catalog), "settings": settings, "messages": texts}
        answer = fresh(job | {"home": str(home.resolve()), "search": mode == "tool_search"})
        row["modes"][mode] = timed(answer["whole"], answer["retrieval"]) | {"first": answer["first"]}
        row["counting"] = answer["counting"]
        if answer["search"]:
            row["modes"][SEARCH] = {"whole": spread(answer["search"])}
    for peer in peers.names() if peers else ():
        assert peers is not None
        print_progress(f"{size:,} tools: {peer}")
        row["peers"][peer] = peers.speed(peer, catalog, queries)
    return row


def timed(whole: Sequence[float], retrieval: Sequence[float]) -> Figures:
    beyond = [all_ - part for all_, part in zip(whole, retrieval, strict=True)]
    return {"whole": spread(whole), "retrieval": spread(retrieval), "beyond": spread(beyond)}


def fresh(job: Figures) -> Figures:
    """Run a measurement in its own process."""
    Path(job["home"]).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "job.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(job))
        subprocess.run(
            [sys.executable, str(WORKER), str(asked), str(answered)],
            env={**os.environ, **ONE_THREAD},
            check=True,
        )
        answer: Figures = json.loads(answered.read_text())
        return answer


def table(rows: Sequence[Figures]) -> str:
    """Format milliseconds as p50 / p99."""
    heads = ["tools", "what", "whole turn", "retrieval in it", "beyond it", "bar"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        size = f"{row['tools']:,}"
        lines += [
            [size, mode, *(both(each.get(part)) for part in ("whole", "retrieval", "beyond")), bar(row, each)]
            for mode, each in row["modes"].items()
        ]
        lines += [
            [size, f"{peer}: search", told.get("problem") or both(told), "–", "–", "–"]
            for peer, told in row["peers"].items()
        ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def both(figures: Figures | None) -> str:
    return f"{figures['p50']:.3f} / {figures['p99']:.3f}" if figures else "–"


def bar(row: Figures, mode: Figures) -> str:
    """Return whether the median time without retrieval is within the limit for the catalog size."""
    limit = BARS.get(row["tools"])
    if limit is None or "beyond" not in mode:
        return "–"
    return f"{'within' if mode['beyond']['p50'] <= limit else 'above'} {limit:g}"


def main() -> None:
    chosen = options()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows = measure(chosen)
    print("Milliseconds of CPU time, p50 / p99.\n")
    print(table(rows))
    for row in rows:
        print(
            f"\n{row['tools']:,} tools: counting all of them the first time takes {row['counting']:,.0f} ms."
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
