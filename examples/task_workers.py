"""Let workers claim cards from a table, and work on each in a session with the toolsets of the card only."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from toolfold import Agent, Runtime, ToolCall, open_runtime, tool
from toolfold.models.client import ModelClient
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

CLAIM = """
UPDATE cards SET worker = ? WHERE id = (SELECT id FROM cards WHERE worker IS NULL ORDER BY id LIMIT 1)
RETURNING id, task, toolsets
"""


class Card(NamedTuple):
    id: int
    task: str
    toolsets: str


@tool(toolset="harbour")
def count_boats(pier: str) -> str:
    """Count the boats at a pier."""
    return f"3 boats at the {pier} pier"


@tool(toolset="office")
def pay_bill(boat: str) -> str:
    """Pay the mooring bill of a boat."""
    return f"paid for {boat}"


def create_board(file: Path, cards: list[tuple[str, str]]) -> None:
    """Create a table of cards from tasks and the toolsets they may use."""
    with closing(sqlite3.connect(file, isolation_level=None)) as board:
        board.execute("CREATE TABLE cards (id INTEGER PRIMARY KEY, task, toolsets, worker, report)")
        board.executemany("INSERT INTO cards (task, toolsets) VALUES (?, ?)", cards)


def claim_card(board: sqlite3.Connection, worker: str) -> Card | None:
    """Take the next free card. One statement, so that no other worker or process can take it too."""
    row = board.execute(CLAIM, (worker,)).fetchone()
    return Card(*row) if row else None


async def work(runtime: Runtime, file: Path, worker: str, make_model: Callable[[Card], ModelClient]) -> None:
    """Work on cards until none is free."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as board:
        while card := claim_card(board, worker):
            async with Agent(make_model(card), toolsets=card.toolsets.split(), runtime=runtime) as agent:
                result = await agent.run(card.task)
            board.execute("UPDATE cards SET report = ? WHERE id = ?", (result.text or result.error, card.id))


def make_scripted_model(card: Card) -> ModelClient:
    """Return a model that also tries a tool that its card does not grant, directly and by tool_call."""
    first = ToolCall("count_boats", {"pier": "north"})
    outside = ToolCall("pay_bill", {"boat": "Alma"})
    wrapped = ToolCall("tool_call", {"name": "pay_bill", "arguments": {"boat": "Alma"}})
    return ScriptedProvider([ScriptedReply(calls=[first, outside, wrapped]), f"{card.task}: done"])


async def main() -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "board.db"
        create_board(file, [(f"Count the boats, round {number}", "harbour") for number in range(1, 5)])
        async with open_runtime() as runtime:
            runtime.registry.add_all([count_boats, pay_bill])
            runtime.hooks.add("post_tool_call", lambda tool, *_: print(f"ran {tool.name}"))
            workers = (work(runtime, file, name, make_scripted_model) for name in ("Ada", "Ben"))
            await asyncio.gather(*workers)
        with closing(sqlite3.connect(file)) as board:
            print(*board.execute("SELECT report FROM cards ORDER BY id"), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
