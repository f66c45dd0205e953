"""Commands and options in the documentation exist, and the commands of the README work as written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from tests.console import BLOCK
from tests.test_tutorials import follow_page
from toolfold.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SHELL_OPERATORS = frozenset({"|", ">", "<", "&", "&&", ";", "2>&1", ">>"})


def find_toolfold_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every `toolfold` command in the `sh`, `bash` and `console` blocks of a page."""
    for block in BLOCK.finditer(text):
        kind = block["info"].strip()
        lines = block["text"].splitlines() if kind in ("sh", "bash", "console") else []
        for line in lines:
            if kind != "console" or line.startswith("$ "):
                yield from split_line(line.removeprefix("$ "))


def split_line(line: str) -> Iterator[list[str]]:
    """Yield the words of each `toolfold` command of a line, without the word `toolfold`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # the first line of a command with several lines
        return
    command: list[str] | None = None
    for word in [*words, ";"]:
        if word in SHELL_OPERATORS and command is not None:
            yield command
            command = None
        elif command is not None:
            command.append(word)
        elif word == "toolfold":
            command = []


def find_mistake(words: Sequence[str]) -> str | None:
    """Return which command or option of a command line does not exist, or None."""
    command: click.Command = app
    context = click.Context(app)
    for index, word in enumerate(words):
        if word == "--":
            return None
        if word.startswith("--") and re.fullmatch(r"--[a-z-]+", word.partition("=")[0]):
            if word.partition("=")[0] not in list_options(command, context):
                # `mcp add` is followed by the command line of another program.
                return None if command.name == "add" else f"there is no option {word}"
        elif isinstance(command, click.Group) and words[index - 1 : index] != ["--set"]:
            found = command.get_command(context, word)
            if found is None:
                return f"there is no command {word}"
            command = found
        elif not command.allow_interspersed_args:
            return None  # everything after the first argument belongs to another program
    return None


def list_options(command: click.Command, context: click.Context) -> set[str]:
    """Return the options of a command."""
    parameters = command.get_params(context)
    return {name for each in parameters for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_toolfold_command_and_option_in_the_documentation_exists(page: Path) -> None:
    commands = find_toolfold_commands(page.read_text(encoding="utf-8"))
    found = [(words, mistake) for words in commands if (mistake := find_mistake(words))]
    assert found == []


def test_documented_command_checker_reports_unknown_commands_and_options() -> None:
    blocks = ["sh\ntoolfold mcp lst --json   # a comment", "bash\ntoolfold serve --prot 1 | cat --number"]
    text = "".join(f"```{block}\n```\n" for block in blocks)
    mistakes = [find_mistake(words) for words in find_toolfold_commands(text)]
    assert mistakes == ["there is no command lst", "there is no option --prot"]


def test_commands_in_the_readme_print_the_documented_output(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n\n".join(follow_page(text, tmp_path)) == ""
