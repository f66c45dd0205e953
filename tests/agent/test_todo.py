from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cases import check_cases
from toolfold import Runtime, ToolResult
from toolfold.agent import LocalAgent, TodoList
from toolfold.agent.todo import MAX_ITEMS
from toolfold.core.errors import CallError, NeedsAgent
from toolfold.core.types import AgentServices


@pytest.fixture
def fast_thread_switching() -> Iterator[None]:
    """Switch threads so often that a missing lock is noticed."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def item(name: str, status: str = "pending", content: str = "do it") -> dict[str, str]:
    return {"id": name, "content": content, "status": status}


def ids(answer: dict[str, Any]) -> list[str]:
    return [each["id"] for each in answer["todos"]]


def test_todo_tool_returns_an_empty_plan_before_the_first_write() -> None:
    assert TodoList().run({}) == {"todos": [], "summary": {}}


def test_result_of_the_todo_tool_contains_the_current_plan() -> None:
    plan = TodoList()
    answer = plan.run({"todos": [item("b", "in_progress"), item("a"), item("c")]})
    assert answer == {
        "todos": [item("b", "in_progress"), item("a"), item("c")],
        "summary": {"in_progress": 1, "pending": 2},
    }
    assert plan.run({}) == answer


def test_writing_todos_replaces_the_whole_plan() -> None:
    plan = TodoList()
    plan.run({"todos": [item("a"), item("b")]})
    assert ids(plan.run({"todos": [item("c")]})) == ["c"]
    assert ids(plan.run({"todos": []})) == []


def test_merging_todos_updates_items_with_existing_ids_and_appends_items_with_new_ids() -> None:
    plan = TodoList()
    plan.run({"todos": [item("a"), item("b")]})
    answer = plan.run({"todos": [item("new"), item("a", "completed")], "merge": True})
    assert ids(answer) == ["a", "b", "new"]
    assert answer["todos"][0]["status"] == "completed"
    assert answer["summary"] == {"completed": 1, "pending": 2}


@check_cases("merge", [True, False])
def test_todos_with_duplicate_ids_are_rejected_and_the_plan_stays_unchanged(merge: bool) -> None:
    plan = TodoList()
    before = plan.run({"todos": [item("a")]})
    with pytest.raises(CallError, match=r"Two items have the id 'b'\. Nothing was written"):
        plan.run({"todos": [item("b"), item("b", "completed")], "merge": merge})
    assert plan.run({}) == before


def test_adding_more_todos_than_the_maximum_is_rejected_and_the_plan_stays_unchanged() -> None:
    plan = TodoList()
    before = plan.run({"todos": [item(str(number)) for number in range(MAX_ITEMS)]})
    with pytest.raises(CallError, match=f"the maximum is {MAX_ITEMS}. Nothing was written"):
        plan.run({"todos": [item("one more")], "merge": True})
    assert plan.run({}) == before


def test_changing_the_result_of_the_todo_tool_does_not_change_the_stored_plan() -> None:
    plan = TodoList()
    plan.run({"todos": [item("a")]})["todos"][0]["status"] = "completed"
    assert plan.run({})["todos"] == [item("a")]


def test_concurrent_todo_tool_calls_lose_no_items(fast_thread_switching: None) -> None:
    plan = TodoList()
    together = threading.Barrier(8, timeout=60)

    def work(worker: int) -> None:
        together.wait()
        for number in range(worker, MAX_ITEMS, 8):
            plan.run({"todos": [item(str(number))], "merge": True})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=60))
    assert sorted(ids(plan.run({})), key=int) == [str(number) for number in range(MAX_ITEMS)]


def test_local_agent_runs_the_todo_tool_and_raises_needs_agent_for_the_memory_tool() -> None:
    agent = LocalAgent()
    assert isinstance(agent, AgentServices)
    assert agent.offers == {"todo"}
    assert agent.run("todo", {"todos": [item("a")]})["todos"] == [item("a")]
    with pytest.raises(NeedsAgent, match="'memory' is run by the agent itself"):
        agent.run("memory", {"action": "add"})


class TestTodoInSession:
    def call(self, runtime: Runtime, agent: LocalAgent, *calls: dict[str, Any]) -> Sequence[ToolResult]:
        session = runtime.session(["todo"], agent=agent)
        return [session.call_sync("todo", args) for args in calls]

    def test_todo_plan_written_in_one_call_is_returned_by_a_later_call_of_the_same_agent(
        self, runtime: Runtime
    ) -> None:
        agent = LocalAgent()
        self.call(runtime, agent, {"todos": [item("a")]})
        (read,) = self.call(runtime, agent, {})
        assert read.value["todos"] == [item("a")]

    def test_agents_have_separate_todo_plans(self, runtime: Runtime) -> None:
        self.call(runtime, LocalAgent(), {"todos": [item("a")]})
        (read,) = self.call(runtime, LocalAgent(), {})
        assert read.value["todos"] == []

    def test_todo_plan_sent_as_json_text_is_parsed(self, runtime: Runtime) -> None:
        (written,) = self.call(
            runtime,
            LocalAgent(),
            {"todos": '[{"id": "a", "content": "do it", "status": "pending"}]', "merge": "false"},
        )
        assert written.value["todos"] == [item("a")]

    @pytest.mark.parametrize(
        "todos",
        [
            [item("a", "done")],
            [item("")],
            [item("a", content="")],
            [{"id": "a", "content": "do it"}],
            [{**item("a"), "owner": "me"}],
            [item(str(number)) for number in range(MAX_ITEMS + 1)],
            "tomorrow",
        ],
    )
    def test_invalid_todo_plan_is_rejected_and_the_previous_plan_stays_unchanged(
        self, todos: Any, runtime: Runtime
    ) -> None:
        agent = LocalAgent()
        _, refused, read = self.call(runtime, agent, {"todos": [item("a")]}, {"todos": todos}, {})
        assert "'todo' was not invoked" in str(refused.error)
        assert read.value["todos"] == [item("a")]

    def test_todo_tool_called_with_null_returns_the_current_plan(self, runtime: Runtime) -> None:
        _, read = self.call(runtime, LocalAgent(), {"todos": [item("a")]}, {"todos": None})
        assert read.value["todos"] == [item("a")]

    def test_todo_call_with_a_duplicate_id_returns_an_error_to_the_model(self, runtime: Runtime) -> None:
        (refused,) = self.call(runtime, LocalAgent(), {"todos": [item("a"), item("a")]})
        assert refused.error == "Two items have the id 'a'. Nothing was written."
