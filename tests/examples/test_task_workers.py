"""Workers of the example claim each card once, and reach nothing outside of the toolsets of their card."""

from __future__ import annotations

import json
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import recording_tool
from toolfold import ToolCall, open_runtime
from toolfold.core.types import Json
from toolfold.models.client import ModelClient
from toolfold.models.reply import ModelRequest
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "task_workers.py")))
CLAIM_ALL = """
import sqlite3, sys
from task_workers import claim_card
board = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
sys.stdin.readline()
while card := claim_card(board, sys.argv[2]):
    print(card.id)
"""
OUTSIDE: list[tuple[str, Json]] = [
    ("own_office", {}),
    ("terminal", {"command": "touch escaped"}),
    ("write_file", {"path": "escaped", "content": "x"}),
    ("delegate_task", {"task": "touch escaped", "toolsets": ["terminal"]}),
    ("execute_code", {"code": "open('escaped', 'w')"}),
]


def test_each_card_is_claimed_by_exactly_one_of_several_processes(tmp_path: Path) -> None:
    board = tmp_path / "board.db"
    EXAMPLE.create_board(board, [(f"task {number}", "harbour") for number in range(200)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM_ALL, str(board), f"worker {number}"],
            cwd=EXAMPLES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    claimed = [line for process in processes for line in process.communicate(timeout=120)[0].split()]
    assert sorted(map(int, claimed)) == list(range(1, 201))


@pytest.mark.parametrize("by_bridge", [False, True], ids=["direct calls", "calls by tool_call"])
async def test_worker_reaches_no_tool_outside_of_the_toolsets_of_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_bridge: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    board, ran, told = tmp_path / "board.db", list[str](), list[str]()
    EXAMPLE.create_board(board, [("work", "harbour")])
    calls = [ToolCall("own_harbour", {})]
    for name, arguments in OUTSIDE:
        wrapped = ToolCall("tool_call", {"name": name, "arguments": arguments})
        calls.append(wrapped if by_bridge else ToolCall(name, arguments))

    def make_model(_card: object) -> ModelClient:
        return ScriptedProvider([ScriptedReply(calls=calls), read_results])

    def read_results(request: ModelRequest) -> str:
        told.append(json.dumps(request.messages))
        return "done"

    async with open_runtime(approver=lambda _request: True) as runtime:
        tools = [recording_tool(f"own_{name}", name, ran) for name in ("harbour", "office")]
        runtime.registry.add_all(tools)
        await EXAMPLE.work(runtime, board, "Ada", make_model)
    assert ran == ["own_harbour"]
    assert told[0].count("not available in this session") == len(OUTSIDE)
    assert not (tmp_path / "escaped").exists()
    with closing(sqlite3.connect(board)) as connection:
        assert connection.execute("SELECT worker, report FROM cards").fetchall() == [("Ada", "done")]
