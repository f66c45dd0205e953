"""Selection lists fewer tools, but every granted tool stays callable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from tests.conftest import RuntimeOpener
from tests.thorough import try_examples
from toolfold import Runtime, Session
from toolfold.config.settings import ToolsSettings
from toolfold.core.authoring import build_tool
from toolfold.core.availability import Availability
from toolfold.core.errors import OutOfScope
from toolfold.core.registry import Registry
from toolfold.core.types import Tool, freeze
from toolfold.selection.retrieval.embedding import FunctionEmbedder
from toolfold.selection.retrieval.tool_search import Retriever
from toolfold.selection.turn import Conversation, Disclosure, Grant, Selection, Selector, Turn, begin_turn
from toolfold.selection.turn.companions import find_companions
from toolfold.selection.turn.selection import (
    BRIDGE,
    COMPANION,
    FITS,
    FITTED,
    MAX_REUSED_TOOLS,
    NAMED,
    TOO_LARGE,
    USED,
)
from toolfold.selection.turn.token_counts import ToolTokenCounts
from toolfold.selection.turn.tokens import count_tokens
from toolfold.tools.catalog import sample_catalog


def tool(name: str, description: str, **options: Any) -> Tool:
    return build_tool(
        name=name, toolset="t", schema={"description": description}, handler=lambda args: args, **options
    )


TOOLS = [
    tool("invoice_create", "Create an invoice for a customer."),
    tool("invoice_list", "List invoices of a customer."),
    tool("weather_today", "The weather of today in a city."),
    tool("lamp_on", "Switch on a lamp."),
    tool("read_file", "Read a file of the workspace.", core=True),
]
TOPICS = [{"invoice", "bill"}, {"weather", "umbrella"}, {"lamp"}, {"file", "document"}]
MODES = ["keyword", "semantic", "hybrid"]


def by_topic(texts: Sequence[str]) -> list[list[float]]:
    """Embed texts by the words of four topics that they contain."""
    return [[0.1 + any(word in text.lower() for word in topic) for topic in TOPICS] for text in texts]


def make_conversation(*messages: str, used: Sequence[str] = ()) -> Conversation:
    return Conversation(messages, tuple(used))


class SelectionHarness:
    """Selects among a few tools with the settings of a test."""

    def __init__(
        self,
        tools: Sequence[Tool] = TOOLS,
        *,
        without: Sequence[str] = ("lamp_on",),
        hidden: Sequence[str] = (),
        retriever: Retriever | None = None,
    ) -> None:
        registry = Registry()
        registry.add_all(tools)
        granted = frozenset(registry.snapshot()) - {*without}
        self.grant = Grant.from_names(registry.snapshot(), granted, frozenset(hidden))
        self.turn = begin_turn(self.grant, Availability(timeout=5))
        self.retriever = retriever or Retriever(FunctionEmbedder(by_topic), None, None)

    def selector(self, **settings: Any) -> Selector:
        fixed = {"rag_max_k": settings["rag_top_k"]} if "rag_top_k" in settings else {}
        chosen = {"selection": "keyword", "pinned": (), **fixed, **settings}
        return Selector(ToolsSettings(**chosen), self.retriever)

    def __call__(self, conversation: str | Conversation, **settings: Any) -> Selection:
        if isinstance(conversation, str):
            conversation = make_conversation(conversation)
        return self.selector(**settings)(self.grant, self.turn, conversation)


@pytest.fixture
def select() -> SelectionHarness:
    return SelectionHarness()


def test_more_than_rag_top_k_tools_are_selected_if_several_tools_are_about_equally_likely(
    select: SelectionHarness,
) -> None:
    conversation = make_conversation("use weather_today", "the invoice of the customer Halden")
    uncertain = select(conversation, rag_top_k=1, rag_max_k=None)
    assert uncertain.names == ("invoice_list", "invoice_create")
    assert uncertain.count == 2
    assert select(conversation, rag_top_k=1, rag_max_k=1).names == ("invoice_list",)


def test_count_selected_limits_the_number_of_likely_tools_to_between_rag_top_k_and_rag_max_k() -> None:
    settings = ToolsSettings(rag_top_k=4)
    assert [settings.count_selected(probable) for probable in (0, 3, 6, 40)] == [4, 4, 6, 8]
    settings = ToolsSettings(rag_top_k=4, rag_max_k=2)
    assert [settings.count_selected(probable) for probable in (0, 6)] == [4, 4]


def test_tools_that_match_the_message_are_selected(select: SelectionHarness) -> None:
    selection = select("create an invoice", rag_top_k=1)
    assert selection.names == ("invoice_create",)
    assert selection.why == {"invoice_create": FITS}
    assert selection.hits[0].matched
    assert selection.leg == "keyword"


def test_best_matching_tool_is_selected_first(select: SelectionHarness) -> None:
    assert select("list the invoices").names[0] == "invoice_list"
    assert select("create an invoice").names[0] == "invoice_create"


def test_tool_similar_in_meaning_without_shared_words_is_selected(select: SelectionHarness) -> None:
    umbrella = "do I need an umbrella"
    assert "weather_today" not in select(umbrella, selection="keyword").names
    assert select(umbrella, selection="semantic", rag_top_k=1).names == ("weather_today",)
    assert "weather_today" in select(umbrella, selection="hybrid", rag_top_k=2).names


@pytest.mark.parametrize("mode", MODES)
def test_number_of_selected_tools_equals_rag_top_k_if_more_tools_match_the_message(
    select: SelectionHarness, mode: str
) -> None:
    selection = select("create list invoice customer weather city", selection=mode, rag_top_k=2)
    assert len(selection.names) == len(selection.why) == 2


def test_pinned_tool_does_not_count_towards_the_selection_limit(select: SelectionHarness) -> None:
    selection = select("create an invoice", rag_top_k=1, pinned=("invoice_create",))
    assert selection.names == ("invoice_list",)


def test_built_in_tool_is_selected_only_if_it_matches_the_message_best(select: SelectionHarness) -> None:
    assert select("create an invoice", rag_top_k=1).names == ("invoice_create",)
    assert select("read the file", rag_top_k=1).names == ("read_file",)


@pytest.mark.parametrize("mode", MODES)
def test_ungranted_tool_is_not_selected(select: SelectionHarness, mode: str) -> None:
    conversation = make_conversation("use lamp_on to switch on the lamp", used=["lamp_on"])
    selection = select(conversation, selection=mode, pinned=("lamp_on",))
    assert "lamp_on" not in selection.names
    assert "lamp_on" not in [hit.name for hit in selection.hits]
    with pytest.raises(OutOfScope):
        select.turn.tool("lamp_on")


def test_tool_that_is_hidden_in_the_session_is_not_selected_even_if_it_was_used_before() -> None:
    hidden = ("invoice_create", "lamp_on")
    selection = SelectionHarness(without=(), hidden=hidden)(
        make_conversation("create an invoice", used=["invoice_create"])
    )
    assert not {*hidden} & {*selection.names}


def test_unavailable_tool_is_not_selected() -> None:
    works = [True]
    flaky = build_tool(
        name="invoice_send",
        toolset="t",
        schema={"description": "Send an invoice."},
        handler=lambda args: args,
        check_fn=lambda: works[0],
    )
    harness = SelectionHarness([*TOOLS, flaky])
    selector = harness.selector()
    conversation = make_conversation("send the invoice", used=["invoice_send"])
    assert "invoice_send" in selector(harness.grant, harness.turn, conversation).names
    works[0] = False
    later = begin_turn(harness.grant, Availability(timeout=5, grace=0))
    assert "invoice_send" not in selector(harness.grant, later, conversation).names


@pytest.mark.parametrize("message", ["", "   ", "\ud800", "!!!", "a" * 100_000, "\x00"])
def test_selection_for_an_empty_or_huge_or_undecodable_message_stays_within_the_tool_limit(
    select: SelectionHarness, message: str
) -> None:
    for mode in MODES:
        assert len(select(message, selection=mode, rag_top_k=3).names) <= 3


class TestNames:
    def test_tool_named_in_the_message_is_selected(self, select: SelectionHarness) -> None:
        selection = select("not an invoice: weather_today", rag_top_k=1)
        assert selection.names == ("weather_today",)
        assert selection.why == {"weather_today": NAMED}

    def test_tools_named_in_the_message_are_selected_beyond_the_limit(self) -> None:
        many = [tool(f"ledger_page_{number}", "Read a page. " * 200) for number in range(60)]
        names = [each.name for each in many]
        selection = SelectionHarness(many)(" ".join(names), rag_top_k=2, rag_max_tokens=100)
        assert sorted(selection.names) == sorted(names)
        assert {*selection.why.values()} == {NAMED}

    def test_tool_named_only_in_an_earlier_message_is_not_selected_for_a_new_request(
        self, select: SelectionHarness
    ) -> None:
        conversation = make_conversation("use weather_today", "create an invoice for the customer Halden")
        assert select(conversation, rag_top_k=1).names == ("invoice_create",)

    def test_message_that_names_a_tool_is_classified_as_needing_a_tool(
        self, select: SelectionHarness
    ) -> None:
        assert select("weather_today", rag_need=1.0).needed


class TestTokens:
    def long(self, name: str, words: int) -> Tool:
        return tool(name, "Keeps the ledger. " + "debit credit " * words)

    def test_selected_tools_fit_the_token_limit(self) -> None:
        tools = [self.long(f"ledger_{number}", 100) for number in range(8)]
        one = count_tokens([tools[0].definition()])
        selection = SelectionHarness(tools)("keep the ledger", rag_max_tokens=3 * one + 10)
        assert len(selection.names) == 3
        assert {*selection.left_out.values()} == {TOO_LARGE}

    def test_tool_too_large_for_the_token_limit_is_skipped_and_the_next_best_tool_is_selected(self) -> None:
        harness = SelectionHarness([tool("ledger_keep", "Keep the ledger. " * 900), *TOOLS])
        selection = harness("keep the ledger, list invoices", rag_max_tokens=1_000)
        assert "ledger_keep" in selection.left_out
        assert "invoice_list" in selection.names

    def test_selected_tools_may_reach_but_not_exceed_the_token_limit(self) -> None:
        tools = [self.long(f"ledger_{number}", 400) for number in range(3)]
        exact = count_tokens([each.definition() for each in tools])
        assert len(SelectionHarness(tools)("keep the ledger", rag_max_tokens=exact).names) == 3
        assert len(SelectionHarness(tools)("keep the ledger", rag_max_tokens=exact - 1).names) == 2

    @given(
        st.lists(st.integers(0, 400), min_size=1, max_size=8),
        st.integers(100, 3_000),
        st.integers(0, 3),
    )
    @try_examples(40)
    def test_same_tools_are_selected_with_estimated_token_counts_as_with_exact_token_counts(
        self, lengths: list[int], most: int, used: int
    ) -> None:
        tools = [self.long(f"ledger_{number}", length) for number, length in enumerate(lengths)]
        sizes = {each.name: count_tokens([each.definition()]) for each in tools}
        before = [each.name for each in tools[:used]]
        harness = SelectionHarness(tools)
        selection = harness(
            make_conversation("keep the ledger", used=before), rag_max_tokens=most, rag_top_k=50
        )
        found = [hit.name for hit in selection.hits]
        kept: set[str] = set()
        chosen: set[str] = set()
        for name in reversed(before):
            if sum(sizes[each] for each in {*kept, name}) <= most - most // 2:
                kept.add(name)
        for name in found:
            if name in kept or sum(sizes[each] for each in {*kept, *chosen, name}) <= most:
                chosen.add(name)
        assert {*selection.names} == kept | chosen

    def test_tokens_are_counted_exactly_only_for_a_tool_whose_estimate_is_near_the_limit(self) -> None:
        counted: list[str] = []

        class Counting(ToolTokenCounts):
            def count_tool(self, tool: Tool) -> int:
                counted.append(tool.name)
                return super().count_tool(tool)

        harness = SelectionHarness(
            [self.long("ledger_all", 9_000), *(self.long(f"ledger_{n}", 20) for n in range(7))]
        )
        chosen = ToolsSettings(selection="keyword", pinned=(), rag_max_tokens=3_000)
        selection = Selector(chosen, harness.retriever, weights=Counting())(
            harness.grant, harness.turn, make_conversation("keep the ledger")
        )
        assert len(selection.names) == 7
        assert {*counted} == {"ledger_all"}

    def test_recently_used_tools_take_at_most_half_of_the_token_limit(self) -> None:
        used = [self.long(f"archive_{number}", 100) for number in range(4)]
        one = count_tokens([used[0].definition()])
        conversation = make_conversation("list invoices", used=[each.name for each in used])
        selection = SelectionHarness([*used, *TOOLS])(conversation, rag_max_tokens=4 * one, rag_top_k=1)
        assert {name for name in selection.names if name.startswith("archive")} == {"archive_3", "archive_2"}


class TestConversations:
    @pytest.mark.parametrize("mode", MODES)
    def test_follow_up_message_selects_the_tools_of_the_earlier_request_again(
        self, select: SelectionHarness, mode: str
    ) -> None:
        conversation = make_conversation("weather in Oslo", "and tomorrow?")
        selection = select(conversation, selection=mode, rag_top_k=2)
        assert "weather_today" in selection.names
        if mode == "keyword":
            assert selection.why["weather_today"] == FITTED

    def test_short_follow_up_message_selects_the_tool_of_the_previous_request(
        self, select: SelectionHarness
    ) -> None:
        selection = select(make_conversation("create an invoice for Alice", "same for Bob"), rag_top_k=1)
        assert selection.names == ("invoice_create",)

    @pytest.mark.parametrize("mode", MODES)
    def test_new_request_selects_the_same_tools_with_and_without_an_unrelated_earlier_message(
        self, select: SelectionHarness, mode: str
    ) -> None:
        wish = "create a new invoice for customer Halden"
        alone = select(wish, selection=mode, rag_top_k=2)
        after = select(make_conversation("how is the weather in Oslo", wish), selection=mode, rag_top_k=2)
        assert after.names == alone.names

    def test_recently_used_tools_stay_selected_for_a_new_request(self, select: SelectionHarness) -> None:
        conversation = make_conversation("create an invoice for Halden", used=["weather_today"])
        selection = select(conversation, rag_top_k=1)
        assert selection.names == ("invoice_create", "weather_today")
        assert selection.why["weather_today"] == USED

    def test_only_a_limited_number_of_the_latest_used_tools_stay_selected(self) -> None:
        tools = [tool(f"tool_{number}", "Turns a crank.") for number in range(9)]
        conversation = make_conversation("list the invoices", used=[each.name for each in tools])
        kept = [
            name
            for name in SelectionHarness([*tools, *TOOLS])(conversation, rag_top_k=1).names
            if name.startswith("tool_")
        ]
        assert {*kept} == {f"tool_{number}" for number in range(8, 8 - MAX_REUSED_TOOLS, -1)}

    def test_used_tool_that_no_longer_exists_does_not_stay_selected(self, select: SelectionHarness) -> None:
        assert "no_such_tool" not in select(make_conversation("list invoices", used=["no_such_tool"])).names

    def test_used_tool_stays_selected_even_if_its_name_is_the_original_name_of_other_tools(self) -> None:
        mine = tool("search", "Looks for lost things.")
        theirs = [replace(tool(f"evil_{n}", "Turns a crank."), original_name="search") for n in range(2)]
        for tools, kept in (([mine, *theirs], "search"), ([mine, theirs[0]], "search"), (theirs, None)):
            selection = SelectionHarness([*tools, *TOOLS])(
                make_conversation("list invoices", used=["search"])
            )
            assert [name for name, why in selection.why.items() if why == USED] == ([kept] if kept else [])

    def test_used_tool_stays_selected_even_if_its_name_is_the_original_name_of_an_ungranted_tool(
        self,
    ) -> None:
        theirs = replace(tool("evil", "Turns a crank."), original_name="search")
        harness = SelectionHarness([tool("search", "Looks."), theirs, *TOOLS], without=("evil",))
        assert harness(make_conversation("list invoices", used=["search"])).why["search"] == USED

    def test_tool_used_under_its_original_name_stays_selected(self) -> None:
        dotted = tool("crank.turn", "Turns a crank.")
        selection = SelectionHarness([dotted, *TOOLS])(
            make_conversation("list invoices", used=["crank.turn"])
        )
        assert any(name.startswith("crank_turn") for name in selection.names)

    def test_selecting_tools_again_for_the_same_conversation_embeds_no_text(self) -> None:
        texts: list[str] = []

        def counting(given: Sequence[str]) -> list[list[float]]:
            texts.extend(given)
            return by_topic(given)

        harness = SelectionHarness(retriever=Retriever(FunctionEmbedder(counting), None, None))
        selector = harness.selector(selection="hybrid")
        selector(harness.grant, harness.turn, make_conversation("weather in Oslo"))
        texts.clear()
        selector(harness.grant, harness.turn, make_conversation("weather in Oslo", "and tomorrow?"))
        assert len(texts) == 1


class TestFailures:
    def broken(self, _texts: Sequence[str]) -> NoReturn:
        raise OSError("nobody there")

    @check_cases("mode", MODES)
    def test_selection_uses_keywords_if_the_embedding_model_is_unavailable(self, mode: str) -> None:
        harness = SelectionHarness(retriever=Retriever(FunctionEmbedder(self.broken), None, None))
        selection = harness("create an invoice", selection=mode, rag_top_k=1)
        assert selection.names == ("invoice_create",)
        assert selection.leg == "keyword"

    def test_selection_uses_the_embedding_model_again_after_it_recovers(self) -> None:
        works = [False]

        def flaky(texts: Sequence[str]) -> list[list[float]]:
            return by_topic(texts) if works[0] or len(texts) > 1 else self.broken(texts)

        harness = SelectionHarness(retriever=Retriever(FunctionEmbedder(flaky), None, None))
        selector = harness.selector(selection="semantic", rag_top_k=1)
        umbrella = make_conversation("umbrella, the weather")
        assert selector(harness.grant, harness.turn, umbrella).leg == "keyword"
        works[0] = True
        assert selector(harness.grant, harness.turn, umbrella).leg == "semantic"

    def test_selection_uses_keywords_if_semantic_search_raises_an_exception(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Fused(Retriever):
            def answer(self, *given: Any, mode: Any, **options: Any) -> Any:
                if mode != "keyword":
                    raise RuntimeError("the index is broken")
                return super().answer(*given, mode=mode, **options)

        harness = SelectionHarness(retriever=Fused(FunctionEmbedder(by_topic), None, None))
        selector = harness.selector(selection="hybrid", rag_top_k=1)
        for _ in range(3):
            selection = selector(harness.grant, harness.turn, make_conversation("create an invoice"))
            assert selection.names == ("invoice_create",)
            assert selection.leg == "keyword"
        told = [each for each in caplog.records if "failed" in each.message]
        assert len(told) == 1
        assert told[0].exc_info

    def test_only_recently_used_tools_are_selected_if_the_search_for_tools_fails(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness = SelectionHarness(retriever=FailingRetriever(None, None, None))
        selection = harness(
            make_conversation("create an invoice", used=["weather_today"]), selection="hybrid"
        )
        assert selection.leg == BRIDGE
        assert selection.names == ("weather_today",)
        assert len(caplog.records) == 2

    def test_only_bridge_tools_are_listed_if_no_tool_matches_the_message(
        self, select: SelectionHarness
    ) -> None:
        selection = select("qwertzuiop", selection="keyword")
        assert selection.names == ()
        assert selection.leg == BRIDGE


class FailingRetriever(Retriever):
    """Retriever that always raises."""

    def answer(self, *_given: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("the index is broken")


class TestForcedSearch:
    def disclosed(self, tools: Sequence[Tool], **settings: Any) -> Turn:
        from toolfold.selection.turn import Bridge, BridgeAnswers

        harness = SelectionHarness(tools, retriever=FailingRetriever(None, None, None))
        given = ToolsSettings(selection="hybrid", pinned=(), **settings)
        disclosure = Disclosure(given, Bridge(BridgeAnswers(harness.retriever, given)))
        decision = disclosure.decide_forced(harness.grant, harness.turn)
        return disclosure(harness.grant, harness.turn, decision, ())

    @check_cases("enabled", ["auto", "on", "off"])
    def test_core_tools_and_bridge_tools_are_listed_if_selection_fails_whether_tool_search_is_on_or_off(
        self, enabled: str
    ) -> None:
        turn = self.disclosed(TOOLS, tool_search={"enabled": enabled})
        assert [each.name for each in turn.tools] == [
            "read_file",
            "tool_search",
            "tool_describe",
            "tool_call",
        ]
        assert turn.searchable

    def test_all_built_in_core_tools_are_listed_without_bridge_tools_if_no_tool_can_be_deferred(self) -> None:
        core = [tool("a_tool", "Does it.", core=True), tool("b_tool", "Does it.", core=True)]
        turn = self.disclosed(core, tool_search={"enabled": "off"})
        assert [each.name for each in turn.tools] == ["a_tool", "b_tool"]
        assert not turn.searchable


class TestSessions:
    """End to end, with the shipped models and tools."""

    @pytest.fixture
    def open_session(self, open_test_runtime: RuntimeOpener) -> Callable[..., Session]:
        def session(**settings: Any) -> Session:
            given = {
                "tools.selection": "hybrid",
                "tools.rag_embed_model": "light",
                "tools.tool_search.enabled": "off",
                **settings,
            }
            runtime: Runtime = open_test_runtime(given)
            runtime.registry.add_all(sample_catalog())
            return runtime.session()

        return session

    def test_tool_used_earlier_stays_selected_for_follow_up_messages_of_the_session(
        self, open_session: Callable[..., Session]
    ) -> None:
        session = open_session()
        turn = session.assemble([{"role": "user", "content": "Where is the parcel I sent to Lisbon?"}])
        assert turn.selection is not None
        best = turn.selection.names[0]
        assert 8 <= len(turn.selection.names) <= 16
        history: list[dict[str, Any]] = [
            {"role": "user", "content": "Where is the parcel I sent to Lisbon?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": best, "arguments": "{}"}}]},
            {"role": "tool", "content": "in transit"},
            {"role": "assistant", "content": "On its way."},
        ]
        follow_up = session.assemble([*history, {"role": "user", "content": "and the one to Porto?"}])
        assert best in {each.name for each in follow_up.tools}
        consent = session.assemble([*history, {"role": "user", "content": "yes, go ahead"}])
        assert best in {each.name for each in consent.tools}

    def test_thank_you_message_selects_only_pinned_tools(self, open_session: Callable[..., Session]) -> None:
        session = open_session()
        history: list[dict[str, Any]] = [
            {"role": "user", "content": "Where is the parcel I sent to Lisbon?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "ferrywell_list-shipments"}}]},
            {"role": "assistant", "content": "On its way."},
        ]
        for message in ("Thanks!", "thank you so much, that helped"):
            turn = session.assemble([*history, {"role": "user", "content": message}])
            assert turn.selection is not None
            assert not turn.selection.needed
            assert [each.name for each in turn.tools] == ["read_file", "search_files", "terminal"]
            assert turn.tool("write_file").name == "write_file"

    def test_tool_called_after_a_thank_you_message_stays_selected_during_the_turn(
        self, open_session: Callable[..., Session]
    ) -> None:
        thanks: dict[str, Any] = {"role": "user", "content": "Thanks!"}
        called = {"role": "assistant", "tool_calls": [{"function": {"name": "ferrywell_list-shipments"}}]}
        turn = open_session().assemble([thanks, called, {"role": "tool", "content": "in transit"}])
        assert turn.selection is not None
        assert "ferrywell_list-shipments" in turn.selection.names

    def test_thank_you_message_selects_tools_if_the_setting_rag_need_is_off(
        self, open_session: Callable[..., Session]
    ) -> None:
        turn = open_session(**{"tools.rag_need": "off"}).assemble("Thanks!")
        assert turn.selection is not None
        assert len(turn.selection.names) >= 8

    def test_tools_are_still_selected_if_the_saved_index_file_is_damaged(
        self, open_test_runtime: RuntimeOpener, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            runtime = open_test_runtime({"tools.selection": "hybrid", "tools.rag_embed_model": "light"})
            runtime.registry.add_all(TOOLS)
            turn = runtime.session().assemble("create an invoice for the customer")
            assert turn.selection is not None
            assert turn.selection.names[0] == "invoice_create"
            assert turn.selection.leg == "hybrid"
            index = runtime.config.paths.cache_dir / "index"
            for file in index.iterdir():
                file.write_bytes(b"not an index")
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def companion_tools() -> list[Tool]:
    """Return tools of a chat service, one of another service, and a look-up that needs what is missing."""

    def make(name: str, description: str, toolset: str = "chat", **parameters: str) -> Tool:
        properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
        schema = {
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        }
        return build_tool(name=name, toolset=toolset, schema=schema, handler=lambda args: args)

    return [
        make("chat_post", "Publish an announcement.", channel_id="", body="What to say."),
        make("chat_list_channels", "Every room of the workspace."),
        make("chat_search_channel_members", "Who is in a room.", channel_id=""),
        make("chat_delete_channel", "Remove a room."),
        make("other_list_channels", "Stations.", toolset="television"),
    ]


def test_look_up_tool_for_a_required_parameter_of_a_selected_tool_is_selected_as_well() -> None:
    select = SelectionHarness(companion_tools(), without=())
    selection = select("publish an announcement", rag_top_k=1)
    assert selection.names == ("chat_post", "chat_list_channels")
    assert selection.why["chat_list_channels"] == COMPANION


def test_look_up_tool_that_is_not_granted_is_not_selected_with_its_companion() -> None:
    select = SelectionHarness(companion_tools(), without=("chat_list_channels",))
    assert select("publish an announcement", rag_top_k=1).names == ("chat_post",)


def test_look_up_tool_is_left_out_if_it_exceeds_the_token_limit() -> None:
    first, look_up, *_ = companion_tools()
    select = SelectionHarness([first, replace(look_up, description="a room " * 100)], without=())
    selection = select("publish an announcement", rag_top_k=1, rag_max_tokens=100)
    assert selection.names == ("chat_post",)
    assert selection.left_out["chat_list_channels"] == TOO_LARGE


@check_cases("required", ["channel_id", [1, None], {"channel_id": 1}, None])
def test_malformed_list_of_required_parameters_has_no_companions(required: object) -> None:
    first, *others = companion_tools()
    malformed = freeze({"required": required, "properties": 3})
    assert find_companions(replace(first, parameters=malformed), others) == []
