"""Convert the conversations of `conversations/` into a catalog and messages for `toolfold eval`.

    python conversations.py --mcp ../../shared/mcp --more ../../shared/bench/distractors-mcp/catalog.jsonl \\
        --out DIR

Writes `catalog.jsonl`, `tune.jsonl`, `held-out.jsonl`, `unseen.jsonl` and `unserved.jsonl`. Every third
conversation of a file is held out: it is measured, never tuned on. `unseen.txt` was written later, blind, and
is held out as a whole.

A conversation starts with `# SERVER`, the server of the tools that are named without one. Each further line
is a message of the user: a letter for its kind, the tools it needs, a colon and the text. Tools separated by
commas are all needed; a slash separates tools of which one is enough, and the first of them is called.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import read

CONVERSATIONS = Path(__file__).resolve().parent / "conversations"
UNSERVED = "unserved.txt"
TUNE, HELD_OUT, UNSEEN = "tune", "held-out", "unseen"
KINDS = {
    "o": "opening",
    "f": "follow-up",
    "r": "reference",
    "c": "correction",
    "b": "return",
    "t": "small talk",
}
HELD_OUT_EVERY = 3
MORE_SERVERS = frozenset(
    (
        "bitwarden",
        "circleci-circleci",
        "delorenj-trello",
        "hubspot",
        "launchdarkly",
        "mapbox",
        "mobilenext-mobile",
        "neondatabase-neon",
        "translated-lara",
        "youtube-data",
    )
)
_LINE = re.compile(r"([ofrcbt])(?: (\S+?))?: (.+)")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation; `needs` lists, for each needed tool, the tools that serve it."""

    kind: str
    text: str
    needs: tuple[tuple[str, ...], ...]


def load_conversations() -> Iterator[tuple[str, str, list[Message]]]:
    """Yield the id of each conversation, its split (tune, held-out, unseen), and its messages."""
    for file in sorted(CONVERSATIONS.glob("*.txt")):
        if file.name == UNSERVED:
            continue
        blocks = [block for block in file.read_text(encoding="utf-8").split("\n\n") if block.strip()]
        for number, block in enumerate(blocks, 1):
            header, *lines = block.strip().splitlines()
            server = header.removeprefix("#").split()[0]
            split = HELD_OUT if number % HELD_OUT_EVERY == 0 else TUNE
            split = UNSEEN if file.stem == UNSEEN else split
            yield f"{file.stem}-{number:02}", split, [_parse_line(line, server) for line in lines]


def _parse_line(line: str, server: str) -> Message:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"not a message of a conversation: {line!r}")
    letter, tools, text = found.groups()
    needs = tuple(
        tuple(name if "__" in name else f"{server}__{name}" for name in need.split("/"))
        for need in (tools.split(",") if tools else ())
    )
    return Message(KINDS[letter], text, needs)


def make_rows(
    key: str, messages: Sequence[Message], equivalents: Mapping[str, Sequence[str]]
) -> Iterator[Row]:
    """Yield one row per message, each with the messages and calls before it."""
    history: list[Row] = []
    for number, message in enumerate(messages, 1):
        yield {
            "id": f"{key}-{number}",
            "query": message.text,
            "gold": [need[0] for need in message.needs],
            "alternatives": {
                need[0]: sorted({other for name in need for other in equivalents[name]} - {need[0]})
                for need in message.needs
            },
            "kind": message.kind,
            "history": list(history),
        }
        history.append({"role": "user", "content": message.text})
        called = [need[0] for need in message.needs]
        history.append({"role": "assistant", "content": "", "tools": called})


def load_catalog(mcp: Path, more: Path) -> list[Row]:
    """Return the tools of the `tools/list` answers in a directory, and of some servers of a catalog file."""
    tools = []
    for file in sorted(mcp.glob("*.json")):
        for tool in json.loads(file.read_text(encoding="utf-8"))["tools"]:
            function = {
                "name": f"{file.stem}__{tool['name']}",
                "description": tool.get("description", ""),
                "parameters": tool.get("inputSchema", {}),
            }
            tools.append({"type": "function", "function": function, "meta": {"server": file.stem}})
    names = {tool["function"]["name"] for tool in tools}
    tools += [
        tool
        for tool in read(more)
        if tool["meta"]["server"] in MORE_SERVERS and tool["function"]["name"] not in names
    ]
    return tools


def find_equivalents(tools: Sequence[Row]) -> dict[str, list[str]]:
    """Return, for each tool, the tools of its server with the same description, including itself."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    keys = {
        tool["function"]["name"]: (tool["meta"]["server"], tool["function"]["description"]) for tool in tools
    }
    for name, key in keys.items():
        groups[key].append(name)
    return {name: groups[key] if key[1] else [name] for name, key in keys.items()}


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mcp", type=Path, required=True, help="directory of tools/list answers")
    parser.add_argument("--more", type=Path, required=True, help="catalog file with more servers")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tools = load_catalog(options.mcp, options.more)
    equivalents = find_equivalents(tools)
    rows: dict[str, list[Row]] = {TUNE: [], HELD_OUT: [], UNSEEN: []}
    for key, split, messages in load_conversations():
        rows[split] += make_rows(key, messages, equivalents)
    texts = (CONVERSATIONS / UNSERVED).read_text(encoding="utf-8").splitlines()
    unserved = [
        {"id": f"unserved-{number}", "query": text, "gold": [], "kind": "unserved", "history": []}
        for number, text in enumerate(texts, 1)
    ]
    write_rows(options.out / "catalog.jsonl", tools)
    for split, messages in rows.items():
        write_rows(options.out / f"{split}.jsonl", messages)
    write_rows(options.out / "unserved.jsonl", unserved)
    counts = ", ".join(f"{len(messages)} {split}" for split, messages in rows.items())
    print(f"{len(tools)} tools; messages: {counts}")


if __name__ == "__main__":
    main()
