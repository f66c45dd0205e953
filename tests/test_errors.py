"""Every exception class is in the documented class tree and has a message with advice."""

from __future__ import annotations

import inspect
import re

import toolfold.core.errors as errors
from tests.cases import check_cases
from toolfold.core.errors import (
    CallError,
    ConfigError,
    NameTaken,
    NeedsAgent,
    OutOfScope,
    RegistryError,
    ReservedName,
    ToolfoldError,
    UnknownToolset,
    closest_names,
    error_message,
    shorten,
)


def parse_tree() -> dict[str, str]:
    """Return the parent of each class, as drawn in the module docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)", line):
            path[len(match["branch"]) // 4 :] = [match["name"]]
            parents[match["name"]] = path[-2] if len(path) > 1 else "Exception"
    return parents


def test_exception_tree_in_the_errors_module_docstring_matches_the_classes() -> None:
    classes = {
        name: kind.__mro__[1].__name__
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert parse_tree() == classes


@check_cases(
    ("error", "said_by_it"),
    [
        (ReservedName("tool_call"), "'tool_call' is reserved for the runtime's own bridge tools."),
        (NameTaken("x", "web"), "'x' is already registered by toolset 'web'."),
        (UnknownToolset("wbe", ["web"]), "there is no toolset 'wbe'. Did you mean web?"),
        (OutOfScope("x"), "'x' is not available in this session. Call one of the tools you were given."),
        (OutOfScope("x", ["y", "z"]), "'x' is not available in this session. Did you mean y, z?"),
        (NeedsAgent("todo"), "'todo' is run by the agent itself"),
    ],
)
def test_message_of_each_error_class_names_the_tool_or_toolset_and_the_problem(
    error: ToolfoldError, said_by_it: str
) -> None:
    assert str(error).startswith(said_by_it)


def test_very_long_tool_name_is_truncated_in_an_error_message() -> None:
    assert len(str(OutOfScope("x" * 1_000_000))) < 400


def test_config_error_message_contains_the_file_line_and_hint() -> None:
    error = ConfigError("a.b is not a setting", key="a.b", file="t.yaml", line=7, hint="did you mean a.c?")
    assert str(error) == "a.b is not a setting (t.yaml, line 7)\n  did you mean a.c?"
    assert (error.key, error.file, error.line, error.hint) == ("a.b", "t.yaml", 7, "did you mean a.c?")


def test_config_error_message_without_file_and_line_contains_only_the_problem() -> None:
    assert str(ConfigError("no")) == "no"


def test_keyword_arguments_of_call_error_become_its_details() -> None:
    assert CallError("no", parameters={"a": 1}).details == {"parameters": {"a": 1}}


def test_rejected_tool_registrations_raise_registry_errors_that_are_not_call_errors() -> None:
    for error in (ReservedName("x"), NameTaken("x", "y"), errors.InvalidTool("x")):
        assert isinstance(error, RegistryError)
        assert not isinstance(error, CallError)


def test_closest_names_finds_read_file_for_a_misspelling_with_swapped_letters() -> None:
    known = ["read_file", "write_file", "web_search", "browser_navigate"]
    assert closest_names("raed_file", known, count=1) == ["read_file"]


def test_closest_names_returns_nothing_for_a_completely_different_name() -> None:
    assert closest_names("zzz", ["read_file", "web_search"]) == []
    assert closest_names("x", []) == []


def test_closest_names_finds_the_correct_name_among_ten_thousand_names() -> None:
    known = [f"service_{number}_action" for number in range(10_000)] + ["create_issue"]
    assert closest_names("create_isue", known, count=1) == ["create_issue"]


def test_closest_names_compares_only_the_beginning_of_a_very_long_name() -> None:
    assert closest_names("a" * 80 + "b" * 1_000_000, ["a" * 80, "b" * 80]) == ["a" * 80]


def test_shorten_truncates_text_above_the_limit_and_adds_an_ellipsis() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "abc…"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_exception_whose_str_raises_is_reported_without_a_message() -> None:
    assert error_message(UnprintableError()) == "(no message)"
    assert error_message(ValueError("words")) == "words"
