"""Tools mentioned by name: distinctive names match anywhere, common words only in quotes or backticks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG, make_tool
from tests.timing import cost_ratio, run_with_limit
from toolfold.core.types import Tool
from toolfold.selection.retrieval.exact import MAX_INCREMENTAL_CHANGES, MAX_NAMESAKES_PER_TOOLSET, NameIndex


def find_names(message: str, *tools: Tool) -> list[str]:
    tools = tools or CATALOG
    return [tools[position].name for position in NameIndex(tools).find_named(message)]


@check_cases(
    "message",
    [
        "use browser_navigate",
        "browser_navigate",
        "Browser_Navigate to example.com",
        "please open it (browser_navigate), then stop",
        "I want browser_navigate.",
        "I want browser_navigate...",
        "browser_navigate: example.com",
        "browser_navigate!",
        "**browser_navigate**",
        "_browser_navigate_",
        "is it `browser_navigate`?",
        "browser_navigate's page",
        "browser_navigate()",
        "browser_navigateを使ってください",
        "请使用browser_navigate打开页面",
        "\x00browser_navigate\x00",
    ],
)
def test_tool_name_of_several_words_is_recognised_anywhere_in_a_message(message: str) -> None:
    assert find_names(message) == ["browser_navigate"]


@check_cases(
    "message",
    [
        "`process` them",
        'ask "process" about it',
        "the “process” one",
        "use process",
        "Use the process tool",
        "using process, list them",
        "call process",
        "the process tool can tell",
        "the process function",
        "process(action='list')",
    ],
)
def test_tool_named_like_a_common_word_is_recognised_in_backticks_or_quotes(message: str) -> None:
    assert find_names(message) == ["process"]


@check_cases(
    "message",
    [
        "process this invoice",
        "what is the process for refunds?",
        "my memory is bad",
        "in memory of my aunt",
        "the process tooling is bad",
        "'process this",
        "useful process",
        "terminal illness",
    ],
)
def test_common_word_in_a_message_does_not_match_the_tool_of_the_same_name(message: str) -> None:
    assert find_names(message) == []


@check_cases("message", ["browser navigate", "browser_navigator", "my_browser_navigate", "xbrowser_navigate"])
def test_tool_name_inside_another_word_is_not_recognised(message: str) -> None:
    assert find_names(message) == []


def test_tool_name_at_the_end_of_a_url_is_not_recognised() -> None:
    assert find_names("open https://example.com/browser_navigate") == []


def test_tool_named_terminal_is_recognised_in_the_message_run_terminal_command() -> None:
    assert find_names("run terminal command") == ["terminal"]


def test_several_tools_named_in_a_message_are_found_in_the_order_they_are_named() -> None:
    message = "first weather_forecast, then `memory`, then browser_navigate and weather_forecast again"
    assert find_names(message) == ["weather_forecast", "memory", "browser_navigate"]
    assert find_names("send_messageとbrowser_navigateを使う") == ["send_message", "browser_navigate"]


@check_cases("name", ["mcp_github_create_issue", "mcp__github__create_issue", "github_create_issue"])
def test_tool_is_recognised_by_its_name_without_the_server_prefix(name: str) -> None:
    tool = make_tool(name, server="github", toolset="mcp-github")
    assert find_names("create_issue about the crash", tool) == [name]
    assert find_names(f"{name} about the crash", tool) == [name]


def test_tool_whose_unprefixed_name_is_a_common_word_is_recognised_only_by_its_full_name() -> None:
    tool = make_tool("mcp_slack_post", server="slack")
    assert find_names("use post", tool) == []
    assert find_names("use mcp_slack_post", tool) == ["mcp_slack_post"]


def test_name_shared_by_tools_of_two_servers_finds_both_tools() -> None:
    tools = [make_tool(f"mcp_{server}_create_issue", server=server) for server in ("github", "gitlab")]
    assert find_names("create_issue", *tools) == [tool.name for tool in tools]


@check_cases("name", ["mcp_git_hub_create_issue_ab12cd34ef56", "mcp_git.hub_create_issue"])
def test_renamed_mcp_tool_is_recognised_in_a_message_by_its_name_on_the_server(name: str) -> None:
    tool = replace(make_tool(name, server="git.hub"), original_name="mcp__git.hub__create_issue")
    for written in ("create_issue", "mcp__git.hub__create_issue", name):
        assert find_names(f"use {written} now", tool) == [name]
    post = replace(make_tool("mcp_s_x", server="s"), original_name="mcp__s__post")
    assert find_names("use post now", post) == []


def test_tool_is_recognised_in_a_message_by_its_original_name() -> None:
    tool = replace(make_tool("files_read_text"), original_name="files/read.text")
    assert find_names("use files/read.text.", tool) == ["files_read_text"]
    assert find_names("use files_read_text", tool) == ["files_read_text"]


@check_cases(
    "name",
    [
        *("Get_User", "check_in", "q_4", "Base64", "sha256sum"),
        *("Web-Search", "add-to-cart", "get-event", "list-shipments", "create-a-page", "delete-many"),
        *("get-current-time", "API-delete-a-block", "resolve-library-id", "gzip-file-as-resource"),
        *("collection-schema", "db-stats", "mongodb-logs", "users.list", "files/read.text"),
    ],
)
def test_distinctive_tool_name_is_recognised_in_a_message_without_quotes(name: str) -> None:
    assert find_names(f"maybe {name.lower()} helps", make_tool(name)) == [name]


@check_cases("name", ["getUser", "yoU", "mcp_evil_yoU"])
def test_camel_case_tool_name_is_recognised_only_in_camel_case(name: str) -> None:
    tool = make_tool(name, server="evil")
    own = name.removeprefix("mcp_evil_")
    assert find_names(f"maybe {own.lower()} or {own.upper()} helps", tool) == []
    assert find_names(f"maybe {own} helps", tool) == [name]
    if own == name:
        assert find_names(f"use {own.lower()}", tool) == [name]


@check_cases(
    "word",
    [
        *("2026", "24/7", "10am", "2026-01-01", "q4", "v2", "s3", "b2b", "k8s", "fy2026"),
        *("e.g", "e-mail", "follow-up", "check-in", "sign-up", "log-in", "add-on", "read-only", "set-up"),
        *("and/or", "covid-19", "real-time", "long-term", "open-source", "third-party", "user-friendly"),
        *("step-by-step", "day-to-day", "up-to-date", "state-of-the-art", "point-in-time", "medium-sized"),
        *("self-service", "non-profit", "multi-step", "wi-fi", "node.js", "donne-moi", "rendez-vous"),
    ],
)
def test_tool_named_like_a_number_or_common_phrase_is_recognised_only_in_quotes(word: str) -> None:
    tool = replace(make_tool("odd_tool"), original_name=word)
    assert find_names(f"see you {word} maybe", tool) == []
    assert find_names(f"use {word}", tool) == ["odd_tool"]


@check_cases("name", ["evil__yoU", "evil___get_x", "mcp__evil___get_x"])
def test_tool_name_without_its_leading_underscores_is_not_recognised(
    name: str,
) -> None:
    assert find_names("yoU you get_x", make_tool(name, server="evil")) == []


@check_cases("other", ["procesS", "PROCESS"])
def test_common_word_matches_neither_of_two_tools_whose_names_differ_only_in_case(
    other: str,
) -> None:
    mine, theirs = make_tool("process"), replace(make_tool("zzz"), original_name=other)
    assert find_names("thanks, what a process!", mine, theirs) == []
    assert find_names("thanks, what a procesS!", mine, theirs) == (["zzz"] if other == "procesS" else [])
    assert find_names("use process", mine, theirs) == ["process", "zzz"]


def test_name_shared_by_500_tools_of_one_server_still_finds_the_tool_of_another_server() -> None:
    mine = replace(make_tool("zzz", server="mine"), original_name="get_x")
    many = [replace(make_tool(f"t{n:03}", server="evil"), original_name="get_x") for n in range(500)]
    expected = [*(tool.name for tool in many[:MAX_NAMESAKES_PER_TOOLSET]), "zzz"]
    for tools in ([*many, mine], [mine, *reversed(many)]):
        assert find_names("get_x", *tools) == expected
        assert find_names("Get_X `get_x` " * 1_000, *tools) == expected


def test_all_60_tools_named_in_a_message_are_found() -> None:
    many = [replace(make_tool(f"page_{n:03}", server="books"), original_name="page_007") for n in range(60)]
    assert sorted(find_names(" ".join(tool.name for tool in many), *many)) == [tool.name for tool in many]
    assert find_names("page_007", *many)[0] == "page_007"


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("word", ["get_x ", "geTx ", "gEt_X Get_x get_x ", "use getx "])
def test_tool_name_repeated_in_a_message_is_found_once(word: str) -> None:
    many = [replace(make_tool(f"t{n:03}"), original_name="Get_x" if n % 2 else "geTx") for n in range(500)]
    few, all_of_them = NameIndex(many[:5]), NameIndex(many)
    message = word * (20_000 // len(word))
    assert few.find_named(message)
    assert all_of_them.find_named(message)
    grown = cost_ratio(lambda: few.find_named(message), lambda: all_of_them.find_named(message))
    assert grown < 20  # 1 where a word's namesakes are looked at once, 100 where each time


def test_name_index_finds_no_tool_if_the_index_or_the_message_is_empty() -> None:
    assert NameIndex([None, None]).find_named("use browser_navigate") == []
    assert NameIndex([]).find_named("") == []
    assert find_names("") == []


@pytest.mark.thorough(keep=1)
@check_cases("part", ["a ", "`", "browser_navigate", "a.:/-", "を", "use the process "])
def test_tool_names_in_a_megabyte_message_are_found_quickly(part: str) -> None:
    run_with_limit(lambda: find_names(part * (1_000_000 // len(part))))


@check_cases("count", [1, 3, MAX_INCREMENTAL_CHANGES + 1])
def test_name_index_updated_with_changed_tools_finds_the_same_names_as_a_newly_built_index(
    count: int,
) -> None:
    before = [make_tool(f"tool_{n}") for n in range(2 * count)] + [
        make_tool("process"),
        make_tool("get_weather"),
    ]
    after: list[Tool | None] = [
        *(make_tool(f"other_{n}") if n % 3 else None for n in range(count)),
        *before[count:],
        make_tool("Process_x"),
        replace(make_tool("twin"), original_name="get_weather"),
    ]
    positions = {*range(count), len(after) - 2, len(after) - 1}
    old = NameIndex(before)
    changed, fresh = old.changed(after, positions), NameIndex(after)
    for message in ("tool_0 tool_1 other_1 other_2", "use process", "process it", "process_x", "get_weather"):
        assert changed.find_named(message) == fresh.find_named(message)
    assert old.find_named("tool_0") == [0], "the names they came from stay as they were"
