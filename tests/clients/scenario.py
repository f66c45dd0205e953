"""The requests that every client makes to the gateway, and one check for each column of the client table.

All clients make the same requests, so that one run of a client is enough for all checks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolfold.core.types import BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_SEARCH

Json = dict[str, Any]
BRIDGE = {BRIDGE_CALL, BRIDGE_DESCRIBE, BRIDGE_SEARCH}
DELETE = "notes_delete_note"
DELETE_ALLOWED = "notes_delete_draft"
QUESTION = f"Allow '{DELETE}' to run?"
ASKED = "approval asked"


@dataclass(frozen=True)
class Request:
    """A call of one of the gateway's tools."""

    tool: str
    arguments: Json


def call_through_bridge(name: str, **arguments: str) -> Request:
    """Return the call of a server's tool through `tool_call`."""
    return Request(BRIDGE_CALL, {"name": name, "arguments": arguments})


STEPS = (
    Request(BRIDGE_SEARCH, {"query": "echo a message"}),
    call_through_bridge("notes_echo", text="hello from the client"),
    call_through_bridge(DELETE, text="draft"),
    call_through_bridge(DELETE_ALLOWED, text="draft"),
    call_through_bridge("notes_crash"),
    call_through_bridge("notes_echo", text="again"),
)
STEPS_WITH_FORMS = (*STEPS, call_through_bridge(DELETE, text="letter"))
"""For clients that support forms: they decline the first one and accept the second."""
ANSWERS = ("decline", "accept")


@dataclass(frozen=True)
class Outcome:
    """What a client that ran the steps received, and which calls reached the server."""

    listed: Sequence[str]
    results: Sequence[str]
    """The results of the steps, in order, as text."""
    calls: Sequence[str]
    questions: Sequence[str] = ()
    """The messages of the approval forms that the client received."""
    output: str = ""
    """What the client printed, for the message of a failing test."""


Checks = dict[str, Callable[[Outcome], None]]


def write_settings(home: Path, record: Path, **settings: object) -> None:
    """Configure Toolfold with the notes server, tool search, and a permission for `delete_draft`."""
    server = {
        "command": sys.executable,
        "args": [str(Path(__file__).with_name("notes_server.py")), str(record)],
    }
    content = {
        "mcp": {"servers": {"notes": server}, "wait_seconds": 60.0},
        "tools": {"tool_search": {"enabled": "on"}},
        "approval": {"allowed_tools": [f"tool:mcp_{DELETE_ALLOWED}:destructive"]},
        **settings,
    }
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(json.dumps(content))


def read_calls(record: Path) -> list[str]:
    """Return the calls that reached the notes server."""
    return record.read_text().splitlines() if record.exists() else []


def check_connection(outcome: Outcome) -> None:
    """The client reached the gateway and got an answer to every request."""
    assert len(outcome.results) >= len(STEPS), f"{outcome.results}\nThe client printed {outcome.output}"


def check_listing(outcome: Outcome) -> None:
    """The client lists the bridge tools and nothing else."""
    assert len(outcome.listed) == len(BRIDGE)
    assert all(any(name.endswith(each) for name in outcome.listed) for each in BRIDGE)


def check_search(outcome: Outcome) -> None:
    """A search finds the server's tool."""
    assert "notes_echo" in outcome.results[0]


def check_calls(outcome: Outcome) -> None:
    """A harmless call and an allowed destructive call run and return the server's text."""
    assert "echo: hello from the client" in outcome.results[1]
    assert "delete_draft: draft" in outcome.results[3]
    assert list(outcome.calls[:2]) == ["echo hello from the client", "delete_draft draft"]


def check_refusal(outcome: Outcome) -> None:
    """A destructive call that nobody could approve does not run; its result names the command to allow it."""
    refusal = outcome.results[2]
    assert f"{DELETE}' was not run: " in refusal
    assert "declares that it can destroy data" in refusal
    assert f"toolfold approvals allow {DELETE}" in refusal
    assert "person" not in refusal  # no user saw a question
    assert "delete_note draft" not in outcome.calls


def check_recovery(outcome: Outcome) -> None:
    """After a tool call that crashed the MCP server, the next call runs in a new process of the server."""
    assert "echo: again" not in outcome.results[4]
    assert "echo: again" in outcome.results[5]
    assert "echo again" in outcome.calls


CHECKS: Checks = {
    "connect": check_connection,
    "list": check_listing,
    "search": check_search,
    "call": check_calls,
    "approval refused": check_refusal,
    "recovery after a server crash": check_recovery,
}


def check_forms(outcome: Outcome) -> None:
    """The client got an approval form for both destructive calls, and only the accepted call ran."""
    assert len(outcome.questions) == len(ANSWERS)
    for question, text in zip(outcome.questions, ("draft", "letter"), strict=True):
        assert question.startswith(QUESTION)
        assert f'{{"text": "{text}"}}' in question
    assert "delete_note: letter" in outcome.results[-1]
    assert outcome.calls[-1] == "delete_note letter"


CHECKS_WITH_FORMS = {**CHECKS, ASKED: check_forms}


def run_checks(outcome: Outcome, checks: Checks, subtests: pytest.Subtests) -> None:
    """Run each check as a test of its own, named by the column."""
    for column, check in checks.items():
        with subtests.test(column):
            check(outcome)
