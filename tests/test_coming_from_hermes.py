"""The migration table from Hermes: the Toolfold names in it exist, and no Hermes name is missing."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from toolfold.cli.app import app
from toolfold.config.settings import Settings
from toolfold.core.types import BRIDGE_NAMES
from toolfold.selection.turn import Bridge, BridgeAnswers

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "coming-from-hermes.md"
SEEDS = ROOT.parent / "shared" / "seeds"
SPAN = re.compile(r"`([^`]+)`")
NOTHING = "—"


@dataclass(frozen=True)
class Row:
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    what: str
    difference: str


def rows() -> list[Row]:
    """Return the rows of all tables without their headers."""
    found = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("Hermes", "---"):
            theirs, ours, what, difference = cells
            found.append(Row(tuple(SPAN.findall(theirs)), tuple(SPAN.findall(ours)), what, difference))
    return found


def import_object(path: str) -> Any:
    """Return the object of a dotted path whose first parts are a module."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{path} cannot be imported")


def find_setting(key: str) -> Any:
    """Return the field of the configuration for a dotted key."""
    model: Any = Settings
    field: Any = None
    for name in key.split("."):
        field = model.model_fields[name]
        kind = field.annotation
        model = kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else None
    return field


def find_command(words: str) -> click.Command:
    """Return the CLI command of a command line without its options."""
    found: click.Command = app
    for word in words.split()[1:]:
        assert isinstance(found, click.Group)
        subcommand = found.get_command(click.Context(found), word)
        assert subcommand is not None, words
        found = subcommand
    return found


def rows_of_kind(what: str) -> Iterator[str]:
    return (name for row in rows() if row.what == what for name in row.ours)


KINDS = {"python", "parameter", "setting", "value", "command", "tool", "toolset", "module", "hook", "file"}
ABSENT = {"not yet", "none"}


def test_every_row_of_the_migration_table_names_the_old_and_new_name_and_their_kind() -> None:
    assert len(rows()) > 80
    for row in rows():
        assert row.theirs, row
        assert row.what in KINDS | ABSENT, row
        assert bool(row.ours) is (row.what in KINDS), row
    names = [name for row in rows() for name in row.theirs]
    assert sorted(names) == sorted(set(names)), "a name stands in two rows"


@check_cases("path", sorted(set(rows_of_kind("python"))))
def test_every_python_name_in_the_migration_table_can_be_imported(path: str) -> None:
    assert import_object(path) is not None


@check_cases("name", sorted(set(rows_of_kind("parameter"))))
def test_every_function_parameter_in_the_migration_table_exists_in_toolfold(name: str) -> None:
    function, _, parameter = name.rstrip(")").partition("(")
    assert parameter in inspect.signature(import_object(function)).parameters


@check_cases("key", sorted(set(rows_of_kind("setting"))))
def test_every_setting_named_in_the_migration_table_exists_in_toolfold(key: str) -> None:
    assert find_setting(key) is not None


@pytest.mark.parametrize("name", sorted(set(rows_of_kind("value")) - {"limit"}))
def test_every_setting_value_in_the_migration_table_can_be_configured(
    name: str, open_test_runtime: RuntimeOpener
) -> None:
    key, _, value = name.partition(": ")
    find_setting(key)
    config = open_test_runtime({key: value} if not key.startswith("terminal") else {}).config
    if key.startswith("terminal"):  # opening one of these may need a service
        config = config.model_copy(update={"terminal": config.terminal.model_validate({"backend": value})})
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_tool_search_has_the_arguments_that_the_migration_table_lists() -> None:
    search = next(
        tool for tool in Bridge(BridgeAnswers.__new__(BridgeAnswers)).tools if tool.name == "tool_search"
    )
    assert {"query", "queries", "limit"} <= search.parameters["properties"].keys()


@check_cases("words", sorted(set(rows_of_kind("command"))))
def test_every_command_named_in_the_migration_table_exists_in_toolfold(words: str) -> None:
    assert find_command(words).callback is not None


