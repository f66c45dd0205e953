"""Number of tools that the gateway lists before it defers them, and the reported size of the list."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolfold import load_config
from toolfold.runtime.runtime import Runtime, open_runtime
from toolfold.serving.gateway.listing_size import measure_listing
from toolfold.serving.gateway.server import open_session

from .gateway_process import gateway_process, write_settings
from .harness import fault_server, wait_until

BRIDGE = {"tool_search", "tool_describe", "tool_call"}


def open_with_tools(
    home: Path, tools: int, limit: int | None = None, *, behind_gateway: bool = True
) -> Runtime:
    given: dict[str, object] = {
        "mcp.servers": {"a": fault_server("--tools", str(tools))},
        "mcp.wait_seconds": 60.0,
    }
    if limit is not None:
        given["tools.tool_search.threshold_tools"] = limit
    config = load_config(overrides=given, env={"TOOLFOLD_HOME": str(home), "PATH": "/usr/bin:/bin"})
    return open_runtime(config, behind_gateway=behind_gateway)


def listed_names(runtime: Runtime) -> set[str]:
    return {tool.name for tool in open_session(runtime, None).assemble().tools}


@pytest.mark.parametrize(("tools", "is_deferred"), [(30, False), (31, True)])
def test_gateway_lists_up_to_30_tools_completely_and_only_search_tools_above_30_tools(
    tmp_path: Path, tools: int, is_deferred: bool
) -> None:
    with open_with_tools(tmp_path, tools) as runtime:
        assert (listed_names(runtime) == BRIDGE) is is_deferred
        assert len(listed_names(runtime)) == (3 if is_deferred else tools)


@pytest.mark.parametrize(("setting", "count"), [(0, 40), (40, 40), (39, 3)])
def test_gateway_lists_only_search_tools_if_the_tool_count_exceeds_the_setting_threshold_tools(
    tmp_path: Path, setting: int, count: int
) -> None:
    with open_with_tools(tmp_path, 40, setting) as runtime:
        assert len(listed_names(runtime)) == count


def test_session_without_a_gateway_hides_tools_behind_search_by_token_count_not_tool_count(
    tmp_path: Path,
) -> None:
    with open_with_tools(tmp_path, 40, behind_gateway=False) as runtime:
        assert len(listed_names(runtime)) == 40
    with open_with_tools(tmp_path, 40, 30, behind_gateway=False) as runtime:
        assert listed_names(runtime) == BRIDGE


def test_measure_listing_counts_listed_tools_and_deferred_tools_and_saved_tokens(tmp_path: Path) -> None:
    with open_with_tools(tmp_path, 40) as runtime:
        size = measure_listing(open_session(runtime, None), exact=True)
        about = measure_listing(open_session(runtime, None))
    assert (size.shown, size.deferred) == (about.shown, about.deferred) == (0, 40)
    assert 0 < size.tokens < size.tokens_in_full
    assert 0.6 < about.tokens_in_full / size.tokens_in_full < 1.6
    saved = size.tokens_in_full - size.tokens
    assert str(size) == (
        f"0 tools are listed, 40 are behind tool_search ({saved:,} of {size.tokens_in_full:,} tokens saved)"
    )


@pytest.mark.thorough
def test_gateway_startup_message_contains_the_tool_count_and_token_count_of_its_tool_list(
    tmp_path: Path,
) -> None:
    write_settings(tmp_path, {"mcp": {"servers": {"a": fault_server("--tools", "40")}, "wait_seconds": 60}})
    with gateway_process(tmp_path) as gateway:
        wait_until(lambda: "40 are behind tool_search" in gateway.log.read_text())
