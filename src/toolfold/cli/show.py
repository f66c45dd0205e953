"""How the command line speaks: tables and plain words for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

NOT_FOUND = 4
SHORT = 120
"""The longest text, in characters, of a table where there is little room."""
_WIDE = 100  # columns of a terminal; below, a table of several texts is hard to read
_REDRAWN_SECONDS = 0.1
MAX_WORD_COLUMNS = 30
"""The longest word, in columns of a terminal, that a table keeps in one piece. Longer ones are folded."""
# What JSON leaves as it is, and a terminal may take for an order or show as nothing.
_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class NotFound(click.ClickException):
    """There is nothing of that name."""

    exit_code = NOT_FOUND


def out(text: str = "") -> None:
    """A line for people, on standard output."""
    from rich.console import Console

    Console(soft_wrap=True, highlight=False, emoji=False).print(text)


def note(text: str) -> None:
    """A line beside the answer, on standard error; above a spinner or progress bar, if one is shown."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    if not hasattr(sys.stderr, "rich_proxied_file"):
        console.print(text)
        return
    with console.capture() as captured:  # a console of its own would write over the live display
        console.print(text)
    sys.stderr.write(captured.get())


def warn(text: str) -> None:
    """A line on standard error about something that does not stop the work."""
    note(f"[yellow]warning:[/yellow] {plain(text)}")


def working(what: str) -> AbstractContextManager[Any]:
    """Shows, on standard error, that something takes a while; nothing where nobody looks."""
    from rich.console import Console

    return Console(stderr=True, emoji=False).status(what)


@contextmanager
def progress(what: str, *, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, told how much is done out of how much; nothing where nobody looks.

    It is drawn only when it is told something, never by a thread of its own: what runs meanwhile may be
    measured. And it leaves standard output alone, which may be a program's.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, emoji=False)
    if not (shown and console.is_terminal):
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
        if done == total or now - last >= _REDRAWN_SECONDS:
            last = now
            drawn.update(task, completed=done, total=total, refresh=True)

    with drawn:
        task = drawn.add_task(what, total=None)
        yield step


def as_json(value: Any) -> None:
    """One JSON document on standard output, and nothing else. It does nothing to a terminal either."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    click.echo(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    whole: str = "",
    ruled: bool = False,
) -> None:
    """A table that fits the terminal; numbers' columns start with `#`, and `whole` is never broken.

    `ruled` puts a line between rows, for cells of several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cells = [[str(cell) for cell in row] for row in rows]
    console = Console(highlight=False, emoji=False)
    widths = _column_widths(columns, cells, whole, console.width)
    drawn = Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
        show_lines=ruled,
    )
    for column, width in zip(columns, widths, strict=True):
        number = column.startswith("#")
        drawn.add_column(
            column.lstrip("#"),
            justify="right" if number else "left",
            overflow="fold",
            no_wrap=number or (bool(whole) and column == whole),
            width=width,
        )
    for row in cells:
        drawn.add_row(*(plain(cell) for cell in row))
    console.print(drawn)


def _column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], whole: str, terminal_width: int
) -> list[int | None]:
    """Return widths with which no word is broken. None leaves them to rich: all fits, or nothing does."""
    from rich.cells import cell_len

    natural, least = [], []
    for number, column in enumerate(columns):
        texts = [column.lstrip("#"), *(row[number] for row in rows if number < len(row))]
        natural.append(max(cell_len(line) for text in texts for line in text.splitlines() or [""]))
        is_fixed = column.startswith("#") or (bool(whole) and column == whole)
        longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
        least.append(natural[-1] if is_fixed else min(longest, MAX_WORD_COLUMNS))
    spare = terminal_width - (3 * len(columns) - 1) - sum(least)  # paddings, dividers and edges
    wanted = [most - few for most, few in zip(natural, least, strict=True)]
    if spare < 0 or sum(wanted) <= spare:
        return [None] * len(columns)
    widths: list[int | None] = [*least]
    for left, number in enumerate(sorted(range(len(columns)), key=lambda each: wanted[each])):
        given = min(wanted[number], spare // (len(columns) - left))  # short columns are served first
        widths[number] = least[number] + given
        spare -= given
    return widths


def is_narrow() -> bool:
    """Whether there is room for few columns only, and for short texts."""
    from rich.console import Console

    return Console().width < _WIDE


def counted(count: int, what: str) -> str:
    """`1 tool`, `2 tools`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def plain(text: str) -> str:
    """Foreign text that may stand among markup and does nothing to a terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else " " for char in text))


def listed(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more:,} more"
