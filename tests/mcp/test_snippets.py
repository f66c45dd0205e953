"""Servers in text copied from a README."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.core.errors import ConfigError
from toolfold.mcp.importing.snippets import parse_snippet

ENTRY = {"command": "uvx", "args": ["mcp-server-git"]}
BARE = json.dumps(ENTRY)


def servers(text: str) -> Any:
    return parse_snippet(text, Path("-"), lambda words: "-".join(words))["mcpServers"]


@check_cases(
    "text",
    [
        f'{{"mcpServers": {{"git": {BARE}}}}}',
        f'{{"servers": {{"git": {BARE}}}, "inputs": []}}',
        f'{{"mcp": {{"servers": {{"git": {BARE}}}}}}}',
        f'{{"mcp": {{"git": {BARE}}}}}',
        f'{{"git": {BARE}}}',
        f'"git": {BARE}',
        f'"git": {BARE},\n',
        f'"mcpServers": {{"git": {BARE}}}',
        f'```json\n{{"mcpServers": {{"git": {BARE}}}}}\n```\n',
        f'\ufeff{{\n  // a comment\n  "mcpServers": {{"git": {BARE},}},\n}}',
        f'// in your settings\n"git": {BARE}',
    ],
)
def test_common_forms_of_json_server_snippets_in_readmes_are_parsed(text: str) -> None:
    assert servers(text) == {"git": ENTRY}


def test_unnamed_server_in_a_pasted_snippet_is_named_after_its_command_or_url() -> None:
    assert servers(BARE) == {"uvx-mcp-server-git": ENTRY}
    assert list(servers('{"url": "https://x.example"}')) == ["https://x.example"]
    assert list(servers('{"command": ["npx", "x"]}')) == ["npx-x"]


def test_server_with_the_name_servers_in_a_pasted_snippet_is_parsed_as_a_server() -> None:
    assert servers(f'{{"mcpServers": {{"servers": {BARE}}}}}') == {"servers": ENTRY}


@check_cases("text", ["", "{}", "[]", "3", '{"a": 1}', '"git": {', "hello", '{"a": {"b": 1}}'])
def test_pasted_snippet_without_servers_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        servers(text)


@given(st.one_of(st.text(max_size=60), st.text(alphabet='{}[]":,mcp \n', max_size=40)))
def test_arbitrary_text_pasted_as_a_snippet_returns_servers_or_raises_config_error(text: str) -> None:
    found: Any = {}
    with contextlib.suppress(ConfigError):
        found = servers(text)
    assert isinstance(found, dict)
