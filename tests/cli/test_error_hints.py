"""The texts of errors say what to do next, and the removal of secrets leaves them as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolfold as package
from tests.cli.conftest import Toolfold
from toolfold.safety.redaction import Redaction


def list_error_texts() -> Iterator[tuple[str, str]]:
    """Yield place and text of each literal in a `raise` statement, with a name for every value in it."""
    root = Path(package.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for statement in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(statement, ast.Raise) or statement.exc is None:
                continue
            for node in ast.walk(statement.exc):
                if isinstance(node, ast.Call):
                    for value in (*node.args, *(each.value for each in node.keywords)):
                        yield f"{file.relative_to(root)}:{value.lineno}", read_literal(value)


def read_literal(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(each.value) if isinstance(each, ast.Constant) else "tallyhouse" for each in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_secret_redaction_leaves_every_error_message_in_the_source_code_unchanged() -> None:
    redact = Redaction(max_chars=20_000)
    texts = [(place, text) for place, text in list_error_texts() if " " in text]
    assert len(texts) > 300
    assert [(place, redact(text)) for place, text in texts if redact(text) != text] == []


def test_error_for_a_token_name_already_in_use_contains_the_command_that_revokes_the_token(
    toolfold: Toolfold,
) -> None:
    toolfold("token", "add", "laptop")
    assert "`toolfold token revoke laptop`" in toolfold("token", "add", "laptop").err


def test_errors_for_credentials_and_logins_of_a_user_say_how_to_configure_the_server(
    toolfold: Toolfold,
) -> None:
    toolfold("user", "add", "ann")
    toolfold("mcp", "add", "--no-test", "--yes", "git", "run")
    shared = toolfold("credentials", "set", "git", "TOKEN", "--user", "ann").err
    assert "give mcp.servers.git.credentials the value per-user" in shared
    assert "toolfold mcp list" in toolfold("credentials", "set", "other", "TOKEN", "--user", "ann").err
    assert "${user:NAME}" in toolfold("mcp", "login", "git", "--user", "ann").err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("user", "add", "ann"), "toolfold user enable"),
        (("user", "add", "carl", "--issuer", "https://login.example"), "claim `sub`"),
    ],
)
def test_error_for_adding_a_duplicate_user_or_an_issuer_without_a_subject_suggests_a_solution(
    toolfold: Toolfold, arguments: tuple[str, ...], hint: str
) -> None:
    toolfold("user", "add", "ann")
    done = toolfold(*arguments)
    assert done.code != 0
    assert hint in done.err
