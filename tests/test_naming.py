"""Every tool gets a name that providers accept, and is found by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.thorough import try_examples
from toolfold.core.authoring import build_tool
from toolfold.core.errors import InvalidTool, ReservedName
from toolfold.core.naming import is_accepted, is_reserved, matches_pattern, short_names
from toolfold.core.registry import Registry
from toolfold.core.types import BRIDGE_NAMES, Tool

ACCEPTED_BY_PROVIDERS = re.compile(r"\A[A-Za-z0-9_-]{1,64}\Z")

# Every code point, also lone surrogates, which servers may escape in JSON.
any_text = st.text(st.characters(exclude_categories=()), max_size=120)
accepted_names = st.from_regex(ACCEPTED_BY_PROVIDERS, fullmatch=True)
modest = try_examples(100)


def tool(name: str, toolset: str = "test") -> Tool:
    return build_tool(name=name, toolset=toolset, schema={}, handler=lambda args: name)


def first_short_name(name: str) -> str:
    return next(short_names(name))


@modest
@given(any_text)
@example("")
@example("\ud800")
@example("a" * 100_000)
@example("日本語のツール")
@example("ﷺ" * 200)
def test_short_names_generated_from_arbitrary_text_match_the_pattern_of_model_providers(name: str) -> None:
    forms = list(short_names(name))
    assert all(ACCEPTED_BY_PROVIDERS.match(form) and is_accepted(form) for form in forms)
    assert len(set(forms)) == len(forms) > 1


@modest
@given(any_text, any_text)
@example("a.b", "a/b")
@example("a.b", "a_b")
@example("é", unicodedata.normalize("NFD", "é"))
@example("a.", "a")
@example("x" * 200 + "1" + "y" * 200, "x" * 200 + "2" + "y" * 200)
@example("\ud800", "\udfff")
@example("ToolA.x", "toola.x")
def test_different_tool_names_get_different_short_names(one: str, other: str) -> None:
    assume(one != other)
    assert first_short_name(one) != first_short_name(other)


def test_short_name_of_a_tool_is_the_same_in_every_process() -> None:
    names = ["a.b", "日本語", "x" * 300, "Größe/messen", "io.github.owner/server: do it"]
    program = (
        "import json, sys; from toolfold.core.naming import short_names;"
        "print(json.dumps([next(short_names(name)) for name in json.loads(sys.argv[1])]))"
    )
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", program, json.dumps(names)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert json.loads(told.stdout) == [first_short_name(name) for name in names]


def test_short_names_are_the_same_as_in_earlier_releases() -> None:
    assert first_short_name("a.b") == "a_b_fzztnxeo"
    assert first_short_name("mcp.example.server/" + "x" * 80 + "/delete_everything") == (
        "mcp_example_server_xxxxxxxxxxxxxxxxxx_delete_everything_744y7d7o"
    )


def test_short_name_of_a_tool_contains_words_of_its_original_name() -> None:
    assert first_short_name("mcp.github/create-issue").startswith("mcp_github_create-issue_")
    assert first_short_name("Café.ouvrir").startswith("Cafe_ouvrir_")


def test_short_name_of_a_long_tool_name_keeps_its_start_and_end() -> None:
    form = first_short_name("mcp_payments_" + "very_" * 30 + "refund_order")
    assert form.startswith("mcp_payments_")
    assert "refund_order_" in form
    assert len(form) == 64


@modest
@given(accepted_names)
def test_tool_name_accepted_by_model_providers_is_registered_unchanged(name: str) -> None:
    assume(not is_reserved(name))
    registered = Registry().add(tool(name))
    assert (registered.name, registered.original_name) == (name, "")


@check_cases("name", ["", "a" * 65, "a.b", "a b", "a\n", "é", "a/b", "٣", "a\x00"])
def test_tool_name_that_is_empty_too_long_or_has_invalid_characters_is_not_accepted(name: str) -> None:
    assert not is_accepted(name)


def test_tool_name_of_sixty_four_characters_is_accepted() -> None:
    assert is_accepted("aZ09_-" + "x" * 58)


@modest
@given(st.lists(st.one_of(any_text, accepted_names), unique=True, max_size=12))
def test_registered_tool_is_found_by_its_original_name_and_by_its_short_name(names: list[str]) -> None:
    names = [name for name in names if name.strip() and not is_reserved(name)]
    registry = Registry()
    for name in names:
        registry.add(tool(name))
    snapshot = registry.snapshot()
    assert len(snapshot) == len(names)
    for name in names:
        found = snapshot.find(name)
        assert found is not None
        assert (found.original_name or found.name) == name
        assert snapshot.find(found.name) is found
        assert ACCEPTED_BY_PROVIDERS.match(found.name)


def test_tool_whose_short_name_is_already_used_gets_a_different_short_name() -> None:
    registry = Registry()
    squatter = registry.add(tool(first_short_name("a.b")))
    late = registry.add(tool("a.b"))
    assert late.name != squatter.name
    assert is_accepted(late.name)
    assert registry.snapshot().find("a.b") is late
    assert registry.snapshot().find(squatter.name) is squatter


def test_tool_registered_twice_gets_the_same_short_name_both_times() -> None:
    registry = Registry()
    first = registry.add(tool("a.b"))
    again = registry.add(tool("a.b"))
    assert again.name == first.name
    assert list(registry.snapshot()) == [first.name]


def test_tool_added_to_a_second_registry_can_be_found_by_its_original_name_and_short_name() -> None:
    shortened = Registry().add(tool("a.b"))
    other = Registry()
    assert other.add(shortened).original_name == "a.b"
    assert other.snapshot().find("a.b") is other.snapshot()[shortened.name]


@pytest.mark.parametrize("bridge", sorted(BRIDGE_NAMES))
@pytest.mark.parametrize(
    "disguise",
    [
        "{0}",
        " {0}\n",
        "_{0}__",
        "\u200b{0}\ufeff",
    ],
)
def test_reserved_name_such_as_tool_search_is_rejected_even_with_added_spaces_or_underscores(
    bridge: str, disguise: str
) -> None:
    registry = Registry()
    with pytest.raises(ReservedName, match="reserved for the runtime's own bridge tools"):
        registry.add(tool(disguise.format(bridge)))
    assert len(registry.snapshot()) == 0


@st.composite
def look_alikes(draw: st.DrawFn) -> str:
    """Draw a bridge tool's name with look-alike letters and other separators."""
    separator = st.sampled_from(["", "_", "-", ".", " ", "__", "/", "\u200b", "\u00ad", "\t", "‐", "·"])
    letters = []
    for letter in draw(st.sampled_from(sorted(BRIDGE_NAMES))).replace("_", ""):
        wide = chr(ord(letter) + 0xFEE0)
        bold = chr(ord(letter) - ord("a") + 0x1D41A)
        same = [letter, letter.upper(), wide, bold, letter + "\u0301", letter + "\u200d"]
        letters.append(draw(st.sampled_from(same)) + draw(separator))
    return "".join(letters)


