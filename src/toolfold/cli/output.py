"""Print to the terminal: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

EXIT_NOT_FOUND = 4
MAX_SUMMARY_CHARS = 120
"""Maximum length of a summary in a table on a narrow terminal."""
_MIN_WIDE_COLUMNS = 100  # a narrower terminal has no room for a table with several text columns
_REDRAW_INTERVAL_S = 0.1
MAX_WORD_COLUMNS = 30
"""Longest word, in terminal columns, that a table does not break."""
# Characters that JSON does not escape, but that a terminal interprets or does not display.
_INVISIBLE_CHARS = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class NotFound(click.ClickException):
    """Error for a name that does not exist; the exit code is 4."""

    exit_code = EXIT_NOT_FOUND


def print_line(text: str = "") -> None:
    """Print a line with rich markup to standard output."""
    from rich.console import Console

    Console(soft_wrap=True, highlight=False, emoji=False).print(text)


def print_note(text: str) -> None:
    """Print a line to standard error, above any spinner or progress bar."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    if not hasattr(sys.stderr, "rich_proxied_file"):
        console.print(text)
        return
    with console.capture() as captured:  # a second console would overwrite the live display
        console.print(text)
    sys.stderr.write(captured.get())


def print_warning(text: str) -> None:
    """Print a warning to standard error."""
    print_note(f"[yellow]warning:[/yellow] {escape_text(text)}")


def show_spinner(message: str) -> AbstractContextManager[Any]:
    """Show a spinner on standard error during a `with` block, if there is a terminal."""
    from rich.console import Console

    return Console(stderr=True, emoji=False).status(message)


@contextmanager
def progress_bar(description: str, *, enabled: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error; yield a function that updates it with steps done and total.

    It is redrawn only when that function is called, not by a background thread, because the work in progress
    may be timed. Prints nothing without a terminal, and leaves standard output untouched.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, emoji=False)
    if not (enabled and console.is_terminal):
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    drawn = Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=True,
    )
    last = 0.0

    def step(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= _REDRAW_INTERVAL_S:
            last = now
            drawn.update(task, completed=done, total=total, refresh=True)

    with drawn:
        task = drawn.add_task(description, total=None)
        yield step


def print_json(value: Any) -> None:
    """Print one JSON document to standard output, with invisible and control characters escaped."""
    click.echo(_escape_invisible(json.dumps(value, ensure_ascii=False, indent=2, default=str)))


def format_json_line(value: Any) -> str:
    """Return a JSON document as one line, with invisible and control characters escaped."""
    return _escape_invisible(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


def _escape_invisible(text: str) -> str:
    return _INVISIBLE_CHARS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    no_wrap: str = "",
    row_lines: bool = False,
) -> None:
    """Print a table that fits the terminal.

    A column name that starts with `#` marks a right-aligned number. The column named by `no_wrap` is never
    wrapped. `row_lines` draws a line between rows, for cells of several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cells = [[str(cell) for cell in row] for row in rows]
    console = Console(highlight=False, emoji=False)
    widths = _column_widths(columns, cells, no_wrap, console.width)
    drawn = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
        show_lines=row_lines,
    )
    for column, width in zip(columns, widths, strict=True):
        number = column.startswith("#")
        drawn.add_column(
            column.lstrip("#"),
            justify="right" if number else "left",
            overflow="fold",
            no_wrap=number or (bool(no_wrap) and column == no_wrap),
            width=width,
        )
    for row in cells:
        drawn.add_row(*(escape_text(cell) for cell in row))
    console.print(drawn)


def _column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], whole: str, terminal_width: int
) -> list[int | None]:
    """Return widths for the columns of a table, so that no word is broken.

    A width is None if rich should choose it: either everything fits, or nothing does.
    """
    from rich.cells import cell_len

    natural, least = [], []
    for number, column in enumerate(columns):
        texts = [column.lstrip("#"), *(row[number] for row in rows if number < len(row))]
        natural.append(max(cell_len(line) for text in texts for line in text.splitlines() or [""]))
        is_fixed = column.startswith("#") or (bool(whole) and column == whole)
        longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
        least.append(natural[-1] if is_fixed else min(longest, MAX_WORD_COLUMNS))
    spare = terminal_width - (3 * len(columns) - 1) - sum(least)  # minus padding and column separators
    wanted = [most - few for most, few in zip(natural, least, strict=True)]
    if spare < 0 or sum(wanted) <= spare:
        return [None] * len(columns)
    widths: list[int | None] = [*least]
    for left, number in enumerate(sorted(range(len(columns)), key=lambda each: wanted[each])):
        given = min(wanted[number], spare // (len(columns) - left))  # narrow columns get their space first
        widths[number] = least[number] + given
        spare -= given
    return widths


def is_narrow() -> bool:
    """Return True if the terminal is too narrow for tables with many columns."""
    from rich.console import Console

    return Console().width < _MIN_WIDE_COLUMNS


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tool`, `2 tools`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def escape_text(text: str) -> str:
    """Escape rich markup and replace control characters, so that untrusted text is safe to print."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else " " for char in text))
