"""A message that names a tool means it; an everyday word does not name one unless it is marked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.retrieval.catalog import CATALOG, made
from tests.timing import growth, in_time
from toolfold.model import Tool
from toolfold.retrieval.exact import MOST_CHANGES, MOST_NAMESAKES, Names


def named(message: str, *tools: Tool) -> list[str]:
    tools = tools or CATALOG
    return [tools[place].name for place in Names(tools).named_in(message)]


@pytest.mark.parametrize(
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
def test_a_compound_name_is_found_wherever_it_stands(message: str) -> None:
    assert named(message) == ["browser_navigate"]


@pytest.mark.parametrize(
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
def test_an_everyday_name_counts_when_it_is_marked(message: str) -> None:
    assert named(message) == ["process"]


@pytest.mark.parametrize(
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
def test_an_everyday_word_names_no_tool(message: str) -> None:
    assert named(message) == []


@pytest.mark.parametrize(
    "message", ["browser navigate", "browser_navigator", "my_browser_navigate", "xbrowser_navigate"]
)
def test_a_name_that_is_part_of_another_word_is_not_meant(message: str) -> None:
    assert named(message) == []


def test_an_address_that_ends_like_a_tool_does_not_name_it() -> None:
    assert named("open https://example.com/browser_navigate") == []


def test_run_terminal_command_names_the_terminal() -> None:
    assert named("run terminal command") == ["terminal"]


def test_several_names_are_found_in_the_order_of_the_message() -> None:
    message = "first weather_forecast, then `memory`, then browser_navigate and weather_forecast again"
    assert named(message) == ["weather_forecast", "memory", "browser_navigate"]
    assert named("send_messageとbrowser_navigateを使う") == ["send_message", "browser_navigate"]


@pytest.mark.parametrize(
    "name", ["mcp_github_create_issue", "mcp__github__create_issue", "github_create_issue"]
)
def test_a_name_is_known_without_its_server(name: str) -> None:
    tool = made(name, server="github", toolset="mcp-github")
    assert named("create_issue about the crash", tool) == [name]
    assert named(f"{name} about the crash", tool) == [name]


def test_an_everyday_word_does_not_become_a_name_by_leaving_out_the_server() -> None:
    tool = made("mcp_slack_post", server="slack")
    assert named("use post", tool) == []
    assert named("use mcp_slack_post", tool) == ["mcp_slack_post"]


def test_the_same_name_on_two_servers_means_both() -> None:
    tools = [made(f"mcp_{server}_create_issue", server=server) for server in ("github", "gitlab")]
    assert named("create_issue", *tools) == [tool.name for tool in tools]


@pytest.mark.parametrize("name", ["mcp_git_hub_create_issue_ab12cd34ef56", "mcp_git.hub_create_issue"])
def test_a_servers_tool_is_known_by_its_own_name_whatever_it_is_called_here(name: str) -> None:
    tool = replace(made(name, server="git.hub"), original_name="mcp__git.hub__create_issue")
    for written in ("create_issue", "mcp__git.hub__create_issue", name):
        assert named(f"use {written} now", tool) == [name]
    post = replace(made("mcp_s_x", server="s"), original_name="mcp__s__post")
    assert named("use post now", post) == []


def test_the_name_its_author_gave_a_tool_is_known_too() -> None:
    tool = replace(made("files_read_text"), original_name="files/read.text")
    assert named("use files/read.text.", tool) == ["files_read_text"]
    assert named("use files_read_text", tool) == ["files_read_text"]


@pytest.mark.parametrize(
    "name",
    [
        *("Get_User", "check_in", "q_4", "Base64", "sha256sum"),
        *("Web-Search", "add-to-cart", "get-event", "list-shipments", "create-a-page", "delete-many"),
        *("get-current-time", "API-delete-a-block", "resolve-library-id", "gzip-file-as-resource"),
        *("collection-schema", "db-stats", "mongodb-logs", "users.list", "files/read.text"),
    ],
)
def test_a_name_that_nobody_writes_by_chance_is_telling(name: str) -> None:
    assert named(f"maybe {name.lower()} helps", made(name)) == [name]


@pytest.mark.parametrize("name", ["getUser", "yoU", "mcp_evil_yoU"])
def test_a_name_that_only_a_hump_sets_apart_counts_where_it_is_written_with_it(name: str) -> None:
    tool = made(name, server="evil")
    own = name.removeprefix("mcp_evil_")
    assert named(f"maybe {own.lower()} or {own.upper()} helps", tool) == []
    assert named(f"maybe {own} helps", tool) == [name]
    if own == name:
        assert named(f"use {own.lower()}", tool) == [name]


@pytest.mark.parametrize(
    "word",
    [
        *("2026", "24/7", "10am", "2026-01-01", "q4", "v2", "s3", "b2b", "k8s", "fy2026"),
        *("e.g", "e-mail", "follow-up", "check-in", "sign-up", "log-in", "add-on", "read-only", "set-up"),
        *("and/or", "covid-19", "real-time", "long-term", "open-source", "third-party", "user-friendly"),
        *("step-by-step", "day-to-day", "up-to-date", "state-of-the-art", "point-in-time", "medium-sized"),
        *("self-service", "non-profit", "multi-step", "wi-fi", "node.js", "donne-moi", "rendez-vous"),
    ],
)
def test_a_number_or_a_figure_of_speech_names_a_tool_only_when_it_is_marked(word: str) -> None:
    tool = replace(made("odd_tool"), original_name=word)
    assert named(f"see you {word} maybe", tool) == []
    assert named(f"use {word}", tool) == ["odd_tool"]


@pytest.mark.parametrize("name", ["evil__yoU", "evil___get_x", "mcp__evil___get_x"])
def test_underscores_before_a_name_do_not_make_it_a_namesake(name: str) -> None:
    assert named("yoU you get_x", made(name, server="evil")) == []


@pytest.mark.parametrize("other", ["procesS", "PROCESS"])
def test_a_namesakes_spelling_does_not_change_what_a_tool_is_called(other: str) -> None:
    mine, theirs = made("process"), replace(made("zzz"), original_name=other)
    assert named("thanks, what a process!", mine, theirs) == []
    assert named("thanks, what a procesS!", mine, theirs) == (["zzz"] if other == "procesS" else [])
    assert named("use process", mine, theirs) == ["process", "zzz"]


def test_one_word_names_few_tools_of_one_server_whatever_else_there_is() -> None:
    mine = replace(made("zzz", server="mine"), original_name="get_x")
    many = [replace(made(f"t{n:03}", server="evil"), original_name="get_x") for n in range(500)]
    expected = [*(tool.name for tool in many[:MOST_NAMESAKES]), "zzz"]
    for tools in ([*many, mine], [mine, *reversed(many)]):
        assert named("get_x", *tools) == expected
        assert named("Get_X `get_x` " * 1_000, *tools) == expected


def test_any_number_of_tools_can_be_named_each_by_its_own_name() -> None:
    many = [replace(made(f"page_{n:03}", server="books"), original_name="page_007") for n in range(60)]
    assert sorted(named(" ".join(tool.name for tool in many), *many)) == [tool.name for tool in many]
    assert named("page_007", *many)[0] == "page_007"


@pytest.mark.parametrize("word", ["get_x ", "geTx ", "gEt_X Get_x get_x ", "use getx "])
def test_a_word_repeated_many_times_costs_its_namesakes_once(word: str) -> None:
    many = [replace(made(f"t{n:03}"), original_name="Get_x" if n % 2 else "geTx") for n in range(500)]
    few, all_of_them = Names(many[:5]), Names(many)
    message = word * (20_000 // len(word))
    assert few.named_in(message)
    assert all_of_them.named_in(message)
    grown = growth(lambda: few.named_in(message), lambda: all_of_them.named_in(message))
    assert grown < 20  # 1 where a word's namesakes are looked at once, 100 where each time


def test_empty_places_and_empty_messages_name_nothing() -> None:
    assert Names([None, None]).named_in("use browser_navigate") == []
    assert Names([]).named_in("") == []
    assert named("") == []


@pytest.mark.parametrize("part", ["a ", "`", "browser_navigate", "a.:/-", "を", "use the process "])
def test_a_megabyte_is_searched_soon(part: str) -> None:
    in_time(lambda: named(part * (1_000_000 // len(part))))


@pytest.mark.parametrize("count", [1, 3, MOST_CHANGES + 1])
def test_names_changed_in_some_places_are_those_of_the_tools_that_are_there_now(count: int) -> None:
    before = [made(f"tool_{n}") for n in range(2 * count)] + [made("process"), made("get_weather")]
    after: list[Tool | None] = [
        *(made(f"other_{n}") if n % 3 else None for n in range(count)),
        *before[count:],
        made("Process_x"),
        replace(made("twin"), original_name="get_weather"),
    ]
    places = {*range(count), len(after) - 2, len(after) - 1}
    old = Names(before)
    changed, fresh = old.changed(after, places), Names(after)
    for message in ("tool_0 tool_1 other_1 other_2", "use process", "process it", "process_x", "get_weather"):
        assert changed.named_in(message) == fresh.named_in(message)
    assert old.named_in("tool_0") == [0], "the names they came from stay as they were"