@modest
@given(look_alikes())
@example("ToolSearch")
@example("TOOL-CALL")
@example("toolſearch")
@example("ｔｏｏｌ＿ｃａｌｌ")
@example("to\u200bol_des\u00adcribe")
def test_tool_name_that_looks_like_a_reserved_name_such_as_tool_search_is_rejected(name: str) -> None:
    registry = Registry()
    with pytest.raises(ReservedName):
        registry.add(tool(name))
    assert len(registry.snapshot()) == registry.snapshot().generation == 0


@check_cases(
    "name",
    ["tool_searcher", "my_tool_call", "tool_call_2", "tool", "search_tools", "日本_tool_call", "toolcalls"],
)
def test_tool_name_that_contains_a_reserved_name_such_as_tool_search_is_allowed(name: str) -> None:
    assert not is_reserved(name)
    assert Registry().add(tool(name)).name not in BRIDGE_NAMES


@modest
@given(any_text)
def test_short_names_generated_from_arbitrary_text_never_equal_a_reserved_name_such_as_tool_search(
    name: str,
) -> None:
    assert not any(is_reserved(form) for form in short_names(name))


def test_tool_with_a_reserved_short_or_original_name_such_as_tool_search_is_rejected() -> None:
    registry = Registry()
    shown_as_bridge = replace(tool("harmless"), name="tool_call", original_name="harmless")
    called_as_bridge = replace(tool("harmless"), original_name="tool_call")
    for disguised in (shown_as_bridge, called_as_bridge):
        with pytest.raises(ReservedName):
            registry.add(disguised)
    assert registry.snapshot().find("tool_call") is None


@check_cases("name", ["", " ", "\n\t"])
def test_registering_a_tool_without_a_name_is_rejected(name: str) -> None:
    registry = Registry()
    with pytest.raises(InvalidTool, match="needs a name"):
        registry.add(replace(tool("x"), name=name))
    assert len(registry.snapshot()) == 0


@check_cases(
    ("name", "pattern", "is_match"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("GPT-4o", "gpt-*", True),
        ("gpt-4o", "GPT-4O", True),
        ("gpt-4o-mini", "*4o*mini", True),
        ("gpt-4o", "*4o*4o", False),
        ("aa", "a*a*a", False),
        ("", "*", True),
        ("gpt-4o", "", False),
        ("a\nb", "a*b", True),
        ("gpt-4o", "gpt-4?", False),
        ("gpt-4?", "gpt-4?", True),
        ("model[1]", "model[1]", True),
        ("model1", "model[1]", False),
        ("xgpt-4o", "gpt-4o", False),
    ],
)
def test_model_name_patterns_ignore_case_and_treat_only_the_asterisk_as_a_wildcard(
    name: str, pattern: str, is_match: bool
) -> None:
    assert matches_pattern(name, pattern) is is_match


def test_matching_a_long_name_with_many_asterisks_takes_little_time() -> None:
    started = time.perf_counter()
    assert not matches_pattern("a" * 20_000, "*a" * 100 + "*b")
    assert time.perf_counter() - started < 1
