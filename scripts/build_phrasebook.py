"""Write the phrasebook that ships with the package, from messages and the definitions they were written for.

    python scripts/build_phrasebook.py --messages MESSAGES.jsonl --definitions DIRECTORY

`MESSAGES.jsonl` has lines with `server`, `tool` and `messages`; the directory has one `tools/list` answer per
server, `SERVER.json`. The server `toolfold` stands for the built-in tools, whose definitions are those of the
package. Existing lines of other tools are kept. Messages that a check rejects are left out and reported.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools_reference import list_builtin_tools

from toolfold.core.authoring import build_tool
from toolfold.core.types import Source, Tool, mcp_original_name
from toolfold.mcp.scan import find_injections
from toolfold.selection.retrieval.example_messages import MessageChecker, MessageRecord
from toolfold.selection.retrieval.message_store import format_record
from toolfold.selection.retrieval.phrasebook import FILE_NAME, Phrasebook

BUILT_IN = "toolfold"
"""Stands for the server of the built-in tools."""
TARGET = Path(__file__).resolve().parents[1] / "src/toolfold/retrieval/phrasebook" / FILE_NAME


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=Path, required=True, help="JSON lines: server, tool, messages")
    parser.add_argument("--definitions", type=Path, default=Path(), help="directory of tools/list answers")
    chosen = parser.parse_args()
    lines = [json.loads(line) for line in chosen.messages.read_text(encoding="utf-8").splitlines()]
    tools = {
        (server, tool.own_name): tool
        for server in sorted({line["server"] for line in lines})
        for tool in read_tools(chosen.definitions / f"{server}.json", server)
    }
    before = Phrasebook().load() if TARGET.exists() else []
    records = {(record.server, record.tool): record for record in before}
    records |= {(record.server, record.tool): record for record in check_lines(lines, tools)}
    ordered = [records[key] for key in sorted(records)]
    TARGET.write_text("".join(f"{format_record(record)}\n" for record in ordered), encoding="utf-8")
    print(f"{len(ordered)} tools of {len({record.server for record in ordered})} servers")


def read_tools(file: Path, server: str) -> list[Tool]:
    """Return the tools of a server's `tools/list` answer, or the built-in tools."""
    if server == BUILT_IN:
        return list_builtin_tools()
    return [
        build_tool(
            name=mcp_original_name(server, each["name"]),
            toolset=f"mcp-{server}",
            schema={"description": each.get("description", ""), "parameters": each.get("inputSchema") or {}},
            handler=len,
            source=Source("mcp", server),
        )
        for each in json.loads(file.read_text(encoding="utf-8"))["tools"]
    ]


def check_lines(lines: list[dict[str, Any]], tools: dict[tuple[str, str], Tool]) -> list[MessageRecord]:
    """Return a phrasebook record, with the messages that pass the checks, for each line of a known tool."""
    checker = MessageChecker(list(tools.values()), find_injections)
    records = []
    for line in lines:
        tool = tools.get((line["server"], line["tool"]))
        if tool is None:
            print(f"no definition: {line['server']} {line['tool']}")
            continue
        checked = checker.check(tool, line["messages"])
        for message, problem in checked.rejected.items():
            print(f"{line['server']} {line['tool']}: {message!r}: {problem}")
        if checked.accepted:
            records.append(replace(MessageRecord.of(tool, checked.accepted), server=line["server"]))
    return records


if __name__ == "__main__":
    main()