def test_every_tool_toolset_and_hook_named_in_the_migration_table_exists_in_toolfold(
    open_test_runtime: RuntimeOpener,
) -> None:
    runtime = open_test_runtime()
    registered = {*runtime.registry.snapshot(), *BRIDGE_NAMES}
    assert set(rows_of_kind("tool")) <= registered
    for name in rows_of_kind("toolset"):
        runtime.resolve_toolset(name)
    for name in rows_of_kind("hook"):
        runtime.hooks.add(name, lambda *_: None)


def test_names_listed_as_absent_in_the_migration_table_do_not_exist_in_toolfold(
    open_test_runtime: RuntimeOpener,
) -> None:
    registered = set(open_test_runtime().registry.snapshot())
    absent = {name for row in rows() if row.what in ABSENT for name in row.theirs}
    assert not registered & absent
    families = tuple(name.rstrip("*") for name in absent if name.endswith("*"))
    assert not [name for name in registered if name.startswith(families)]


@check_cases("path", sorted(set(rows_of_kind("module"))))
def test_every_file_named_in_the_migration_table_exists_in_the_repository(path: str) -> None:
    assert (ROOT / path).is_file()


def test_migration_table_contains_the_actual_path_of_the_user_settings_file(
    open_test_runtime: RuntimeOpener,
) -> None:
    assert open_test_runtime().config.paths.user_file.name in set(rows_of_kind("file"))


# -- the Hermes pages ---------------------------------------------------------------------------------

IDENTIFIER = re.compile(r"(?<![\w./])[A-Za-z_]\w*(?:[./][\w*]+)*(?:\(\))?")
PARAMETER = re.compile(r"^(\w+)=", re.MULTILINE)
# Words of the pages that look like names but are prose, or two words joined by the text extraction.
PROSE = {
    *("Terminal/runtime", "True/False", "enabled/disabled", "importing/discovering", "memory/todo/session"),
    *(
        "planning/task",
        "registry/dispatch",
        "spinner/progress",
        "try/except",
        "user/project/pip",
        "e.g",
        "OpenAI",
    ),
    "detectionDANGEROUS_PATTERNS",
}
RUN_TOGETHER = {
    "toolshermes_cli.plugins.discover_plugins()": "hermes_cli.plugins.discover_plugins()",
    "toolstools.mcp_tool.discover_mcp_tools()": "tools.mcp_tool.discover_mcp_tools()",
}


def read_page(title: str) -> str:
    if not SEEDS.is_dir():
        pytest.skip("the pages are not beside the project (../shared/seeds)")
    found = [text for text in (file.read_text() for file in sorted(SEEDS.glob("*.txt"))) if title in text]
    assert found, title
    return found[0]


def find_unmapped(names: set[str]) -> set[str]:
    return names - {name for row in rows() for name in row.theirs}


def looks_like_a_name(word: str) -> bool:
    """Return True if a text looks like a name: with an underscore, parentheses, a path or camel case."""
    joined = re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", word)
    dotted = re.fullmatch(r"[a-z]+\.[a-z]+", word)
    return bool("_" in word or word.endswith(("()", ".py")) or "/" in word or joined or dotted)


def test_every_name_on_the_hermes_tool_search_page_is_in_the_migration_table() -> None:
    text = read_page("title: Tool Search\nsidebar_position")
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    names = set(re.findall(r"`([^`\n]+)`", prose))
    names |= set(
        re.findall(r"^\s*(\w+):", "\n".join(each for each in blocks if "tools:" in each), re.MULTILINE)
    )
    names |= set(re.findall(r"\b([a-z_]+)\(", "\n".join(blocks)))
    assert len(names) > 30
    assert find_unmapped(names) == set()


def test_every_name_on_the_hermes_tools_runtime_page_is_in_the_migration_table() -> None:
    text = read_page("Tools Runtime\n\nHermes tools are self-registering")
    names = {word for word in IDENTIFIER.findall(text) if looks_like_a_name(word)} - PROSE
    names = {RUN_TOGETHER.get(name, name) for name in names}
    names |= set(PARAMETER.findall(text)) | set(re.findall(r"hermes-\w+", text))
    listed = text.split("The terminal system supports multiple backends:")[1].split("It also supports:")[0]
    names |= set(re.findall(r"•\s*(\w+)", listed))
    assert len(names) > 80
    assert find_unmapped(names) == set()
