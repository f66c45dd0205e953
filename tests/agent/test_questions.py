"""The `clarify` tool: questions of the model to the user."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfold import Agent, Runtime, ToolCall
from toolfold.agent.questions import MAX_ANSWER_CHARS, UserQuestions
from toolfold.core.events import ToolFinished, ToolStarted
from toolfold.core.types import Asker, Json, UserQuestion
from toolfold.models.scripted import ScriptedProvider, ScriptedReply, Step
from toolfold.state.store import SqliteSessionStore

HARBOURS = ["Porto", "Faro"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(tmp_path / "sessions.db")
    yield store
    store.close()


def asking_agent(runtime: Runtime, store: SqliteSessionStore, asker: Asker | None, **arguments: Any) -> Agent:
    asking = ScriptedReply(calls=[ToolCall("clarify", {"question": "Which harbour?", **arguments})])
    return Agent(ScriptedProvider([asking, "Thanks."]), runtime=runtime, store=store, asker=asker)


def result_of(agent: Agent) -> Json:
    """Return the result of the `clarify` call in the agent's conversation."""
    content: Json = json.loads(agent.history.messages[2]["content"])
    return content


def shown_names(agent: Agent) -> set[str]:
    return {each["function"]["name"] for each in agent.session.definitions()}


async def test_return_value_of_a_blocking_ask_function_is_the_result_of_the_clarify_tool(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    asked: list[UserQuestion] = []

    def ask(question: UserQuestion) -> str:
        asked.append(question)
        return "  Faro\n"

    agent = asking_agent(runtime, store, ask, choices=HARBOURS)
    events = [event async for event in agent.stream("Book a berth")]
    assert [(each.text, each.choices, each.session_id) for each in asked] == [
        ("Which harbour?", ("Porto", "Faro"), agent.session_id)
    ]
    assert result_of(agent) == {"answer": "Faro"}
    assert [each.tool for each in events if isinstance(each, (ToolStarted, ToolFinished))] == ["clarify"] * 2
    assert "clarify" in shown_names(agent)


async def test_return_value_of_an_async_ask_function_is_the_result_of_the_clarify_tool(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    async def ask(question: UserQuestion) -> str:
        await asyncio.sleep(0)
        return question.text.upper()

    agent = asking_agent(runtime, store, ask)
    await agent.run("Book a berth")
    assert result_of(agent) == {"answer": "WHICH HARBOUR?"}


async def test_clarify_tool_is_hidden_and_returns_an_error_if_the_agent_has_no_ask_function(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    agent = asking_agent(runtime, store, None)
    assert "clarify" not in shown_names(agent)
    await agent.run("Book a berth")
    assert result_of(agent)["error"].startswith("Nobody can answer questions in this session.")


@pytest.mark.parametrize("answer", [None, "", "  \n", 7, True])
async def test_empty_or_non_text_return_value_of_the_ask_function_is_reported_as_no_answer(
    runtime: Runtime, store: SqliteSessionStore, answer: Any
) -> None:
    agent = asking_agent(runtime, store, lambda _: answer)
    assert (await agent.run("Book a berth")).ok
    assert result_of(agent)["answer"] is None
    assert result_of(agent)["note"].startswith("The user did not answer.")


async def test_clarify_tool_reports_that_the_question_could_not_be_shown_if_the_ask_function_raises(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    def ask(_: UserQuestion) -> str:
        raise OSError("the terminal is gone")

    agent = asking_agent(runtime, store, ask)
    assert (await agent.run("Book a berth")).text == "Thanks."
    assert result_of(agent)["note"].startswith("The question could not be shown")
    assert "terminal is gone" not in json.dumps(agent.history.messages)


async def test_interrupting_the_agent_withdraws_its_open_question_to_the_user(
    runtime: Runtime, store: SqliteSessionStore
) -> None:
    shown, closed = threading.Event(), threading.Event()

    def ask(question: UserQuestion) -> None:
        shown.set()
        question.withdrawn.wait(60)
        closed.set()

    agent = asking_agent(runtime, store, ask)
    work = asyncio.create_task(agent.run("Book a berth"))
    assert await asyncio.to_thread(shown.wait, 60)
    agent.interrupt()
    assert (await work).reason == "interrupted"
    assert await asyncio.to_thread(closed.wait, 60)


async def test_unanswered_question_to_the_user_is_withdrawn_after_the_timeout() -> None:
    withdrawn = threading.Event()

    def ask(question: UserQuestion) -> str:
        question.withdrawn.wait(60)
        withdrawn.set()
        return "too late"

    answer = await UserQuestions("s", ask, timeout_s=0.05).run({"question": "Which harbour?"})
    assert answer["answer"] is None
    assert await asyncio.to_thread(withdrawn.wait, 60)


async def test_long_answer_of_the_user_to_a_question_is_truncated() -> None:
    answer = await UserQuestions("s", lambda _: "x" * (MAX_ANSWER_CHARS + 1), timeout_s=60).run(
        {"question": "Which harbour?"}
    )
    assert len(answer["answer"]) == MAX_ANSWER_CHARS
    assert "cut" in answer["note"]


async def test_sub_agent_cannot_ask_the_user_questions(runtime: Runtime, store: SqliteSessionStore) -> None:
    asked: list[UserQuestion] = []
    steps: list[Step] = [
        ScriptedReply(calls=[ToolCall("delegate_task", {"goal": "Book a berth"})]),
        ScriptedReply(calls=[ToolCall("clarify", {"question": "Which harbour?"})]),
        "I could not ask.",
        "Done.",
    ]
    agent = Agent(ScriptedProvider(steps), runtime=runtime, store=store, asker=asked.append)
    assert (await agent.run("Delegate it")).text == "Done."
    assert asked == []
    assert "I could not ask." in agent.history.messages[2]["content"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"question": ""},
        {"question": "x" * 4_001},
        {"question": "Which?", "choices": ["one"]},
        {"question": "Which?", "choices": ["same", "same"]},
        {"question": "Which?", "choices": [str(number) for number in range(9)]},
        {"question": "Which?", "choices": ["a", "b" * 301]},
    ],
)
async def test_clarify_call_with_an_invalid_question_or_invalid_choices_is_not_shown_to_the_user(
    runtime: Runtime, store: SqliteSessionStore, arguments: Json
) -> None:
    asked: list[UserQuestion] = []
    agent = Agent(ScriptedProvider([]), runtime=runtime, store=store, asker=asked.append)
    result = await agent.session.call("clarify", arguments)
    assert result.error is not None
    assert asked == []
