"""Ask the user at a terminal what an MCP server requests: form fields, a URL to visit, use of the model.

A server's text may imitate another source, so its name is printed first and deceptive characters are escaped.
Nothing is opened or sent without consent; no answer means no.
"""

from __future__ import annotations

import threading
from typing import Any

import click

from toolfold.approval.safe_text import make_line_visible, make_visible, shorten_middle
from toolfold.sources.mcp.elicitation_requests import ElicitationReply, ElicitationRequest, FormField

__all__ = ["ElicitationPrompt"]

_MODE_TEXTS = {
    "form": "asks for information",
    "url": "asks you to open a URL",
    "sampling": "asks to use your model",
}


class ElicitationPrompt:
    """Asks a server's question on standard error and reads standard input, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, question: ElicitationRequest, /) -> ElicitationReply:
        with self._lock:
            if question.withdrawn.is_set():  # while another question was open
                return ElicitationReply("cancel")
            self._print_question(question)
            if not click.confirm(_confirmation_question(question), default=False, err=True):
                return ElicitationReply("decline")
            if question.mode != "form":
                return ElicitationReply("accept")
            return ElicitationReply(
                "accept", _drop_missing({each.name: _prompt_field(each) for each in question.fields})
            )

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


def _prompt_field(each: FormField) -> Any:
    """Ask the user for one form field; empty input means its default, or no value."""
    click.echo(f"  {make_line_visible(each.title or each.name)}{_describe_field(each)}", err=True)
    default = "" if each.default is None else _format_default(each.default)
    answer = click.prompt("  ", default=default, err=True, prompt_suffix="> ", show_default=bool(default))
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
