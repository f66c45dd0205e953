"""Exchange example messages with another program, such as a coding agent that writes them, through a file.

The first line of the file has the instructions; every other line is a tool with an empty list `messages` to
fill in. Imported messages are checked like those of a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolfold.core.jsonlines import read_json_lines
from toolfold.core.types import Json, Tool
from toolfold.selection.enrichment.prompts import MessageOptions, describe_tool
from toolfold.selection.enrichment.writer import WriteReport
from toolfold.selection.retrieval.example_messages import MessageChecker, MessageRecord, definition_checksum

DEFAULT_WRITER = "imported"
_TASK_KEY = "task"


def export_task(file: Path, tools: Sequence[Tool], options: MessageOptions) -> None:
    """Write a new file in which another program can fill in example messages for these tools."""
    how = 'Fill in the list "messages" of every following line, and your name as "model" in this line.'
    head = {_TASK_KEY: f"{options.instructions}\n\n{how}", "model": ""}
    rows = [{"checksum": _checksum(tool), **describe_tool(tool), "messages": []} for tool in tools]
    with file.open("x", encoding="utf-8") as stream:
        stream.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in [head, *rows])


def import_task(
    file: Path, tools: Sequence[Tool], checker: MessageChecker, *, date: str
) -> tuple[list[MessageRecord], WriteReport]:
    """Return the example messages in a completed task file, and a report of rejections. Raises SourceError.

    Lines of tools that are not among `tools`, or whose definition has changed, are reported as failed.
    """
    rows: list[Json] = read_json_lines(file, _parse_row, what="a task file")
    known = {_checksum(tool): tool for tool in tools}
    author = next((row["model"] for row in rows if _TASK_KEY in row and row.get("model")), DEFAULT_WRITER)
    report, records = WriteReport(), []
    for row in rows:
        tool = known.get(row.get("checksum", ""))
        if _TASK_KEY in row or not row["messages"]:
            continue
        if tool is None:
            report.failed.append(str(row.get("tool", "")))
            continue
        checked = checker.check(tool, row["messages"])
        report.rejected += [(tool.name, text, why) for text, why in checked.rejected.items()]
        if checked.accepted:
            records.append(MessageRecord.of(tool, checked.accepted, model=str(author)[:200], date=date))
    report.written = len(records)
    return records, report


def _parse_row(row: Any) -> Json:
    if not isinstance(row, dict):
        raise ValueError("each line of the task file must be a JSON object")
    if _TASK_KEY in row:
        return row
    messages = row.get("messages")
    if not isinstance(row.get("checksum"), str) or not isinstance(messages, list):
        raise ValueError(
            "each line of the task file after the first must have the keys `checksum` and `messages`"
        )
    if not all(isinstance(each, str) for each in messages):
        raise ValueError("`messages` must be a list of strings")
    return row


def _checksum(tool: Tool) -> str:
    return definition_checksum(tool.own_name, tool.description)
