"""Terminal output: tables that break no word, and warnings above a spinner."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfold.cli import output

CONTROLS = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?\d+[hl]|(\r\n|\n|\r)")


def run_in_terminal(script: str) -> list[str]:
    """Run a script in a separate process and return the lines that its terminal shows."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    written = b""
    try:
        while block := os.read(screen, 4_096):
            written += block
    except OSError:  # the process has ended
        pass
    finally:
        process.wait(240)
        os.close(screen)
    return render_screen(written.decode())


def render_screen(text: str) -> list[str]:
    """Return the lines that a terminal shows for a text with the control sequences that rich uses."""
    lines, row, column, place = [""], 0, 0, 0
    for found in [*CONTROLS.finditer(text), None]:
        piece = text[place : found.start() if found else None]
        lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
        column += len(piece)
        if found is None:
            break
        place = found.end()
        if found[3]:
            column = 0
            row += found[3] != "\r"
            lines += [""] * (row + 1 - len(lines))
        elif found[2] == "A":
            row = max(0, row - int(found[1] or 1))
        elif found[2] == "K":
            lines[row] = ""
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("display", ["show_spinner('asking')", "progress_bar('asking')"])
def test_warning_printed_during_a_spinner_or_progress_bar_appears_on_a_line_above_it(display: str) -> None:
    lines = run_in_terminal(
        f"""
        import logging, sys, time
        from toolfold.cli.app import _StderrHandler
        from toolfold.cli.output import print_note, print_warning, progress_bar, show_spinner

        logging.basicConfig(handlers=[_StderrHandler()])
        with {display} as shown:
            if callable(shown):
                shown(1, 2)
            print_warning("the first thing")
            time.sleep(0.5)
            logging.getLogger("x").warning("the second thing")
            time.sleep(0.5)
            print_note("the third thing")
        print_note("done")
        """
    )
    assert lines == ["warning: the first thing", "WARNING:x:the second thing", "the third thing", "done"]


def test_table_in_a_narrow_terminal_is_printed_without_breaking_words(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long_words = "interoperability-of-tools administrative-authority"
    output.print_table(
        "title",
        ("name", "description", "reason", "#count"),
        [("git_push", "it is a text of short words " * 4, long_words, "12")],
        no_wrap="name",
    )
    printed = capfd.readouterr().out
    for word in (*long_words.split(), "git_push"):
        assert word in printed
    assert all(len(line) <= 60 for line in printed.splitlines())


@given(
    st.lists(st.lists(st.text(alphabet="abc de", max_size=60), min_size=3, max_size=3), max_size=4),
    st.integers(20, 200),
)
def test_table_column_widths_fit_the_terminal_and_the_longest_word_of_each_column(
    rows: list[list[str]], terminal_width: int
) -> None:
    widths = output._column_widths(("a", "b", "#c"), rows, "a", terminal_width)
    if widths is not None:
        assert sum(widths) + 8 <= terminal_width
        for row in rows:
            assert all(min(len(word), output.MAX_WORD_COLUMNS) <= widths[1] for word in row[1].split())
