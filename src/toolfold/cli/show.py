"""How the command line speaks: tables and plain words for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click

NOT_FOUND = 4


class NotFound(click.ClickException):
    """There is nothing of that name."""

    exit_code = NOT_FOUND


def out(text: str = "") -> None:
    """A line for people, on standard output."""
    from rich.console import Console

    Console(soft_wrap=True, highlight=False).print(text)


def note(text: str) -> None:
    """A line beside the answer, on standard error."""
    from rich.console import Console

    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


def working(what: str) -> AbstractContextManager[Any]:
    """Shows, on standard error, that something takes a while; nothing where nobody looks."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def as_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: str = "") -> None:
    """A table that fits the terminal; numbers' columns start with `#`, and `whole` is never broken."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
    )
    for column in columns:
        number = column.startswith("#")
        drawn.add_column(
            column.lstrip("#"),
            justify="right" if number else "left",
            overflow="fold",
            no_wrap=number or column == whole,
        )
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    Console(highlight=False).print(drawn)


def counted(count: int, what: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def plain(text: str) -> str:
    """Foreign text that may stand among markup."""
    from rich.markup import escape

    return escape(text)
