"""Selection shows fewer tools; it takes nothing away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Opened
from toolfold import Runtime, Session
from toolfold.authoring import build_tool
from toolfold.availability import Availability
from toolfold.config.settings import ToolsSettings
from toolfold.errors import OutOfScope
from toolfold.model import Tool
from toolfold.registry import Registry
from toolfold.retrieval.embedding import FunctionEmbedder
from toolfold.retrieval.search import Retriever
from toolfold.sources import sample_catalog
from toolfold.turn import Conversation, Disclosure, Grant, Selection, Selector, Turn, begin_turn
from toolfold.turn.selection import BRIDGE, FITS, FITTED, MAX_REUSED_TOOLS, NAMED, TOO_LARGE, USED
from toolfold.turn.tokens import count_tokens
from toolfold.turn.weights import ToolTokenCounts


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
    """A model that knows four subjects, and two words for most of them."""
    return [[0.1 + any(word in text.lower() for word in topic) for topic in TOPICS] for text in texts]


def asked(*messages: str, used: Sequence[str] = ()) -> Conversation:
    return Conversation(messages, tuple(used))


class Bench:
    """Selects among a few tools with the settings a test gives."""

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
        return Selector(ToolsSettings(**{"selection": "keyword", "pinned": (), **settings}), self.retriever)

    def __call__(self, conversation: str | Conversation, **settings: Any) -> Selection:
        if isinstance(conversation, str):
            conversation = asked(conversation)
        return self.selector(**settings)(self.grant, self.turn, conversation)


@pytest.fixture
def selected() -> Bench:
    return Bench()


def test_the_tools_that_fit_the_message_are_chosen(selected: Bench) -> None:
    selection = selected("create an invoice", rag_top_k=1)
    assert selection.names == ("invoice_create",)
    assert selection.why == {"invoice_create": FITS}
    assert selection.hits[0].matched
    assert selection.leg == "keyword"


def test_the_best_stands_first(selected: Bench) -> None:
    assert selected("list the invoices").names[0] == "invoice_list"
    assert selected("create an invoice").names[0] == "invoice_create"


def test_words_nobody_wrote_are_found_by_meaning_only(selected: Bench) -> None:
    umbrella = "do I need an umbrella"
    assert "weather_today" not in selected(umbrella, selection="keyword").names
    assert selected(umbrella, selection="semantic", rag_top_k=1).names == ("weather_today",)
    assert "weather_today" in selected(umbrella, selection="hybrid", rag_top_k=2).names


@pytest.mark.parametrize("mode", MODES)
def test_at_most_so_many_are_chosen(selected: Bench, mode: str) -> None:
    selection = selected("create list invoice customer weather city", selection=mode, rag_top_k=2)
    assert len(selection.names) == len(selection.why) == 2


def test_a_pinned_tool_takes_no_place_from_the_others(selected: Bench) -> None:
    selection = selected("create an invoice", rag_top_k=1, pinned=("invoice_create",))
    assert selection.names == ("invoice_list",)


def test_the_runtimes_own_tools_compete_like_any_other(selected: Bench) -> None:
    assert selected("create an invoice", rag_top_k=1).names == ("invoice_create",)
    assert selected("read the file", rag_top_k=1).names == ("read_file",)


@pytest.mark.parametrize("mode", MODES)
def test_what_was_not_granted_is_not_chosen_however_well_it_fits(selected: Bench, mode: str) -> None:
    conversation = asked("use lamp_on to switch on the lamp", used=["lamp_on"])
    selection = selected(conversation, selection=mode, pinned=("lamp_on",))
    assert "lamp_on" not in selection.names
    assert "lamp_on" not in [hit.name for hit in selection.hits]
    with pytest.raises(OutOfScope):
        selected.turn.tool("lamp_on")


def test_a_tool_that_is_not_offered_is_not_chosen() -> None:
    hidden = ("invoice_create", "lamp_on")
    selection = Bench(without=(), hidden=hidden)(asked("create an invoice", used=["invoice_create"]))
    assert not {*hidden} & {*selection.names}


def test_a_tool_that_cannot_work_now_is_not_chosen() -> None:
    works = [True]
    flaky = build_tool(
        name="invoice_send",
        toolset="t",
        schema={"description": "Send an invoice."},
        handler=lambda args: args,
        check_fn=lambda: works[0],
    )
    bench = Bench([*TOOLS, flaky])
    selector = bench.selector()
    conversation = asked("send the invoice", used=["invoice_send"])
    assert "invoice_send" in selector(bench.grant, bench.turn, conversation).names
    works[0] = False
    later = begin_turn(bench.grant, Availability(timeout=5, grace=0))
    assert "invoice_send" not in selector(bench.grant, later, conversation).names


@pytest.mark.parametrize("message", ["", "   ", "\ud800", "!!!", "a" * 100_000, "\x00"])
def test_no_message_is_too_odd_to_select_for(selected: Bench, message: str) -> None:
    for mode in MODES:
        assert len(selected(message, selection=mode, rag_top_k=3).names) <= 3


class TestNames:
    def test_a_message_that_names_a_tool_gets_it(self, selected: Bench) -> None:
        selection = selected("not an invoice: weather_today", rag_top_k=1)
        assert selection.names == ("weather_today",)
        assert selection.why == {"weather_today": NAMED}

    def test_all_tools_a_message_names_are_in_beyond_any_bound(self) -> None:
        many = [tool(f"ledger_page_{number}", "Read a page. " * 200) for number in range(60)]
        names = [each.name for each in many]
        selection = Bench(many)(" ".join(names), rag_top_k=2, rag_max_tokens=100)
        assert sorted(selection.names) == sorted(names)
        assert {*selection.why.values()} == {NAMED}

    def test_a_name_in_an_earlier_message_forces_nothing(self, selected: Bench) -> None:
        conversation = asked("use weather_today", "create an invoice for the customer Halden")
        assert selected(conversation, rag_top_k=1).names == ("invoice_create",)

    def test_a_message_that_names_a_tool_needs_one(self, selected: Bench) -> None:
        assert selected("weather_today", rag_need=1.0).needed


class TestTokens:
    def long(self, name: str, words: int) -> Tool:
        return tool(name, "Keeps the ledger. " + "debit credit " * words)

    def test_what_is_chosen_fits_the_bound(self) -> None:
        tools = [self.long(f"ledger_{number}", 100) for number in range(8)]
        one = count_tokens([tools[0].definition()])
        selection = Bench(tools)("keep the ledger", rag_max_tokens=3 * one + 10)
        assert len(selection.names) == 3
        assert {*selection.left_out.values()} == {TOO_LARGE}

    def test_a_tool_too_large_makes_room_for_the_next(self) -> None:
        bench = Bench([tool("ledger_keep", "Keep the ledger. " * 900), *TOOLS])
        selection = bench("keep the ledger, list invoices", rag_max_tokens=1_000)
        assert "ledger_keep" in selection.left_out
        assert "invoice_list" in selection.names

    def test_what_only_looks_too_large_is_counted(self) -> None:
        tools = [self.long(f"ledger_{number}", 400) for number in range(3)]
        exact = count_tokens([each.definition() for each in tools])
        assert len(Bench(tools)("keep the ledger", rag_max_tokens=exact).names) == 3
        assert len(Bench(tools)("keep the ledger", rag_max_tokens=exact - 1).names) == 2

    @given(
        st.lists(st.integers(0, 400), min_size=1, max_size=8),
        st.integers(100, 3_000),
        st.integers(0, 3),
    )
    @settings(max_examples=40, deadline=None)
    def test_the_bound_is_kept_as_if_everything_had_been_counted(
        self, lengths: list[int], most: int, used: int
    ) -> None:
        tools = [self.long(f"ledger_{number}", length) for number, length in enumerate(lengths)]
        sizes = {each.name: count_tokens([each.definition()]) for each in tools}
        before = [each.name for each in tools[:used]]
        bench = Bench(tools)
        selection = bench(asked("keep the ledger", used=before), rag_max_tokens=most, rag_top_k=50)
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

    def test_no_more_is_counted_than_decides(self) -> None:
        counted: list[str] = []

        class Counting(ToolTokenCounts):
            def of(self, tool: Tool) -> int:
                counted.append(tool.name)
                return super().count_tool(tool)

        bench = Bench([self.long("ledger_all", 9_000), *(self.long(f"ledger_{n}", 20) for n in range(7))])
        chosen = ToolsSettings(selection="keyword", pinned=(), rag_max_tokens=3_000)
        selection = Selector(chosen, bench.retriever, weights=Counting())(
            bench.grant, bench.turn, asked("keep the ledger")
        )
        assert len(selection.names) == 7
        assert {*counted} == {"ledger_all"}

    def test_tools_used_before_leave_half_of_the_room(self) -> None:
        used = [self.long(f"archive_{number}", 100) for number in range(4)]
        one = count_tokens([used[0].definition()])
        conversation = asked("list invoices", used=[each.name for each in used])
        selection = Bench([*used, *TOOLS])(conversation, rag_max_tokens=4 * one)
        assert [name for name in selection.names if name.startswith("archive")] == ["archive_3", "archive_2"]
        assert selection.names[0] == "invoice_list"


class TestConversations:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_follow_up_keeps_the_tools_of_what_it_follows(self, selected: Bench, mode: str) -> None:
        conversation = asked("weather in Oslo", "and tomorrow?")
        selection = selected(conversation, selection=mode, rag_top_k=2)
        assert "weather_today" in selection.names
        assert selection.why["weather_today"] == FITTED

    def test_same_for_somebody_else_keeps_them_too(self, selected: Bench) -> None:
        selection = selected(asked("create an invoice for Alice", "same for Bob"), rag_top_k=1)
        assert selection.names == ("invoice_create",)

    @pytest.mark.parametrize("mode", MODES)
    def test_a_new_wish_loses_no_place_to_an_old_one(self, selected: Bench, mode: str) -> None:
        wish = "create a new invoice for customer Halden"
        alone = selected(wish, selection=mode, rag_top_k=2)
        after = selected(asked("how is the weather in Oslo", wish), selection=mode, rag_top_k=2)
        assert after.names == alone.names

    def test_the_further_back_the_less_it_counts(self, selected: Bench) -> None:
        conversation = asked("read the file", "weather in Oslo", "and again?")
        names = selected(conversation).names
        assert names.index("weather_today") < names.index("read_file")

    def test_tools_used_before_stay_beside_a_new_wish(self, selected: Bench) -> None:
        conversation = asked("create an invoice for Halden", used=["weather_today"])
        selection = selected(conversation, rag_top_k=1)
        assert selection.names == ("invoice_create", "weather_today")
        assert selection.why["weather_today"] == USED

    def test_of_tools_used_before_only_the_latest_stay(self) -> None:
        tools = [tool(f"tool_{number}", "Turns a crank.") for number in range(9)]
        conversation = asked("list the invoices", used=[each.name for each in tools])
        kept = [name for name in Bench([*tools, *TOOLS])(conversation).names if name.startswith("tool_")]
        assert kept == [f"tool_{number}" for number in range(8, 8 - MAX_REUSED_TOOLS, -1)]

    def test_a_tool_that_is_gone_does_not_stay(self, selected: Bench) -> None:
        assert "no_such_tool" not in selected(asked("list invoices", used=["no_such_tool"])).names

    def test_a_name_that_was_shown_is_not_taken_for_the_one_that_an_author_gave(self) -> None:
        mine = tool("search", "Looks for lost things.")
        theirs = [replace(tool(f"evil_{n}", "Turns a crank."), original_name="search") for n in range(2)]
        for tools, kept in (([mine, *theirs], "search"), ([mine, theirs[0]], "search"), (theirs, None)):
            selection = Bench([*tools, *TOOLS])(asked("list invoices", used=["search"]))
            assert [name for name, why in selection.why.items() if why == USED] == ([kept] if kept else [])

    def test_the_name_of_a_tool_that_is_not_granted_means_no_other(self) -> None:
        theirs = replace(tool("evil", "Turns a crank."), original_name="search")
        bench = Bench([tool("search", "Looks."), theirs, *TOOLS], without=("evil",))
        assert bench(asked("list invoices", used=["search"])).why["search"] == USED

    def test_a_tool_used_under_its_authors_name_stays(self) -> None:
        dotted = tool("crank.turn", "Turns a crank.")
        selection = Bench([dotted, *TOOLS])(asked("list invoices", used=["crank.turn"]))
        assert any(name.startswith("crank_turn") for name in selection.names)

    def test_the_same_conversation_is_searched_once(self) -> None:
        texts: list[str] = []

        def counting(given: Sequence[str]) -> list[list[float]]:
            texts.extend(given)
            return by_topic(given)

        bench = Bench(retriever=Retriever(FunctionEmbedder(counting), None, None))
        selector = bench.selector(selection="hybrid")
        selector(bench.grant, bench.turn, asked("weather in Oslo"))
        texts.clear()
        selector(bench.grant, bench.turn, asked("weather in Oslo", "and tomorrow?"))
        assert len(texts) == 1


class TestFailures:
    def broken(self, _texts: Sequence[str]) -> NoReturn:
        raise OSError("nobody there")

    @pytest.mark.parametrize("mode", MODES)
    def test_a_model_that_cannot_answer_leaves_the_keywords(self, mode: str) -> None:
        bench = Bench(retriever=Retriever(FunctionEmbedder(self.broken), None, None))
        selection = bench("create an invoice", selection=mode, rag_top_k=1)
        assert selection.names == ("invoice_create",)
        assert selection.leg == "keyword"

    def test_a_model_that_comes_back_is_asked_again(self) -> None:
        works = [False]

        def flaky(texts: Sequence[str]) -> list[list[float]]:
            return by_topic(texts) if works[0] or len(texts) > 1 else self.broken(texts)

        bench = Bench(retriever=Retriever(FunctionEmbedder(flaky), None, None))
        selector = bench.selector(selection="semantic", rag_top_k=1)
        umbrella = asked("umbrella, the weather")
        assert selector(bench.grant, bench.turn, umbrella).leg == "keyword"
        works[0] = True
        assert selector(bench.grant, bench.turn, umbrella).leg == "semantic"

    def test_an_error_in_one_way_of_searching_leaves_the_other(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Fused(Retriever):
            def answer(self, *given: Any, mode: Any, **options: Any) -> Any:
                if mode != "keyword":
                    raise RuntimeError("the index is broken")
                return super().answer(*given, mode=mode, **options)

        bench = Bench(retriever=Fused(FunctionEmbedder(by_topic), None, None))
        selector = bench.selector(selection="hybrid", rag_top_k=1)
        for _ in range(3):
            selection = selector(bench.grant, bench.turn, asked("create an invoice"))
            assert selection.names == ("invoice_create",)
            assert selection.leg == "keyword"
        told = [each for each in caplog.records if "failed" in each.message]
        assert len(told) == 1
        assert told[0].exc_info

    def test_where_nothing_works_the_model_has_to_search(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench(retriever=Failing(None, None, None))
        selection = bench(asked("create an invoice", used=["weather_today"]), selection="hybrid")
        assert selection.leg == BRIDGE
        assert selection.names == ("weather_today",)
        assert len(caplog.records) == 2

    def test_a_message_that_finds_nothing_is_left_to_the_bridge(self, selected: Bench) -> None:
        selection = selected("qwertzuiop", selection="keyword")
        assert selection.names == ()
        assert selection.leg == BRIDGE


class Failing(Retriever):
    """Raises whatever it is asked."""

    def answer(self, *_given: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("the index is broken")


class TestForcedSearch:
    def disclosed(self, tools: Sequence[Tool], **settings: Any) -> Turn:
        from toolfold.turn import Bridge, BridgeAnswers

        bench = Bench(tools, retriever=Failing(None, None, None))
        given = ToolsSettings(selection="hybrid", pinned=(), **settings)
        disclosure = Disclosure(given, Bridge(BridgeAnswers(bench.retriever, given)))
        return disclosure(bench.grant, bench.turn, chosen=(), forced=True)

    @pytest.mark.parametrize("enabled", ["auto", "on", "off"])
    def test_the_bridge_is_shown_with_what_is_never_deferred(self, enabled: str) -> None:
        turn = self.disclosed(TOOLS, tool_search={"enabled": enabled})
        assert [each.name for each in turn.tools] == [
            "read_file",
            "tool_search",
            "tool_describe",
            "tool_call",
        ]
        assert turn.searchable

    def test_where_nothing_is_deferrable_everything_is_shown(self) -> None:
        core = [tool("a_tool", "Does it.", core=True), tool("b_tool", "Does it.", core=True)]
        turn = self.disclosed(core, tool_search={"enabled": "off"})
        assert [each.name for each in turn.tools] == ["a_tool", "b_tool"]
        assert not turn.searchable


class TestSessions:
    """The whole way, with the models and the tools that come with the package."""

    @pytest.fixture
    def open_(self, opened: Opened) -> Callable[..., Session]:
        def session(**settings: Any) -> Session:
            given = {
                "tools.selection": "hybrid",
                "tools.rag_embed_model": "light",
                "tools.tool_search.enabled": "off",
                **settings,
            }
            runtime: Runtime = opened(given)
            runtime.registry.add_all(sample_catalog())
            return runtime.session()

        return session

    def test_a_conversation_is_understood_as_a_whole(self, open_: Callable[..., Session]) -> None:
        session = open_()
        turn = session.assemble([{"role": "user", "content": "Where is the parcel I sent to Lisbon?"}])
        assert turn.selection is not None
        best = turn.selection.names[0]
        assert len(turn.selection.names) == 8
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

    def test_thanks_show_only_what_is_pinned(self, open_: Callable[..., Session]) -> None:
        session = open_()
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

    def test_that_can_be_switched_off(self, open_: Callable[..., Session]) -> None:
        turn = open_(**{"tools.rag_need": "off"}).assemble("Thanks!")
        assert turn.selection is not None
        assert len(turn.selection.names) == 8

    def test_an_index_on_a_disk_that_is_broken_is_no_failure(
        self, opened: Opened, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            runtime = opened({"tools.selection": "hybrid", "tools.rag_embed_model": "light"})
            runtime.registry.add_all(TOOLS)
            turn = runtime.session().assemble("create an invoice for the customer")
            assert turn.selection is not None
            assert turn.selection.names[0] == "invoice_create"
            assert turn.selection.leg == "hybrid"
            index = runtime.config.paths.cache_dir / "index"
            for file in index.iterdir():
                file.write_bytes(b"not an index")
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
