"""Run the commands of a documentation page and compare what they print with the page.

Of a page, two kinds of code blocks are used, in order:

* A block with a title, as in ```` ```python title="agent.py" ````, is written to this file.
* A `console` block has commands after `$ ` and below each command its output. All commands of a page run in
  one shell, so that variables and background processes stay. In the output, `...` stands for any text in a
  line, and a line with only `...` for any lines. A command without output prints nothing, and must succeed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([\w.]+)"')
END_MARK = "=== end of command"
ELLIPSIS = "..."


@dataclass(frozen=True)
class Command:
    """A command of a page with the output that the page shows."""

    text: str
    output: str


def find_files(text: str) -> dict[str, str]:
    """Return the files of a page, by name."""
    return {
        title[1]: block["text"] for block in BLOCK.finditer(text) if (title := TITLE.search(block["info"]))
    }


def find_commands(text: str) -> list[Command]:
    """Return the commands of a page."""
    blocks = (block["text"] for block in BLOCK.finditer(text) if block["info"].strip() == "console")
    return [command for block in blocks for command in split_block(block)]


def split_block(block: str) -> Iterator[Command]:
    """Yield the commands of a `console` block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Command(command, output.strip("\n"))


def run_commands(commands: list[Command], directory: Path, env: Mapping[str, str]) -> list[tuple[str, int]]:
    """Run commands in one shell, and return the output and the exit status of each."""
    script = "".join(f'{each.text}\necho "{END_MARK} $?"\n' for each in commands)
    done = subprocess.run(
        ["bash", "-c", f"trap 'kill $(jobs -p); wait' EXIT\n{script}"],
        cwd=directory,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=270,
        check=False,
    )
    parts = re.split(rf"^{END_MARK} (\d+)\n", done.stdout, flags=re.MULTILINE)
    return [(output, int(status)) for output, status in zip(parts[::2], parts[1::2], strict=False)]


def compare_output(command: Command, output: str, status: int) -> str | None:
    """Return what is wrong with the output of a command, or None."""
    shown = f"$ {command.text}\n{output}"
    if not command.output:
        return (
            None
            if status == 0 and not output.strip()
            else f"unexpected output, exit status {status}:\n{shown}"
        )
    if compile_pattern(command.output).fullmatch(strip_lines(output)):
        return None
    return f"the page says:\n{command.output}\nbut exit status is {status}:\n{shown}"


def compile_pattern(expected: str) -> re.Pattern[str]:
    """Return a pattern for the output that a page shows."""
    lines = []
    for line in strip_lines(expected).splitlines():
        if line == ELLIPSIS:
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append(re.escape(line).replace(re.escape(ELLIPSIS), r"[^\n]*?") + r"\n")
    return re.compile("".join(lines))


def strip_lines(text: str) -> str:
    """Return the text without empty lines and spaces at the ends of lines, with a newline at its end."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())
