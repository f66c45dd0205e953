"""Learning from use: which messages, searches and calls of sessions are learned from, and which never are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RuntimeOpener
from toolfold import Runtime, Session, build_tool
from toolfold.core.errors import ToolFailed
from toolfold.core.types import CallContext, Caller, Json
from toolfold.models.wire import WIRES
from toolfold.selection.retrieval.learned_store import LearnedMessage
from toolfold.serving.proxy.folding import Folder
from toolfold.serving.proxy.tool_catalogs import Catalogs

LIGHT: Mapping[str, object] = {
    "tools.rag_embed_model": "light",
    "tools.selection": "hybrid",
    "tools.rag_top_k": 2,
}
POOL = "is the swimming pool open this evening"
SECRET = "sk-ant-api03-" + "A1b2C3d4" * 10


def run_quietly(_args: Json, _context: CallContext) -> Json:
    return {"text": "ignore this: the zeppelin museum is open all night"}


def run_badly(_args: Json, _context: CallContext) -> Json:
    raise ToolFailed("the place is unknown")


def add_tools(runtime: Runtime) -> Runtime:
    for name, description, handler in (
        (
            "place_hours",
            "Return the opening hours of a place, such as a pool, by day of the week",
            run_quietly,
        ),
        ("plan_route", "Plan a route between two places, by car or on foot", run_quietly),
        ("book_ticket", "Book tickets for a pool, a museum or a concert", run_badly),
        *((f"ledger_{n}", f"Book entry type {n} in the ledger of a company", run_quietly) for n in range(12)),
    ):
        schema = {"description": description}
        runtime.registry.add(build_tool(name=name, toolset="city", schema=schema, handler=handler))
    return runtime


@pytest.fixture
def city(open_test_runtime: RuntimeOpener) -> Runtime:
    return add_tools(open_test_runtime(LIGHT))


def list_learned(runtime: Runtime, *names: str) -> list[LearnedMessage]:
    assert runtime.usage is not None
    runtime.usage.wait()
    tools = runtime.registry.snapshot()
    chosen = names or [name for name in tools if tools[name].toolset == "city"]
    return [row for name in chosen for row in runtime.retriever.learned.find(tools[name])]


def say(session: Session, message: str | list[dict[str, Any]], *tools: str) -> None:
    session.assemble(message)
    for name in tools:
        session.call_sync(name, {})


def test_user_message_is_learned_for_the_tool_that_is_called_successfully_afterwards(city: Runtime) -> None:
    session = city.session()
    say(session, POOL, "place_hours")
    (row,) = list_learned(city)
    assert (row.name, row.text, row.origin, row.client, row.uses) == ("place_hours", POOL, "message", "", 1)
    say(session, "what is the weather like today?")
    say(session, POOL, "place_hours")
    assert [row.uses for row in list_learned(city)] == [2]


def test_tool_with_two_learned_messages_is_selected_for_a_similar_message(city: Runtime) -> None:
    session = city.session()
    for message in ("do the bath people let us in tonight", "will the bath people let us in on Sunday"):
        say(session, message, "place_hours")
    list_learned(city)
    selection = session.assemble("do the bath people let us in tomorrow").selection
    assert selection is not None
    assert selection.why["place_hours"] == "fits the message, as learned from use"


def test_tool_search_query_is_learned_for_a_found_tool_that_is_called_successfully_afterwards(
    city: Runtime,
) -> None:
    session = city.session()
    session.call_sync("tool_search", {"query": "opening hours of the pool"})
    session.call_sync("tool_call", {"name": "place_hours", "arguments": {}})
    assert [(row.text, row.origin) for row in list_learned(city)] == [("opening hours of the pool", "search")]


def test_tool_search_query_is_not_learned_for_a_tool_that_is_missing_from_its_results(
    city: Runtime,
) -> None:
    session = city.session()
    session.call_sync("tool_search", {"query": "opening hours of the pool", "limit": 1})
    session.call_sync("plan_route", {})
    assert list_learned(city) == []


def test_user_message_is_not_learned_for_a_tool_whose_call_failed(city: Runtime) -> None:
    say(city.session(), "book two tickets for the pool", "book_ticket")
    assert list_learned(city) == []


def test_text_of_a_tool_result_is_never_learned_as_an_example_message(city: Runtime) -> None:
    session = city.session()
    call = {"id": "1", "type": "function", "function": {"name": "place_hours", "arguments": "{}"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": POOL},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "plan a route to the zeppelin museum"},
    ]
    say(session, history, "plan_route")
    assert {row.text for row in list_learned(city)} == {POOL}


def test_secrets_are_redacted_before_a_learned_message_is_stored(city: Runtime, home: Path) -> None:
    say(city.session(), f"open the pool with the key {SECRET} please", "place_hours")
    (row,) = list_learned(city)
    assert SECRET not in row.text
    assert "pool" in row.text
    files = [file for file in (home / "state" / "learned").iterdir() if file.is_file()]
    assert files
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]


def test_message_that_a_model_sends_to_a_sub_agent_is_not_learned(city: Runtime) -> None:
    say(city.session().delegate(), POOL, "place_hours")
    assert list_learned(city) == []


def test_message_above_the_length_limit_is_not_learned(city: Runtime) -> None:
    say(city.session(), "open the pool " * 40, "place_hours")
    assert list_learned(city) == []


def test_tool_search_query_is_learned_even_if_the_user_message_is_too_long_to_be_learned(
    city: Runtime,
) -> None:
    session, message = city.session(), "open the pool " * 40
    session.assemble(message)
    session.call_sync("tool_search", {"query": "opening hours of the pool"})
    session.assemble(message)  # the same message again, as with each request of an agent
    session.call_sync("place_hours", {})
    assert [row.text for row in list_learned(city)] == ["opening hours of the pool"]


def test_message_is_learned_only_for_the_first_three_of_five_tools_called_afterwards(city: Runtime) -> None:
    names = ("place_hours", "plan_route", "ledger_1", "ledger_2", "ledger_3")
    say(city.session(), "check the pool and write it into the ledger", *names)
    assert [row.name for row in list_learned(city, *names)] == list(names[:3])


def test_learned_messages_are_stored_with_the_name_of_the_gateway_client_of_the_call(
    city: Runtime,
) -> None:
    for name in ("alice", "bob"):
        session = city.session(caller=Caller(name))
        session.call_sync("tool_search", {"query": "opening hours of the pool"})
        session.call_sync("place_hours", {})
    assert sorted(row.client for row in list_learned(city)) == ["alice", "bob"]


def test_learned_message_counts_a_miss_if_another_tool_is_called_for_the_same_message(
    city: Runtime,
) -> None:
    session = city.session()
    say(session, POOL, "place_hours")
    say(session, "how do I get to the lake?")
    say(session, POOL, "plan_route")
    say(session, "thanks a lot for the help")
    assert {row.name: row.misses for row in list_learned(city)} == {"place_hours": 1, "plan_route": 0}


def test_user_message_is_not_stored_after_a_successful_call_if_learning_is_disabled(
    open_test_runtime: RuntimeOpener, home: Path
) -> None:
    runtime = add_tools(open_test_runtime({**LIGHT, "tools.learn_from_use": False}))
    say(runtime.session(), POOL, "place_hours")
    assert list_learned(runtime) == []
    assert not (home / "state" / "learned").exists()


def test_call_succeeds_even_if_the_learned_message_cannot_be_stored(
    city: Runtime, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "state").mkdir(exist_ok=True)
    (home / "state" / "learned").write_text("a file instead of a directory")
    session = city.session()
    session.assemble(POOL)
    assert session.call_sync("place_hours", {}).ok
    assert city.usage is not None
    city.usage.wait()
    assert "messages learned from use are not used" in caplog.text
    assert "Traceback" not in caplog.text
    assert json.loads(session.call_sync("tool_search", {"query": "opening hours"}).text)["matches"]


def test_project_settings_alone_cannot_enable_learning(
    open_test_runtime: RuntimeOpener, tmp_path: Path, home: Path
) -> None:
    home.joinpath("config.yaml").write_text("tools: {learn_from_use: false}\n")
    tmp_path.joinpath("toolfold.yaml").write_text("tools: {learn_from_use: true}\n")
    assert not open_test_runtime().retriever.learned.enabled


def test_proxy_learns_the_user_message_of_a_client_request_with_a_successful_tool_result(
    city: Runtime,
) -> None:
    wire = WIRES["messages"]
    tools = [
        {"name": f"mcp__city__{name}", "description": text, "input_schema": {"type": "object"}}
        for name, text in (
            ("hours", "Return the opening hours of a place, such as a pool"),
            ("route", "Plan a route between two places"),
            *((f"ledger{n}", f"Book entry type {n} in the ledger of a company") for n in range(40)),
        )
    ]
    messages: list[Json] = [{"role": "user", "content": POOL}]
    for number, (name, failed) in enumerate((("mcp__city__hours", False), ("mcp__city__route", True))):
        use = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "…", "is_error": failed}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    catalogs = Catalogs(city)
    folder = Folder(catalogs)
    body = {"model": "claude-opus-4-5", "tools": tools, "messages": messages}
    for _ in range(2):
        folder.fold(body, wire, "token 1", Caller("laptop"))
    assert city.usage is not None
    city.usage.wait()
    rows = city.retriever.learned._rows
    assert [(row.name, row.text, row.client, row.uses) for row in rows] == [
        ("mcp__city__hours", POOL, "laptop", 1)
    ]
    catalogs.close()
