"""The setting `tools.selection: auto`: all tools below the threshold; selection and tool search above it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Runtime
from toolfold.core.types import BRIDGE_NAMES, Json, ToolCall, ToolResult
from toolfold.models import DIALECTS, DialectName, get_dialect
from toolfold.selection.turn import Conversation
from toolfold.selection.turn.placement import Request
from toolfold.serving.dashboard.playground_routes import explain_message
from toolfold.tools.catalog import sample_catalog

BUILTIN = {"write_file", "patch", "todo", "memory", "execute_code", "clarify", "terminal", "read_file"}
QUESTION = "Where is the parcel that we sent to Lisbon?"


@pytest.fixture
def open_auto(open_test_runtime: RuntimeOpener) -> Any:
    def open_with_tools(count: int, **settings: object) -> Runtime:
        given = {f"tools.{key}": value for key, value in settings.items()}
        runtime = open_test_runtime({"tools.rag_embed_model": "light", **given})
        runtime.registry.add_all(list(sample_catalog())[:count])
        return runtime

    return open_with_tools


def names(tools: Sequence[Json]) -> set[str]:
    return {str(each.get("name") or each["function"]["name"]) for each in tools}


def ask(runtime: Runtime, **options: Any) -> Request:
    return runtime.session().request([{"role": "user", "content": QUESTION}], **options)


def test_every_tool_is_sent_as_in_eager_mode_below_the_threshold(open_auto: Any) -> None:
    auto, eager = ask(open_auto(5)), ask(open_auto(5, selection="eager"))
    assert (auto.tools, auto.messages) == (eager.tools, eager.messages)
    assert names(auto.tools) == auto.turn.offered_names
    assert auto.turn.why.endswith("below the threshold of 20,000, for an unknown context window")


def test_builtin_tools_are_sent_and_other_tools_are_selected_and_searchable_above_the_threshold(
    open_auto: Any,
) -> None:
    request = ask(open_auto(300))
    core = {tool.name for tool in request.turn.offered if tool.core}
    assert core >= BUILTIN & request.turn.offered_names
    assert names(request.tools) == core | BRIDGE_NAMES
    assert request.turn.selection
    assert "track" in request.tail
    assert "at or above the threshold of 20,000" in request.turn.why


def test_every_tool_is_sent_in_auto_mode_if_tool_search_is_off(open_auto: Any) -> None:
    request = ask(open_auto(300, **{"tool_search.enabled": "off"}))
    assert names(request.tools) == request.turn.offered_names
    assert (request.turn.why, request.tail) == ("tool search is off", "")


def test_model_with_a_small_context_window_gets_a_selection_and_one_with_a_large_window_all_tools(
    open_auto: Any,
) -> None:
    runtime = open_auto(40)
    assert ask(runtime, model="claude-sonnet-4-5").turn.searchable is False
    turn = runtime.session(context_tokens=8_000).assemble(QUESTION)
    assert turn.searchable
    assert turn.selection is not None


def test_selecting_modes_keep_only_the_pinned_tools_in_the_array(open_auto: Any) -> None:
    request = ask(open_auto(300, selection="hybrid", **{"tool_search.enabled": "on"}), model="gpt-5.4")
    assert names(request.tools) == {"read_file", "search_files", "terminal"} | BRIDGE_NAMES


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("form", DIALECTS)
@pytest.mark.parametrize("model", ["", "llama3"])
def test_each_request_repeats_the_previous_one_byte_for_byte(
    open_auto: Any, form: DialectName, native: bool, model: str
) -> None:
    if native and form == "openai":
        pytest.skip("this dialect has no native form")
    dialect = get_dialect(form)
    session = open_auto(300).session()
    history: list[Json] = []
    requests: list[Request] = []

    def send() -> Request:
        requests.append(session.request(history, form=form, native=native, model=model))
        return requests[-1]

    def run(name: str, **arguments: Any) -> None:
        number = len(requests)
        call = dialect.render_calls("", [_call(name, arguments, number)])
        answered = session.call_sync(name, arguments, call_id=f"call-{number}")
        history.extend([*call, *requests[-1].answer(answered)])

    for text in (QUESTION, "And what will the weather be there tomorrow?", "Thanks."):
        history.append(dialect.user_message(text))
        send()
        run("tool_search", queries=["create an invoice", "book a table at a restaurant"])
        send()
        history.append(dialect.assistant_message("Done."))
    for earlier, later in itertools.pairwise(requests):
        assert json.dumps(earlier.tools) == json.dumps(later.tools)
        assert json.dumps(later.messages).startswith(json.dumps(earlier.messages)[:-1])
        assert not later.reset
    notes = [each for each in map(json.dumps, requests[-1].messages) if "Tools that may fit" in each]
    assert len(notes) <= 2  # none for the results of a search, and none for thanks
    if form == "anthropic":
        assert not [each for each in notes if "tool_result" in each]


def _call(name: str, arguments: Json, number: int) -> Any:
    return ToolCall(name, arguments, f"call-{number}")


@pytest.mark.parametrize("count", [5, 300])
def test_playground_shows_what_a_session_sends_and_the_same_reason(open_auto: Any, count: int) -> None:
    runtime = open_auto(count)
    report = explain_message(runtime, {"message": QUESTION})
    request = ask(runtime)
    turn = runtime.session().assemble(QUESTION)
    assert report["settings"]["mode"] == "auto"
    assert set(report["selected"]) == {tool.name for tool in turn.tools}
    assert set(report["request"]["array"]) == names(request.tools)
    assert report["request"]["tail"] == request.tail
    assert report["why"] == request.turn.why == turn.why


def test_text_beside_a_native_search_result_is_no_message_of_the_user() -> None:

    request = get_dialect("anthropic")
    found = ToolResult(
        call_id="1", name="tool_search", text='{"matches": [{"name": "a"}], "total_available": 3}'
    )
    definition = {"type": "function", "function": {"name": "a", "description": "", "parameters": {}}}
    messages = request.render_results([found], deferred={"a": definition})
    said = Conversation.from_messages([request.user_message("Find a."), *messages])
    assert said.user_texts == ("Find a.",)
