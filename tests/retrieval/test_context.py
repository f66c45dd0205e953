"""How a message continues a conversation, and how the conversation changes the ranking of tools."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.config.settings import DEFAULT_NEED_THRESHOLD
from toolfold.core.registry import Snapshot
from toolfold.selection.retrieval.context import (
    Context,
    ContextRanker,
    Cues,
    asks_to_notify,
    is_agreement,
    merge_with_message,
    resolve_repetition,
)
from toolfold.selection.retrieval.embedding import LightEmbedder
from toolfold.selection.retrieval.need import NeedClassifier
from toolfold.selection.retrieval.ranking import Ranker
from toolfold.selection.retrieval.tool_search import Mode, Retriever
from toolfold.tools.catalog import sample_catalog

MODES: tuple[Mode, ...] = ("keyword", "semantic", "hybrid")


@given(st.text(max_size=300))
def test_follow_up_features_of_any_message_are_numbers_from_zero_to_one(message: str) -> None:
    assert all(0 <= value <= 1 for value in Cues.of(message).row())


@check_cases(
    "message",
    ["and tomorrow?", "same for Bob", "now do that again", "what about Bergen", "und morgen?", "et demain ?"],
)
def test_incomplete_follow_up_question_is_recognised_as_referring_to_earlier_messages(message: str) -> None:
    assert Cues.of(message).refers


@check_cases("message", ["no, the second one", "I meant Tuesday", "nein, 16 Uhr", "make it 4pm, sorry"])
def test_message_that_corrects_an_earlier_request_is_recognised_as_a_correction(message: str) -> None:
    assert Cues.of(message).corrects


@check_cases("message", ["list open invoices", "book a flight to Rome on Friday"])
def test_self_contained_request_is_not_recognised_as_referring_to_earlier_messages(message: str) -> None:
    cues = Cues.of(message)
    assert not cues.refers
    assert not cues.corrects


@check_cases("message", ["yes", "Yes please", "ok", "go ahead", "do it", "ja, bitte", "oui", "はい", "好的"])
def test_short_affirmative_message_in_several_languages_is_recognised_as_agreement(message: str) -> None:
    assert is_agreement(message)


@check_cases("message", ["Thanks!", "ok thanks", "yes, thank you so much", "no", "danke", "谢谢", ""])
def test_thank_you_message_is_not_recognised_as_agreement(message: str) -> None:
    assert not is_agreement(message)


@pytest.fixture(scope="module")
def tools() -> Snapshot:
    return Snapshot({tool.name: tool for tool in sample_catalog()}, 0)


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    return Retriever(
        LightEmbedder(),
        lambda: Ranker.shipped("light"),
        None,
        need_classifier=lambda: NeedClassifier.shipped("light"),
    )


@check_cases("mode", MODES)
def test_follow_up_message_without_a_topic_finds_the_tool_that_was_just_called(
    retriever: Retriever, tools: Snapshot, mode: Mode
) -> None:
    called = next(iter(tools))
    context = Context(("do the first thing",), (called,))
    found = retriever.answer(tools, "once more, please", mode=mode, limit=8, context=context)
    assert called in [hit.name for hit in found.hits]


@check_cases("mode", MODES)
def test_follow_up_message_does_not_find_a_previously_called_tool_that_is_no_longer_granted(
    retriever: Retriever, tools: Snapshot, mode: Mode
) -> None:
    called, *granted = tools
    context = Context(("earlier",), (called,))
    found = retriever.answer(tools, "and now again", mode=mode, limit=50, granted=granted, context=context)
    assert called not in [hit.name for hit in found.hits]


def test_message_that_agrees_after_a_tool_call_is_classified_as_needing_a_tool(
    retriever: Retriever, tools: Snapshot
) -> None:
    context = Context(("delete the old ones?",), (next(iter(tools)),))
    assert retriever.answer(tools, "yes, go ahead", mode="hybrid", limit=8, context=context).need == 1.0


def test_message_about_a_new_topic_still_finds_its_best_tool_after_an_unrelated_conversation(
    retriever: Retriever, tools: Snapshot
) -> None:
    message = "track the parcel with the tracking number 00340434161094"
    best = retriever.answer(tools, message, mode="hybrid", limit=8).hits[0].name
    called = next(name for name in tools if tools[name].server != tools[best].server)
    context = Context(("and the next one, please",), (called,))
    found = retriever.answer(tools, message, mode="hybrid", limit=8, context=context)
    assert best in [hit.name for hit in found.hits]
    assert found.needed(DEFAULT_NEED_THRESHOLD)


@check_cases(
    "message", ["Let her know.", "Great, and let her know.", "Then inform the team", "Mail that to Kofi."]
)
def test_request_to_notify_somebody_finds_messaging_tools_and_keeps_those_of_the_topic(
    retriever: Retriever, tools: Snapshot, message: str
) -> None:
    context = Context(("has Mrs. Lindqvist's order gone out?",), ("brightcart_getOrder",))
    found = retriever.answer(tools, message, mode="hybrid", limit=8, context=context)
    names = {hit.name for hit in found.hits}
    assert found.needed(DEFAULT_NEED_THRESHOLD)
    assert names & {"larkpost_send_message", "murmur_messages_post"}
    assert any(name.startswith("brightcart_") for name in names)


@check_cases("message", ["let me know", "tell me a joke", "you write well", "thanks for the e-mail", "text"])
def test_remark_with_a_word_for_messages_is_no_request_to_notify_somebody(message: str) -> None:
    assert not asks_to_notify(message)


def test_question_that_needs_a_tool_by_itself_needs_it_after_other_topics(
    retriever: Retriever, tools: Snapshot
) -> None:
    earlier = "how much money do I have left?", "will it rain in Bergen on Saturday?"
    context = Context(earlier, ("tillerbank_get_account_positions", "wayfern_weather-forecast"))
    alone = retriever.answer(tools, "What song is playing?", mode="hybrid", limit=8)
    found = retriever.answer(tools, "What song is playing?", mode="hybrid", limit=8, context=context)
    assert found.need >= alone.need >= DEFAULT_NEED_THRESHOLD
    assert "tunepocket_getNowPlaying" in [hit.name for hit in found.hits]


@check_cases(
    ("message", "service"),
    [
        ("The parcel for Mrs Okafor never arrived.", "ferrywell"),
        ("The invoice for Halden is wrong, by the way.", "tallyhouse"),
        ("By the way, the sound in that interview recording is terrible.", "lumenlab"),
    ],
)
def test_statement_on_a_new_topic_needs_a_tool_after_other_topics(
    retriever: Retriever, tools: Snapshot, message: str, service: str
) -> None:
    context = Context(("a bit quieter please", "play some jazz"), ("tunepocket_controlPlayback",))
    found = retriever.answer(tools, message, mode="hybrid", limit=16, context=context)
    assert found.needed(DEFAULT_NEED_THRESHOLD)
    assert any(hit.name.startswith(f"{service}_") for hit in found.hits)


@check_cases("message", ["My grandmother used to sing this to me.", "lovely tune", "It was a long day."])
def test_remark_needs_no_tool_in_a_conversation(retriever: Retriever, tools: Snapshot, message: str) -> None:
    context = Context(("a bit quieter please", "play some jazz"), ("tunepocket_controlPlayback",))
    found = retriever.answer(tools, message, mode="hybrid", limit=8, context=context)
    assert not found.needed(DEFAULT_NEED_THRESHOLD)


def test_nonexistent_tool_in_the_conversation_history_does_not_change_the_search_result(
    retriever: Retriever, tools: Snapshot
) -> None:
    context = Context((), ("no_such_tool",))
    alone = retriever.answer(tools, "track a parcel", mode="hybrid", limit=8)
    assert retriever.answer(tools, "track a parcel", mode="hybrid", limit=8, context=context) == alone


def test_tool_named_in_the_message_ranks_first_regardless_of_earlier_messages(
    retriever: Retriever, tools: Snapshot
) -> None:
    called, *_, named = tools
    context = Context(("something else",), (called,))
    found = retriever.answer(tools, f"use `{named}` now", mode="hybrid", limit=8, context=context)
    assert found.hits[0].name == named


def test_shipped_context_ranker_returns_scores_and_probabilities_with_and_without_embeddings() -> None:

    ranker = ContextRanker.shipped()
    rows = np.zeros((3, 22), np.float32)
    for dense in (True, False):
        assert len(ranker(rows, dense=dense)) == 3
        assert 0 <= ranker.need_probability("and now?", [0.0] * 25, dense=dense) <= 1


def test_long_message_gets_most_top_hits_from_the_search_that_ignores_earlier_messages() -> None:
    in_context, alone = np.arange(8), np.arange(100, 108)
    words = "archive invoices notify accounting export ledger quarterly summary spreadsheet"
    merged = merge_with_message(in_context, alone, words).tolist()
    assert sum(each >= 100 for each in merged[:8]) == 6
    assert sorted(merged) == sorted([*in_context.tolist(), *alone.tolist()])
    assert merge_with_message(in_context, alone, "close it").tolist() == in_context.tolist()


@check_cases(
    "message",
    [
        "try again",
        "What about now?",
        "I have added some more functions you can choose from. What about now?",
        "I fixed the token, please try it again",
        "versuch es nochmal",
        "再试一次",
    ],
)
def test_request_to_try_again_is_replaced_by_the_earlier_request_before_the_search(message: str) -> None:
    context = Context(("send the report to Ann", "hello"), ("mail_send",))
    assert resolve_repetition(message, context) == (
        "send the report to Ann",
        Context(("hello",), ("mail_send",)),
    )


def test_several_try_again_messages_are_replaced_by_the_last_message_that_states_a_task() -> None:
    context = Context(("what about now?", "try again", "send the report to Ann"))
    assert resolve_repetition("retry", context)[0] == "send the report to Ann"


@check_cases(
    "message",
    [
        "now close it",
        "try it again with search_issues",
        "no, try it again with the other calendar instead",
        "retry the deployment of service checkout on cluster seven",
        "try again " * 20,
    ],
)
def test_message_that_contains_a_new_request_is_not_replaced_by_an_earlier_request(message: str) -> None:
    context = Context(("send the report to Ann",))
    assert resolve_repetition(message, context) == (message, context)


def test_request_to_try_again_without_an_earlier_message_is_searched_unchanged() -> None:
    assert resolve_repetition("try again", Context((), ("mail_send",))) == (
        "try again",
        Context((), ("mail_send",)),
    )


@given(st.text(max_size=200), st.lists(st.text(max_size=60), max_size=4))
def test_any_message_is_searched_unchanged_or_replaced_by_one_of_the_earlier_messages(
    message: str, earlier: list[str]
) -> None:
    found, context = resolve_repetition(message, Context(tuple(earlier)))
    assert found == message or found in earlier
    assert len(context.earlier) <= len(earlier)


@check_cases("mode", MODES)
def test_request_to_try_again_finds_the_tools_of_the_earlier_request(
    retriever: Retriever, tools: Snapshot, mode: Mode
) -> None:
    request = "track the parcel with the tracking number 00340434161094"
    expected = [hit.name for hit in retriever.answer(tools, request, mode=mode, limit=8).hits]
    context = Context((request,))
    found = retriever.answer(
        tools, "more tools are connected. What about now?", mode=mode, limit=8, context=context
    )
    assert [hit.name for hit in found.hits] == expected
    assert found.needed(DEFAULT_NEED_THRESHOLD)
