"""Measure how often a local model chooses the right tool with valid and useful arguments.

    python benchmarks/local_model.py [smollm2 | /path/to/model.gguf]

Ten requests over eight tools; two of them need no tool. Prints one line for each, and the sums.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from toolfold.models.local_models import DEFAULT_MODEL, LocalClient
from toolfold.models.reply import ModelRequest, Reply

TEXT = {"type": "string"}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "read_file": ("Read a text file.", {"path": TEXT}),
    "write_file": ("Write text to a file.", {"path": TEXT, "content": TEXT}),
    "search_files": ("Search files for text.", {"pattern": TEXT, "path": TEXT}),
    "terminal": ("Run a shell command.", {"command": TEXT}),
    "web_search": ("Search the web.", {"query": TEXT}),
    "get_weather": ("Return the weather of a city.", {"city": TEXT}),
    "send_message": ("Send a message to a person.", {"to": TEXT, "text": TEXT}),
    "todo": ("Manage the plan of the session.", {"items": {"type": "array", "items": TEXT}}),
}
TASKS = (
    ("What is in the file notes.txt?", "read_file", "notes.txt"),
    ("Write the word hello into out.txt", "write_file", "out.txt"),
    ("Which files contain TODO?", "search_files", "todo"),
    ("Run the command ls -la", "terminal", "ls -la"),
    ("Search the web for the height of Mount Everest", "web_search", "everest"),
    ("What is the weather in Porto?", "get_weather", "porto"),
    ("Send Anna the message that dinner is at eight", "send_message", "anna"),
    ("Make a plan with the steps paint and sail", "todo", "paint"),
    ("Hello! How are you?", "", ""),
    ("Thanks, that was helpful.", "", ""),
)
"""Request, tool, and a word that its arguments must contain."""


def definitions() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": about,
                "parameters": {"type": "object", "properties": fields, "required": list(fields)},
            },
        }
        for name, (about, fields) in TOOLS.items()
    ]


async def ask(client: LocalClient, text: str) -> Reply:
    stream = client.stream(
        ModelRequest(
            model="",
            system="You are a helpful assistant.",
            messages=[{"role": "user", "content": text}],
            tools=definitions(),
            max_output_tokens=32,
        )
    )
    async for _ in stream:
        pass
    return stream.reply


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def measure(model: str) -> None:
    client = LocalClient(model)
    right = valid = useful = 0
    for text, tool, word in TASKS:
        started = time.perf_counter()
        reply = await ask(client, text)
        name = reply.calls[0].name if reply.calls else ""
        arguments = str(reply.calls[0].arguments) if reply.calls else ""
        is_right = name == tool
        right += is_right
        valid += not name or is_json(arguments)
        useful += is_right and word in arguments.lower()
        seconds = time.perf_counter() - started
        print(
            f"{'right' if is_right else 'wrong':5} {seconds:5.1f} s  {text}: {name or 'answer'} {arguments}"
        )
    print(f"{model}: right {right}, valid {valid}, right with the expected value {useful}, of {len(TASKS)}")
    await client.close()


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL))
