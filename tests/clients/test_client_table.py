"""The table of tested clients in docs/gateway.md matches the tests here and the pinned versions."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from tests.clients import test_libraries, test_programs
from tests.clients.scenario import CHECKS_WITH_FORMS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CLIENT, TEST, ASKED = "client", "test", "approval asked"
Row = dict[str, str]


def read_table() -> list[Row]:
    """Return the rows of the table under "Tested clients", by column."""
    section = (
        (ROOT / "docs/gateway.md").read_text().partition("\n## Tested clients\n")[2].partition("\n## ")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def find_test_classes() -> list[str]:
    """Return every test class of this directory as `path::name`."""
    return [
        f"{file.relative_to(ROOT).as_posix()}::{node.name}"
        for file in sorted(HERE.glob("test_*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
    ]


def pinned_versions() -> dict[str, str]:
    """Return the installed version of each client by the name of its test class."""
    servers = ROOT / "scripts/test_servers"
    packages = json.loads((servers / "clients/package-lock.json").read_text())["packages"]
    node = {name.removeprefix("node_modules/"): entry.get("version", "") for name, entry in packages.items()}
    return {
        "TestClaudeCode": node["@anthropic-ai/claude-code"],
        "TestCodex": node["@openai/codex"],
        "TestGeminiCli": node["@google/gemini-cli"],
        "TestOpencode": node["opencode-ai"],
        "TestMcpInspector": node["@modelcontextprotocol/inspector"],
        "TestTypeScriptSdk": node["@modelcontextprotocol/client"],
        "TestPythonSdk": pinned_in(ROOT / "constraints.txt", "mcp"),
        "TestFastMcp": pinned_in(servers / "mcp/fastmcp.txt", "fastmcp"),
        "TestLangChain": pinned_in(servers / "mcp/libraries.txt", "langchain-mcp-adapters"),
        "TestPydanticAi": pinned_in(servers / "mcp/libraries.txt", "pydantic-ai-slim"),
        "TestOpenAiAgents": pinned_in(servers / "mcp/libraries.txt", "openai-agents"),
        "TestMcpUse": pinned_in(servers / "mcp/libraries.txt", "mcp-use"),
    }


def pinned_in(file: Path, package: str) -> str:
    """Return the version of a package in a file of pins."""
    found = re.search(rf"^{package}==([\w.]+)", file.read_text(), re.MULTILINE)
    assert found, f"{file} does not pin {package}"
    return found[1]


def class_name(row: Row) -> str:
    return row[TEST].strip("`").partition("::")[2]


def test_documented_client_table_has_exactly_one_row_for_each_client_test_class() -> None:
    assert sorted(row[TEST].strip("`") for row in read_table()) == sorted(find_test_classes())


def test_documented_client_table_has_columns_of_checks_and_no_empty_cells() -> None:
    rows = read_table()
    assert set(rows[0]) - {CLIENT, TEST} <= CHECKS_WITH_FORMS.keys()
    assert [row[CLIENT] for row in rows if not all(row.values())] == []


def test_documented_client_table_contains_the_client_versions_that_the_tests_install() -> None:
    versions = pinned_versions()
    wrong = [row[CLIENT] for row in read_table() if not row[CLIENT].endswith(f" {versions[class_name(row)]}")]
    assert wrong == []


def test_documented_client_table_marks_clients_that_cannot_show_approval_forms() -> None:
    programs = test_programs.SilentProgramTests.__subclasses__()
    libraries = [each for each in test_libraries.FrameworkTests.__subclasses__() if not each.supports_forms]
    silent = {each.__name__ for each in [*programs, *libraries]}
    assert {class_name(row) for row in read_table() if row[ASKED].startswith("cannot ")} == silent
