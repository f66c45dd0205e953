"""Ask the user on behalf of an MCP server: to fill in a form, open a URL, or let the server use a model.

A server's text may imitate another source, so its name is printed first and deceptive characters are escaped.
Nothing is opened or sent without consent; no answer means no.
"""

from __future__ import annotations

import threading
from typing import Any

import click

from toolfold.cli.approval_prompt import end_line, read_line
from toolfold.mcp.elicitation_requests import ElicitationReply, ElicitationRequest, FormField
from toolfold.safety.approval.safe_text import make_line_visible, make_visible, shorten_middle

__all__ = ["ElicitationPrompt"]

_MODE_TEXTS = {
    "form": "asks for information",
    "url": "asks you to open a URL",
    "sampling": "asks to use your model",
}


class _NoAnswer(Exception):
    """Raised if the user gives no answer, because the input ended or the question was withdrawn."""


class ElicitationPrompt:
    """Asks the user an MCP server's questions on standard error, and reads answers from standard input."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, question: ElicitationRequest, /) -> ElicitationReply:
        with self._lock:
            if question.withdrawn.is_set():  # while another question was open
                return ElicitationReply("cancel")
            self._print_question(question)
            try:
                return _read_reply(question)
            except _NoAnswer:
                end_line()
                return ElicitationReply("cancel")

    def _print_question(self, question: ElicitationRequest) -> None:
        title = f"The MCP server {make_line_visible(question.server)} {_MODE_TEXTS[question.mode]}"
        lines = ["", click.style(title, bold=True), "", *_quote_lines(question.message)]
        if question.url:
            lines += [
                "",
                f"  {make_line_visible(question.url)}",
                f"  (at {make_line_visible(question.host)})",
            ]
        lines += [f"  warning: {make_line_visible(each)}" for each in question.warnings]
        if question.problem:
            lines.append(f"  your previous answer was not accepted: {make_line_visible(question.problem)}")
        click.echo("\n".join([*lines, ""]), err=True)


def _confirmation_question(question: ElicitationRequest) -> str:
    if question.mode == "form":
        names = ", ".join(make_line_visible(each.title or each.name) for each in question.fields)
        return f"Answer it? The server receives {names or 'your consent'}"
    return "Agree? You open the URL yourself" if question.mode == "url" else "Allow it?"


def _read_reply(question: ElicitationRequest) -> ElicitationReply:
    consent = _prompt_line(f"{_confirmation_question(question)} [y/N]: ", question)
    if consent.casefold() not in ("y", "yes"):
        return ElicitationReply("decline")
    if question.mode != "form":
        return ElicitationReply("accept")
    values = {each.name: _prompt_field(each, question) for each in question.fields}
    return ElicitationReply("accept", _drop_missing(values))


def _prompt_line(text: str, question: ElicitationRequest) -> str:
    """Print a prompt and return the line that the user types. Raises _NoAnswer if the user types none."""
    click.echo(text, nl=False, err=True)
    line = read_line(question.withdrawn)
    if line is None:
        raise _NoAnswer
    return line.strip()


def _prompt_field(each: FormField, question: ElicitationRequest) -> Any:
    """Ask for the value of one form field. Empty input means the field's default, or no value."""
    click.echo(f"  {make_line_visible(each.title or each.name)}{_describe_field(each)}", err=True)
    default = "" if each.default is None else _format_default(each.default)
    shown = f" [{make_line_visible(default)}]" if default else ""
    answer = _prompt_line(f"  {shown}> ", question) or default
    if answer == "" or (answer == default and each.default is not None):
        return each.default
    return each.parse_input(answer)


def _describe_field(each: FormField) -> str:
    parts = [make_visible(shorten_middle(each.description, 300))] if each.description else []
    if each.choices:
        parts.append("one of " + ", ".join(make_line_visible(choice.value) for choice in each.choices))
    if not each.required:
        parts.append("may be left empty")
    return f" ({'; '.join(parts)})" if parts else ""


def _format_default(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _drop_missing(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _quote_lines(text: str) -> list[str]:
    return [f"  │ {line}" for line in make_visible(shorten_middle(text, 4_000)).split("\n")]
