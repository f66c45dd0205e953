"""Tokens of tools: what slimming saves for each server, and what each mode sends with a request.

    python benchmarks/tokens.py [--servers FOLDER] [--model NAME] [--json]
    python benchmarks/tokens.py --requests [--servers FOLDER --messages FILE]

Without a folder, the sample catalog. A folder holds `tools/list` answers of MCP servers, one JSON file
each: `{"server": …, "tools": [{"name", "description", "inputSchema"}, …]}`. With `--requests`, the built-in
tools stand beside them, and labelled messages are sent: the sample's, or for other tools those of a file in
the form of `queries.jsonl[.gz]` whose tools are named `server__tool`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from toolfold import sample_catalog
from toolfold.core.authoring import build_tool
from toolfold.core.types import Json, Tool
from toolfold.selection.retrieval.ranking_metrics import load_queries
from toolfold.selection.turn.slimming import Slimmer, slim
from toolfold.selection.turn.tokens import TokenCounter, tokenizer_for


def sample() -> dict[str, list[Tool]]:
    servers: dict[str, list[Tool]] = {}
    for tool in sample_catalog():
        servers.setdefault(tool.source.name, []).append(tool)
    return servers


def recorded(folder: Path) -> dict[str, list[Tool]]:
    return {file.stem: read(json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def read(answer: Json) -> list[Tool]:
    return [
        build_tool(
            name=each["name"],
            toolset=f"mcp-{answer['server']}",
            schema={
                "name": each["name"],
                "description": each.get("description") or "",
                "parameters": each["inputSchema"],
            },
            handler=lambda args: args,
        )
        for each in answer["tools"]
    ]


def measure(server: str, tools: Sequence[Tool], counter: TokenCounter) -> Json:
    """Count the tokens of a server's tools, as their author wrote them and as they are sent to the model."""
    before = counter.definitions(tool.definition() for tool in tools)
    after = counter.definitions(slim(tool.definition()) for tool in tools)
    return {"server": server, "tools": len(tools), "before": before, "after": after}


def milliseconds(tools: Sequence[Tool]) -> tuple[float, float]:
    """Return the milliseconds to slim 10,000 tool definitions, at first and from the cache."""
    many = [
        build_tool(name=f"t{n}", toolset="x", schema=tools[n % len(tools)].definition(), handler=print)
        for n in range(10_000)
    ]
    slimmer, times = Slimmer(), []
    for _ in range(2):
        started = time.process_time()
        for tool in many:
            slimmer(tool)
        times.append((time.process_time() - started) * 1000)
    return times[0], times[1]


def requests(options: argparse.Namespace, counter: TokenCounter) -> list[Json]:
    """Return the mean tokens that each mode sends for the messages that need a tool."""
    from measuring import sent
    from measuring.sets import SAMPLE, Sets

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.servers:
            tools = sent.servers(options.servers, work)
            queries = sent.renamed(load_queries(options.messages), tools)
        else:
            tools = sample_catalog()
            queries = Sets(None, work).queries(SAMPLE)
        needing = [query for query in queries if query.gold]
        print(f"{len(tools)} tools, {len(needing)} messages …", file=sys.stderr)
        return sent.measure(tools, needing, counter, options.home or work)


def table(rows: Sequence[Json]) -> str:
    """Format a Markdown table of tokens: before slimming in the first row, then after it for each mode."""
    lines = [
        "| mode | core tools | deferrable tools, bridge included | total | less of the deferrable | recall |",
        "|---|---|---|---|---|---|",
    ]
    first = rows[0]
    core, rest = first["core_before"], first["deferrable_before"]
    lines.append(f"| before | {core:,} | {rest:,} | {core + rest:,} | | |")
    for row in rows:
        found = "–" if row["recall"] is None else f"{row['recall']:.3f}"
        counts = (row["core"], row["deferrable"], row["core"] + row["deferrable"])
        told = " | ".join(f"{count:,}" for count in counts)
        lines.append(f"| {row['mode']} | {told} | {row['saved']:.2%} | {found} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=Path, help="directory of tools/list results")
    parser.add_argument("--model", default="gpt-4o", help="model whose tokenizer is used")
    parser.add_argument("--requests", action="store_true", help="measure the requests of each mode instead")
    parser.add_argument("--messages", type=Path, help="labelled messages for the tools of --servers")
    parser.add_argument("--home", type=Path, help="directory of the index between runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.requests:
        if options.servers and not options.messages:
            parser.error("--requests with --servers needs --messages")
        rows = requests(options, TokenCounter(tokenizer_for(options.model)))
        print(json.dumps(rows) if options.json else table(rows))
        return
    servers = recorded(options.servers) if options.servers else sample()
    counter = TokenCounter(tokenizer_for(options.model))
    rows = [measure(server, tools, counter) for server, tools in servers.items()]
    total = {key: sum(row[key] for row in rows) for key in ("tools", "before", "after")}
    rows.append({"server": "total", **total})
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        saved = 1 - row["after"] / row["before"] if row["before"] else 0.0
        print(f"{row['server']:<28} {row['tools']:>5} {row['before']:>9,} {row['after']:>9,} {saved:>7.1%}")
    first, again = milliseconds([tool for tools in servers.values() for tool in tools])
    print(f"10,000 such tools: {first:.0f} ms to slim, {again:.1f} ms again")


if __name__ == "__main__":
    main()
