"""Messages that must find their tool among hundreds, with the default model and ranker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases import check_cases
from tests.retrieval.catalog import CATALOG, make_tool
from toolfold import sample_catalog
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.selection.retrieval.index import Index
from toolfold.selection.retrieval.indexing import Indexer
from toolfold.selection.retrieval.multilingual import MultilingualEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.tool_search import Searcher


@pytest.fixture(scope="module")
def index() -> Index:
    taken = {tool.name for tool in CATALOG}
    return Indexer(MODEL, None).index([*CATALOG, *(t for t in sample_catalog() if t.name not in taken)])


MODEL = MultilingualEmbedder()
SEARCHER = Searcher(
    MODEL, lambda: Ranker.shipped("encoder"), need_classifier=lambda: NeedClassifier.shipped("encoder")
)


@check_cases(
    ("message", "wanted", "within"),
    [
        ("remind me tonight", "calendar", 5),
        ("check what's running", "process", 8),
        ("use browser_navigate", "browser_navigate", 1),
        ("run terminal command", "terminal", 1),
    ],
)
def test_shipped_models_rank_the_right_tool_for_an_everyday_message_among_the_first_hits(
    index: Index, message: str, wanted: str, within: int
) -> None:
    names = [hit.name for hit in SEARCHER.search(index, message, limit=within)]
    assert any(wanted in name for name in names), names


@check_cases(
    "message", ["thanks!", "haha that's a good one", "who are you?", "never mind", "good night", "谢谢你"]
)
def test_small_talk_is_classified_as_needing_no_tool_by_the_shipped_models(
    index: Index, message: str
) -> None:
    found = SEARCHER.answer(index, message)
    assert not found.needed(DEFAULT_NEED_THRESHOLD)


@check_cases(
    "message",
    [
        "thanks! now remind me tonight",
        "check what's running",
        "my parcel arrived broken, get me the money back",
        "thanks for `terminal`",
    ],
)
def test_thank_you_message_with_a_request_or_a_tool_name_is_classified_as_needing_tools(
    index: Index, message: str
) -> None:
    assert SEARCHER.answer(index, message).needed(DEFAULT_NEED_THRESHOLD)


DEVELOPER_TOOLS = (
    make_tool("create_branch", "Create a branch in a repository", server="git"),
    make_tool("merge_pull_request", "Merge a pull request into its base branch", server="git"),
    make_tool("list_commits", "List the commits of a branch, latest first", server="git"),
    make_tool("get_pod_logs", "Return the log of a pod in the cluster", server="kubernetes"),
    make_tool("scale_deployment", "Change the number of replicas of a deployment", server="kubernetes"),
    make_tool("run_query", "Run an SQL query and return its rows", server="postgres"),
)


@pytest.fixture(scope="module")
def developer_index() -> Index:
    return Indexer(MODEL, None).index(DEVELOPER_TOOLS)


@pytest.mark.parametrize(
    "message",
    [
        "book two seats on the night train to Rome",
        "order a pizza with extra basil",
        "turn the heating in the bathroom up",
        "pay the electricity bill",
    ],
)
def test_everyday_request_is_classified_as_needing_no_tool_if_only_developer_tools_exist(
    developer_index: Index, message: str
) -> None:
    assert not SEARCHER.answer(developer_index, message).needed(DEFAULT_NEED_THRESHOLD)


@pytest.mark.parametrize(
    "message",
    [
        "branch off main for the login fix",
        "why does the checkout pod crash?",
        "run an SQL query that counts the users of May",
    ],
)
def test_request_that_a_developer_tool_can_fulfil_is_classified_as_needing_a_tool(
    developer_index: Index, message: str
) -> None:
    assert SEARCHER.answer(developer_index, message).needed(DEFAULT_NEED_THRESHOLD)


def test_tool_with_example_messages_on_many_topics_is_not_selected_for_unrelated_messages() -> None:
    bait = (
        "book a train to Rome",
        "order a pizza",
        "turn the heating up",
        "pay the bill",
        "hello, how are you?",
    )
    first, *others = DEVELOPER_TOOLS
    index = Indexer(MODEL, None).index([replace(first, messages=bait), *others])
    for message in ("dim the lights in the kitchen", "thanks, that was great", "call my mother"):
        assert not SEARCHER.answer(index, message).needed(DEFAULT_NEED_THRESHOLD), message
