"""Record `docs/chat.svg`, an image in `docs/chat.md`: the real chat with the demo's scripted model.

Starts `toolfold chat --demo` in a pseudo-terminal, types messages and answers, and draws the screen.
`--check` compares what the image shows with a new recording, numbers aside, and fails if they differ.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.cli.terminal_driver import CTRL_D, Cell, Terminal  # noqa: E402

from toolfold.cli.demo_conversation import CLEAN_UP, PARCEL  # noqa: E402

PICTURE = ROOT / "docs" / "chat.svg"
COLUMNS, ROWS = 104, 60
COLOURS = {"default": None, "brown": "yellow"}
# What differs between two recordings of the same program, and what is drawn instead.
REPLACED = (
    (re.compile(r"toolfold-demo-\w+"), "toolfold-demo"),
    (re.compile(r"session [0-9a-f]{16}"), "session 170f6440d4b0b5d8"),
    (re.compile(r"\d+\.\d+ s\b"), "0.1 s"),
)
NUMBER = re.compile(r"\d[\d,.]*")


def record() -> list[list[Cell]]:
    """Return the lines of the terminal after a conversation."""
    toolfold = str(Path(sys.executable).with_name("toolfold"))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    with tempfile.TemporaryDirectory() as home:
        environment = {**kept, "TOOLFOLD_HOME": home, "COLORTERM": "truecolor"}
        with Terminal(
            [toolfold, "chat", "--demo"], env=environment, cwd=Path(home), columns=COLUMNS, rows=ROWS
        ) as chat:
            chat.wait_for_prompt()
            chat.send(PARCEL)
            chat.wait_for("tokens in,")
            chat.wait_for_prompt()
            chat.send(CLEAN_UP)
            chat.wait_for("Your answer >")
            chat.send("y")
            chat.wait_for("tokens in,", count=2)
            chat.wait_for_prompt()
            chat.send("/cost")
            chat.wait_for("Sending fewer tools saved")
            chat.wait_for_prompt()
            cells = chat.cells
            chat.type(CTRL_D)
            chat.wait_for_exit()
    return cells


def draw_line(cells: list[Cell]) -> Text:
    """Return a line as styled text, with placeholders for parts that differ between recordings."""
    text = "".join(cell.data for cell in cells)
    styles = [read_style(cell) for cell in cells for _ in cell.data]
    for pattern, replacement in REPLACED:
        for found in reversed(list(pattern.finditer(text))):
            text = text[: found.start()] + replacement + text[found.end() :]
            styles[found.start() : found.end()] = [styles[found.start()]] * len(replacement)
    line = Text()
    styled = zip(text, styles, strict=True)
    for style, part in itertools.groupby(styled, key=lambda pair: pair[1]):
        line.append("".join(character for character, _ in part), style)
    line.rstrip()
    return line


def read_style(cell: Cell) -> Style:
    """Return the text style of one terminal cell."""
    foreground, background = (_read_colour(name) for name in (cell.fg, cell.bg))
    return Style(
        color=foreground,
        bgcolor=background,
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def _read_colour(name: str) -> str | None:
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return COLOURS.get(name, name.replace("bright", "bright_"))


def draw_picture(lines: list[Text]) -> str:
    """Return the lines as an SVG image that loads nothing from the network."""
    while lines and not lines[-1].plain.strip("› "):
        lines.pop()
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in (Text("$ toolfold chat --demo"), *lines):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="toolfold chat --demo", unique_id="chat")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def read_words(svg: str) -> list[str]:
    """Return the text lines of an SVG image, with numbers and spaces normalized for a comparison."""
    lines: dict[float, str] = {}
    for found in re.finditer(r'<text[^>]*?\by="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines[float(found[1])] = lines.get(float(found[1]), "") + found[2].replace("&#160;", " ")
    # Where a call is cut depends on the width of its duration.
    shown = (re.sub(r"\(.*…", "(…", NUMBER.sub("0", line)) for _, line in sorted(lines.items()))
    return [" ".join(line.split()) for line in shown]


def main() -> None:
    svg = draw_picture([draw_line(line) for line in record()])
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(svg, encoding="utf-8")
        print(f"written: {PICTURE.relative_to(ROOT)}, {len(svg):,} bytes")
        return
    old, new = read_words(PICTURE.read_text(encoding="utf-8")), read_words(svg)
    for number, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            sys.exit(
                f"docs/chat.svg is out of date at line {number}:\n- {before}\n+ {after}\n"
                "record it again: scripts/record_chat.py"
            )
    if len(old) != len(new):
        sys.exit(f"docs/chat.svg is out of date: it has {len(old)} lines, not {len(new)}")
    print("docs/chat.svg is up to date")


if __name__ == "__main__":
    main()
