"""Selection shows fewer tools; it takes nothing away."""

from __future__ import annotations

from typing import Any

import pytest

from toolfold.authoring import build_tool
from toolfold.availability import Availability
from toolfold.errors import OutOfScope
from toolfold.model import Tool
from toolfold.registry import Registry
from toolfold.turn import Turn, assemble, select


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


@pytest.fixture
def turn() -> Turn:
    registry = Registry()
    registry.add_all(TOOLS)
    granted = frozenset(registry.snapshot()) - {"lamp_on"}
    return assemble(registry.snapshot(), granted, Availability(timeout=5))


def shown(turn: Turn) -> list[str]:
    return [each.name for each in turn.tools]


def test_the_tools_that_fit_the_message_are_shown(turn: Turn) -> None:
    selection = select(turn, "create an invoice", top_k=1, pinned=())
    assert shown(selection.turn) == ["invoice_create", "read_file"]
    assert [hit.name for hit in selection.hits] == ["invoice_create"]
    assert "invoice" in selection.hits[0].matched


def test_at_most_so_many_are_chosen(turn: Turn) -> None:
    selection = select(turn, "create list invoice customer weather city", top_k=2, pinned=())
    assert len(selection.hits) == 2


def test_what_is_not_shown_can_still_be_called(turn: Turn) -> None:
    selected = select(turn, "create an invoice", top_k=1, pinned=()).turn
    assert "weather_today" not in shown(selected)
    assert selected.tool("weather_today").name == "weather_today"


def test_a_pinned_tool_is_shown_for_every_message(turn: Turn) -> None:
    selected = select(turn, "create an invoice", top_k=1, pinned=["weather_today"]).turn
    assert shown(selected) == ["invoice_create", "read_file", "weather_today"]


def test_a_pinned_tool_takes_no_place_from_the_others(turn: Turn) -> None:
    selection = select(turn, "create an invoice", top_k=1, pinned=["invoice_list"])
    assert [hit.name for hit in selection.hits] == ["invoice_create"]


def test_the_runtimes_own_tools_are_shown_for_every_message(turn: Turn) -> None:
    assert shown(select(turn, "xyzzy", top_k=8, pinned=()).turn) == ["read_file"]


def test_a_pin_grants_nothing(turn: Turn) -> None:
    selected = select(turn, "switch on the lamp", top_k=8, pinned=["lamp_on"]).turn
    assert "lamp_on" not in shown(selected)
    with pytest.raises(OutOfScope):
        selected.tool("lamp_on")


def test_the_same_tools_stand_in_the_same_order_whatever_their_rank(turn: Turn) -> None:
    one = select(turn, "weather invoice list", top_k=3, pinned=()).turn
    other = select(turn, "invoice list create weather", top_k=3, pinned=()).turn
    assert shown(one) == shown(other) == sorted(shown(one))


@pytest.mark.parametrize("message", ["", "   ", "\ud800", "!!!", "a" * 100_000])
def test_no_message_is_too_odd_to_select_for(turn: Turn, message: str) -> None:
    assert shown(select(turn, message, top_k=3, pinned=()).turn) == ["read_file"]


def test_the_turn_selected_from_is_left_as_it_was(turn: Turn) -> None:
    before = shown(turn)
    select(turn, "create an invoice", top_k=1, pinned=())
    assert shown(turn) == before
