"""Print to the terminal: tables and text for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

EXIT_NOT_FOUND = 4
MAX_SUMMARY_CHARS = 120
"""Maximum length of a summary in a list."""
_MIN_TEXT_COLUMNS = 20  # a narrower column of text is hard to read
_REDRAW_INTERVAL_S = 0.1
MAX_WORD_COLUMNS = 40
"""Longest word, in terminal columns, that a table does not break."""
# Characters that JSON does not escape, but that a terminal interprets or does not display.
_INVISIBLE_CHARS = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class NotFound(click.ClickException):
    """Error for a name that does not exist; the exit code is 4."""

    exit_code = EXIT_NOT_FOUND


def print_line(text: str = "") -> None:
    """Print text with rich markup to standard output; on a terminal, wrap it between words."""
    _print_wrapped(text)


def print_note(text: str) -> None:
    """Print text to standard error like `print_line`, above any spinner or progress bar."""
    _print_wrapped(text, stderr=True)


def _print_wrapped(text: str, *, stderr: bool = False) -> None:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, emoji=False)
    # A word longer than a line stays whole, so that a URL can be opened and a command be copied.
    options: dict[str, Any] = (
        {"overflow": "ignore", "crop": False} if console.is_terminal else {"soft_wrap": True}
    )
    if not (stderr and hasattr(sys.stderr, "rich_proxied_file")):
        console.print(text, **options)
        return
    with console.capture() as captured:  # a second console would overwrite the live display
        console.print(text, **options)
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
    """Print a table that fits the terminal; if the columns do not fit beside each other, print a list.

    A column name that starts with `#` marks a right-aligned number. The column named by `no_wrap` is never
    wrapped. `row_lines` draws a line between rows, for cells of several lines. Columns that are empty in
    all rows are left out.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cells = [[str(cell) for cell in row] for row in rows]
    used = [number for number in range(len(columns)) if not cells or any(row[number] for row in cells)]
    columns, cells = [columns[number] for number in used], [[row[number] for number in used] for row in cells]
    console = Console(highlight=False, emoji=False)
    widths = _column_widths(columns, cells, no_wrap, console.width)
    if widths is None:
        _print_records(title, columns, cells, no_wrap)
        return
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
) -> list[int] | None:
    """Return widths for the columns of a table, so that no word is broken; None if they do not fit."""
    from rich.cells import cell_len

    natural, least = [], []
    for number, column in enumerate(columns):
        texts = [column.lstrip("#"), *(row[number] for row in rows)]
        natural.append(max(cell_len(line) for text in texts for line in text.splitlines() or [""]))
        is_fixed = column.startswith("#") or (bool(whole) and column == whole)
        longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
        readable = max(min(longest, MAX_WORD_COLUMNS), min(natural[-1], _MIN_TEXT_COLUMNS))
        least.append(natural[-1] if is_fixed else readable)
    spare = terminal_width - (3 * len(columns) - 1) - sum(least)  # minus padding and column separators
    if spare < 0:
        return None
    widths = [*least]
    wanted = [most - few for most, few in zip(natural, least, strict=True)]
    for left, number in enumerate(sorted(range(len(columns)), key=lambda each: wanted[each])):
        given = min(wanted[number], spare // (len(columns) - left))  # narrow columns get their space first
        widths[number] += given
        spare -= given
    return widths


def _print_records(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> None:
    """Print the rows of a table below each other: the name of each, then its other cells, labelled."""
    texts = [number for number, column in enumerate(columns) if not column.startswith("#")]
    head = columns.index(name) if name in columns else next(iter(texts), 0)
    rest = [number for number in range(len(columns)) if number != head]
    if title:
        print_line(f"[italic]{escape_text(title)}[/italic]")
    for row in rows:
        print_line(f"[bold]{escape_text(row[head])}[/bold]")
        numbers = [f"{columns[at][1:]} {row[at]}" for at in rest if columns[at].startswith("#") and row[at]]
        labels = "" if len(texts) == 2 else "{}: "
        lines = [labels.format(columns[at]) + row[at] for at in rest if at in texts and row[at]]
        for line in [*lines, ", ".join(numbers)]:
            _print_indented(line.removeprefix(": "))


def _print_indented(text: str) -> None:
    from rich.console import Console

    width = max(Console().width, _MIN_TEXT_COLUMNS)
    for paragraph in text.splitlines():
        for line in textwrap.wrap(
            paragraph,
            width - 2,
            break_long_words=False,
            break_on_hyphens=False,
            initial_indent="  ",
            subsequent_indent="  ",
        ):
            print_line(escape_text(line))


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 tool`, `2 tools`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def escape_text(text: str) -> str:
    """Escape rich markup and replace control characters, so that untrusted text is safe to print."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else " " for char in text))
