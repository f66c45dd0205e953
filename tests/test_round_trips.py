"""Number of model requests in each mode, measured with a scripted model over HTTP."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cases import check_cases
from toolfold import sample_catalog
from toolfold.selection.retrieval.ranking_metrics import Query

if TYPE_CHECKING:
    from measuring.trips import Outcome

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
LETTER, ROOM, CHAT = (
    Query("letter", "search my inbox for the email from Notary Brandt", ("larkpost_search_messages",)),
    Query(
        "room",
        "create an event tomorrow 14:00-15:30 and book meeting room Juniper for it",
        ("almanac_reserveRoom", "almanac_createEvent"),
    ),
    Query("chat", "thanks, that is all", ()),
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Outcome of one conversation of three messages in every mode."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from measuring.scripted import ScriptedModel, served
        from measuring.trips import MODES, hold, opened, scripted

        home, tools = tmp_path_factory.mktemp("home"), _few_tools()
        script = scripted([LETTER, ROOM, CHAT], tools)
        held = {}
        with served(ScriptedModel(script)) as address:
            for mode in MODES:
                with opened(mode, tools, home) as runtime:
                    held[mode.name] = hold(mode, runtime, address, script, [[LETTER, ROOM, CHAT]])
        yield held
    finally:
        sys.path.remove(str(BENCHMARKS))


def _few_tools() -> list[Any]:
    tools = sample_catalog()
    wanted = {*LETTER.gold, *ROOM.gold}
    others = [tool for tool in tools if tool.name not in wanted][::12]
    return [tool for tool in tools if tool.name in wanted] + others


def model_calls(outcome: Outcome) -> list[int]:
    return [trip.calls for trip in outcome.trips]


def test_scripted_model_calls_every_needed_tool_in_each_tool_presentation_mode(
    outcomes: dict[str, Outcome],
) -> None:
    lost = [(name, trip.id) for name, each in outcomes.items() for trip in each.trips if not trip.served]
    assert len(outcomes) == 8
    assert lost == []


def test_scripted_model_with_all_tools_in_the_request_needs_at_most_two_requests_and_no_search(
    outcomes: dict[str, Outcome],
) -> None:
    assert model_calls(outcomes["eager"]) == [2, 2, 1]
    assert not any(trip.searched for trip in outcomes["eager"].trips)


def test_model_needs_one_request_fewer_if_search_results_contain_tool_signatures(
    outcomes: dict[str, Outcome],
) -> None:
    assert model_calls(outcomes["search, call"])[0] == 3
    assert model_calls(outcomes["search, describe, call"])[0] == 4


@check_cases("placement", ["replace", "append", "tail"])
def test_model_needs_no_tool_search_if_the_needed_tools_were_selected_for_its_message(
    outcomes: dict[str, Outcome], placement: str
) -> None:
    both = outcomes[f"both, {placement}"]
    assert model_calls(both) == model_calls(outcomes["eager"])
    assert not any(trip.searched for trip in both.trips)


def test_every_tool_deferral_mode_sends_fewer_tokens_than_sending_all_tools(
    outcomes: dict[str, Outcome],
) -> None:
    def sent(outcome: Outcome) -> int:
        (talk,) = outcome.talks
        return sum(segment.tokens for request in talk.requests for segment in request.segments)

    whole = sent(outcomes["eager"])
    few_tools = ("eager", "auto")  # so few that "auto" sends all of them
    assert all(sent(each) < whole for name, each in outcomes.items() if name not in few_tools)
    assert sent(outcomes["auto"]) == whole


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a scripted model server whose script has one message."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measuring.scripted import Script, ScriptedModel, served

    with served(ScriptedModel(Script({"go": [frozenset({"sail"})]}, {"sail": {"knots": 5}}))) as url:
        yield url


def ask_model(address: str, *names: str, told: str = "") -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": f"go{told}"}],
        "tools": [{"type": "function", "function": {"name": name}} for name in names],
    }
    request = urllib.request.Request(address, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def called_tools(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


def test_scripted_model_calls_a_needed_tool_directly_if_the_request_contains_it(address: str) -> None:
    assert called_tools(ask_model(address, "row", "sail")) == [("sail", {"knots": 5})]


def test_scripted_model_calls_tool_search_if_the_needed_tool_is_not_in_the_request(address: str) -> None:
    assert called_tools(ask_model(address, "row", "tool_search")) == [("tool_search", {"query": "go"})]


def test_scripted_model_uses_the_tool_call_bridge_for_a_tool_described_in_the_user_message(
    address: str,
) -> None:
    message = ask_model(
        address, "tool_search", "tool_call", told="\n\n<tools>\n- sail(knots: integer): Go.\n</tools>"
    )
    assert called_tools(message) == [("tool_call", {"name": "sail", "arguments": {"knots": 5}})]


def test_scripted_model_calls_no_tool_if_the_needed_tool_and_tool_search_are_missing(address: str) -> None:
    assert not ask_model(address, "row").get("tool_calls")
