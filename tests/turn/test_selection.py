"""Selection shows fewer tools; it takes nothing away."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from toolfold.authoring import build_tool
from toolfold.availability import Availability
from toolfold.errors import OutOfScope
from toolfold.model import Tool
from toolfold.registry import Registry
from toolfold.retrieval.embedding import Function
from toolfold.retrieval.search import Mode, Retriever
from toolfold.turn import Turn, assemble
from toolfold.turn.selection import Selection, select


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


def by_topic(texts: Sequence[str]) -> list[list[float]]:
    """A model that knows four subjects, and two words for most of them."""
    return [[0.1 + any(word in text.lower() for word in topic) for topic in TOPICS] for text in texts]


@pytest.fixture
def turn() -> Turn:
    registry = Registry()
    registry.add_all(TOOLS)
    granted = frozenset(registry.snapshot()) - {"lamp_on"}
    return assemble(registry.snapshot(), granted, Availability(timeout=5))


@pytest.fixture
def retriever() -> Retriever:
    return Retriever(Function(by_topic), None, None)


class Selected:
    """Selects with what a test says and the rest as usual."""

    def __init__(self, turn: Turn, retriever: Retriever) -> None:
        self._turn, self._retriever = turn, retriever

    def __call__(
        self, message: str, *, mode: Mode = "keyword", top_k: int = 8, pinned: Collection[str] = ()
    ) -> Selection:
        return select(self._turn, message, self._retriever, mode=mode, top_k=top_k, pinned=pinned)


@pytest.fixture
def selected(turn: Turn, retriever: Retriever) -> Selected:
    return Selected(turn, retriever)


def shown(turn: Turn) -> list[str]:
    return [each.name for each in turn.tools]


def test_the_tools_that_fit_the_message_are_shown(selected: Selected) -> None:
    selection = selected("create an invoice", top_k=1)
    assert shown(selection.turn) == ["invoice_create"]
    assert [hit.name for hit in selection.hits] == ["invoice_create"]
    assert selection.hits[0].matched


def test_words_nobody_wrote_are_found_by_meaning_only(selected: Selected) -> None:
    assert shown(selected("do I need an umbrella", mode="keyword", top_k=1).turn) != ["weather_today"]
    assert shown(selected("do I need an umbrella", mode="semantic", top_k=1).turn) == ["weather_today"]
    assert "weather_today" in shown(selected("do I need an umbrella", mode="hybrid", top_k=2).turn)


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_at_most_so_many_are_chosen(selected: Selected, mode: Mode) -> None:
    selection = selected("create list invoice customer weather city", mode=mode, top_k=2)
    assert len(selection.hits) == len(selection.turn.tools) == 2


def test_what_is_not_shown_can_still_be_called(selected: Selected) -> None:
    turn = selected("create an invoice", top_k=1).turn
    assert "weather_today" not in shown(turn)
    assert turn.tool("weather_today").name == "weather_today"


def test_a_pinned_tool_is_shown_for_every_message(selected: Selected) -> None:
    turn = selected("create an invoice", top_k=1, pinned=["weather_today"]).turn
    assert shown(turn) == ["invoice_create", "weather_today"]


def test_a_pinned_tool_takes_no_place_from_the_others(selected: Selected) -> None:
    selection = selected("create an invoice", top_k=1, pinned=["invoice_create"])
    assert [hit.name for hit in selection.hits] == ["invoice_list"]
    assert shown(selection.turn) == ["invoice_create", "invoice_list"]


def test_the_runtimes_own_tools_compete_like_any_other(selected: Selected) -> None:
    assert shown(selected("create an invoice", top_k=1).turn) == ["invoice_create"]
    assert shown(selected("read the file", top_k=1).turn) == ["read_file"]


def test_the_runtimes_own_tools_can_be_pinned(selected: Selected) -> None:
    turn = selected("create an invoice", top_k=1, pinned=["read_file"]).turn
    assert shown(turn) == ["invoice_create", "read_file"]


def test_a_message_that_names_a_tool_gets_it(selected: Selected) -> None:
    selection = selected("not an invoice: weather_today", top_k=1)
    assert shown(selection.turn) == ["weather_today"]
    assert selection.hits[0].exact


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_what_was_not_granted_is_not_chosen_however_well_it_fits(selected: Selected, mode: Mode) -> None:
    selection = selected("use lamp_on to switch on the lamp", mode=mode)
    assert "lamp_on" not in shown(selection.turn)
    assert "lamp_on" not in [hit.name for hit in selection.hits]


def test_a_pin_grants_nothing(selected: Selected) -> None:
    turn = selected("switch on the lamp", pinned=["lamp_on", "no_such_tool"]).turn
    assert not {"lamp_on", "no_such_tool"} & set(shown(turn))
    with pytest.raises(OutOfScope):
        turn.tool("lamp_on")


def test_a_tool_that_is_not_offered_is_neither_chosen_nor_pinned(retriever: Retriever) -> None:
    registry = Registry()
    registry.add_all(TOOLS)
    snapshot = registry.snapshot()
    hidden = frozenset({"invoice_create", "lamp_on"})
    turn = assemble(snapshot, frozenset(snapshot), Availability(timeout=5), hidden=hidden)
    selection = Selected(turn, retriever)("create an invoice", pinned=["lamp_on"])
    assert not hidden & set(shown(selection.turn))


@pytest.mark.parametrize("mode", ["keyword", "semantic", "hybrid"])
def test_the_same_tools_stand_in_the_same_order_whatever_their_rank(selected: Selected, mode: Mode) -> None:
    one = selected("weather invoice list", mode=mode, top_k=3).turn
    other = selected("invoice list create weather", mode=mode, top_k=3).turn
    assert shown(one) == shown(other) == sorted(shown(one))


@pytest.mark.parametrize("message", ["", "   ", "\ud800", "!!!", "a" * 100_000])
def test_no_message_is_too_odd_to_select_for(selected: Selected, message: str) -> None:
    assert shown(selected(message, top_k=3, pinned=["read_file"]).turn) == ["read_file"]
    assert len(selected(message, mode="hybrid", top_k=3).turn.tools) <= 3


def test_a_model_that_cannot_answer_leaves_the_keywords(turn: Turn) -> None:
    def broken(texts: Sequence[str]) -> None:
        raise OSError("nobody there")

    selected = Selected(turn, Retriever(Function(broken), None, None))
    assert shown(selected("create an invoice", mode="hybrid", top_k=1).turn) == ["invoice_create"]


def test_the_turn_selected_from_is_left_as_it_was(turn: Turn, selected: Selected) -> None:
    before = shown(turn)
    selected("create an invoice", top_k=1)
    assert shown(turn) == before
