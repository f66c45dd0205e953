"""Asks the user of a chat during a turn: approvals, questions of the model, requests of MCP servers.

For each question the screen stops drawing until it is answered. Called in threads of the runtime.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from toolfold.cli.approval_prompt import ApprovalPrompt, end_line, read_line
from toolfold.safety.approval.safe_text import make_line_visible, make_visible, shorten_middle

if TYPE_CHECKING:
    from toolfold.cli.chat_screen import Screen
    from toolfold.core.types import Answer, ApprovalRequest, UserQuestion
    from toolfold.mcp.elicitation_requests import ElicitationReply, ElicitationRequest


class ChatQuestions:
    """Asks the user of a chat at the terminal, one question at a time."""

    def __init__(self, screen: Screen) -> None:
        from toolfold.cli.elicitation_prompt import ElicitationPrompt

        self._screen = screen
        self._lock = threading.Lock()
        self._approval, self._elicitation = ApprovalPrompt(), ElicitationPrompt()

    def approve(self, request: ApprovalRequest, /) -> Answer:
        """Ask the user whether a tool call may run."""
        with self._lock, self._screen.pause(request.withdrawn):
            return self._approval(request)

    def elicit(self, request: ElicitationRequest, /) -> ElicitationReply:
        """Ask the user for the input that an MCP server requests (MCP elicitation)."""
        with self._lock, self._screen.pause(request.withdrawn):
            return self._elicitation(request)

    def clarify(self, question: UserQuestion, /) -> str | None:
        """Ask the user the model's question; the user types an answer or the number of a suggested one."""
        with self._lock, self._screen.pause(question.withdrawn):
            if question.withdrawn.is_set():  # while another question was open
                return None
            click.echo(_format_question(question), err=True)
            click.echo("Your answer > ", nl=False, err=True)
            line = read_line(question.withdrawn)
        if line is None:
            end_line()
            return None
        answer = line.strip()
        if answer.isdecimal() and 0 < int(answer) <= len(question.choices):
            return question.choices[int(answer) - 1]
        return answer or None


def _format_question(question: UserQuestion) -> str:
    lines = ["", click.style("The model asks", bold=True), ""]
    lines += [f"  │ {line}" for line in make_visible(shorten_middle(question.text, 4_000)).split("\n")]
    choices = [make_line_visible(shorten_middle(choice, 200)) for choice in question.choices]
    lines += [
        "",
        *(f"  {click.style(str(number), bold=True)} {each}" for number, each in enumerate(choices, 1)),
    ]
    return "\n".join(lines)
