"""Measure what folding in the model proxy saves over conversations of a coding agent, with prompt caching.

    python benchmarks/proxy_savings.py [--conversations N] [--turns N] [--json FILE]

The agent has a few tools of its own and the sample catalog as tools of MCP servers. For each of the sample's
messages the scripted model reads a file, runs a command and calls the tools that the message takes; behind
the proxy it searches for those that it does not see. The agent knows nothing but the URL. What reaches the
provider is counted in tokens of o200k and billed with the providers' prices, each conversation with an empty
prompt cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from measuring import report
from measuring.arguments import example
from measuring.peers import print_progress
from measuring.processes import free_port
from measuring.scripted import Script, ScriptedModel, served
from measuring.sets import SAMPLE, SEED, Sets

from proxy import TOOLFOLD, running
from toolfold import sample_catalog
from toolfold.core.types import Json, Tool
from toolfold.selection.retrieval.ranking_metrics import Query
from toolfold.selection.turn.pricing import PRICES_AS_OF, ModelCall, Prices, Segment, compute_bill, prices_for
from toolfold.selection.turn.tokens import TokenCounter

PRICED = tuple(map(prices_for, ("claude-sonnet-4-6", "gpt-5.4", "gpt-4o")))
SYSTEM = {
    "role": "system",
    "content": "You are a coding agent. Work step by step and check the result. " * 60,
}
FILE = "\n".join(f"{line:4}  value_{line} = load(path, key={line}, default=None)" for line in range(60))
MAX_MODEL_CALLS = 12
SECONDS_A_CALL, SECONDS_A_MESSAGE = 8.0, 60.0
OWN_TOOLS = {
    "Read": ("Read a file of the project.", ("file_path",)),
    "Edit": ("Replace text in a file of the project.", ("file_path", "old_string", "new_string")),
    "Write": ("Write a file of the project.", ("file_path", "content")),
    "Bash": ("Run a shell command in the project.", ("command", "description")),
    "Grep": ("Search the files of the project for a pattern.", ("pattern", "path")),
    "Glob": ("List files of the project by pattern.", ("pattern",)),
    "TodoWrite": ("Write down the steps of the task.", ("steps",)),
}
MODES: Mapping[str, Json] = {
    "without folding": {"proxy": {"folding": "off"}},
    "search": {"proxy": {"folding": "on"}},
    "search and selection, append": {
        "proxy": {"folding": "on"},
        "tools": {"selection": "hybrid", "rag_placement": "append"},
    },
    "search and selection, tail": {
        "proxy": {"folding": "on"},
        "tools": {"selection": "hybrid", "rag_placement": "tail"},
    },
}


@dataclass(slots=True)
class Recorder:
    """Model provider that answers with a scripted model and counts the tokens of each request."""

    model: ScriptedModel
    counter: TokenCounter = field(default_factory=TokenCounter)
    calls: list[ModelCall] = field(default_factory=list)
    clock: float = 0.0

    def __call__(self, request: Json) -> Json:
        completion = self.model(request)
        pieces = [*(tool["function"] for tool in request["tools"]), *request["messages"]]
        output = self._count(completion["choices"][0]["message"]).tokens
        self.calls.append(ModelCall(tuple(map(self._count, pieces)), output, at=self.clock))
        self.clock += SECONDS_A_CALL
        return completion

    def _count(self, piece: Any) -> Segment:
        text = json.dumps(piece, ensure_ascii=False, separators=(",", ":"))
        return Segment(hashlib.blake2b(text.encode(), digest_size=12).hexdigest(), self.counter.text(text))


@dataclass(slots=True)
class Measured:
    """Measurements of the conversations in one mode."""

    mode: str
    messages: int = 0
    complete: int = 0
    """Messages for which every tool was called."""
    conversations: list[list[ModelCall]] = field(default_factory=list)

    def figures(self, prices: Sequence[Prices]) -> Json:
        calls = [call for each in self.conversations for call in each]
        sent = sum(segment.tokens for call in calls for segment in call.segments)
        bills = {price.name: [compute_bill(each, price) for each in self.conversations] for price in prices}
        return {
            "mode": self.mode,
            "requests": round(len(calls) / self.messages, 2),
            "complete": round(self.complete / self.messages, 4),
            "input": round(sent / self.messages),
            "output": round(sum(call.output for call in calls) / self.messages),
            "cached": {
                name: round(sum(bill.cached for bill in each) / sum(bill.input for bill in each), 4)
                for name, each in bills.items()
            },
            "dollars": {
                name: sum(bill.dollars for bill in each) / self.messages * 1000
                for name, each in bills.items()
            },
        }


def agent_tools(catalog: Sequence[Tool]) -> list[Json]:
    """Return the tools that the agent sends: its own tools and those of its MCP servers."""
    own = [
        {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": list(keys),
            },
        }
        for name, (description, keys) in OWN_TOOLS.items()
    ]
    others = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in catalog
    ]
    written: list[Json] = json.loads(json.dumps([*own, *others]))
    return [{"type": "function", "function": each} for each in written]


def as_served(name: str) -> str:
    """Return the name that coding agents give to a tool of an MCP server: `mcp__SERVER__TOOL`."""
    return f"mcp__{name.partition('_')[0]}__{name}"[:64]


def make_script(queries: Sequence[Query], catalog: Sequence[Tool]) -> Script:
    own = [frozenset({"Read"}), frozenset({"Bash"})]
    needs = {
        query.text: [*own, *(frozenset(map(as_served, need)) for need in query.needs())] for query in queries
    }
    arguments = {tool.name: example(json.loads(json.dumps(tool.parameters))) for tool in catalog}
    arguments |= {name: dict.fromkeys(keys, "src/app.py") for name, (_, keys) in OWN_TOOLS.items()}
    return Script(needs, arguments)


@contextmanager
def proxy_of(address: str, settings: Json, folder: Path) -> Iterator[str]:
    """Run `toolfold serve` in front of the model provider; yield the URL for chat completions."""
    port = free_port()
    provider = {"dialect": "openai", "base_url": address.removesuffix("/chat/completions")}
    folder.mkdir()
    path = folder / "settings.yaml"
    path.write_text(json.dumps({"providers": {"openai": provider}, **settings}))
    env = {"TOOLFOLD_HOME": str(folder), "TOOLFOLD_CONFIG": str(path)}
    with running([TOOLFOLD, "serve", "--port", str(port)], port, folder, env):
        yield f"http://127.0.0.1:{port}/v1/chat/completions"


def run_turn(url: str, messages: list[Json], tools: Sequence[Json]) -> list[str]:
    """Let the agent work on the newest message; return the names of the tools that the model called."""
    called = []
    for _ in range(MAX_MODEL_CALLS):
        body = {"model": "scripted-calls", "messages": messages, "tools": tools}
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"content-type": "application/json", "authorization": "Bearer x"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            reply = json.loads(answer.read())["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls") or ():
            called.append(call["function"]["name"])
            result = json.dumps({"status": "ok", "text": FILE})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not reply.get("tool_calls"):
            break
    return called


def measure(
    mode: str, url: str, recorder: Recorder, script: Script, talks: Sequence[Sequence[Query]]
) -> Measured:
    measured, tools = Measured(mode), agent_tools(served_catalog())
    for number, queries in enumerate(talks):
        recorder.calls, recorder.clock = [], 0.0
        messages: list[Json] = [{**SYSTEM, "content": f"{SYSTEM['content']} ({number})"}]
        for query in queries:
            messages.append({"role": "user", "content": query.text})
            called = run_turn(url, messages, tools)
            measured.messages += 1
            measured.complete += not script.open_needs(query.text, called)
            recorder.clock += SECONDS_A_MESSAGE
        measured.conversations.append(recorder.calls)
    return measured


def served_catalog() -> list[Tool]:
    return [replace(tool, name=as_served(tool.name)) for tool in sample_catalog()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5, help="messages per conversation")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queries = Sets(None, Path(folder)).queries(SAMPLE)
        random.Random(SEED).shuffle(queries)
        queries = queries[: options.conversations * options.turns]
        talks = [queries[start : start + options.turns] for start in range(0, len(queries), options.turns)]
        script = make_script(queries, served_catalog())
        recorder, rows = Recorder(ScriptedModel(script)), []
        with served(recorder) as address:
            for number, (mode, settings) in enumerate(MODES.items()):
                print_progress(f"{mode}: {len(talks)} conversations of {options.turns}")
                with proxy_of(address, settings, Path(folder, str(number))) as url:
                    rows.append(measure(mode, url, recorder, script, talks).figures(PRICED))
    print(
        f"{len(queries)} messages. Figures a message; dollars for 1,000 messages, prices of {PRICES_AS_OF}.\n"
    )
    heads = ["", "requests", "complete", "input", "output"]
    heads += [f"{price.name}, $ (cached)" for price in PRICED]
    lines = (
        [
            row["mode"],
            f"{row['requests']:.2f}",
            f"{row['complete']:.1%}",
            f"{row['input']:,}",
            f"{row['output']:,}",
            *(f"{row['dollars'][each.name]:.2f} ({row['cached'][each.name]:.0%})" for each in PRICED),
        ]
        for row in rows
    )
    print(report.table(heads, lines))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
