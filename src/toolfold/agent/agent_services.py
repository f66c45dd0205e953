"""Run the tools that use the agent's state: plan, memory, session search, delegation, questions.

They belong to one session. Their schemas are in `tools/agent.py`.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import Any

from toolfold.agent.memory import Memory
from toolfold.agent.questions import UserQuestions
from toolfold.agent.todo import TodoList
from toolfold.core.errors import NeedsAgent
from toolfold.core.types import Asker, Json
from toolfold.state.store import SessionStore
from toolfold.tools.builtin.agent import ANSWER_TIMEOUT_S

Delegate = Callable[[Json], Awaitable[Json]]


class AgentTools:
    """Tools that use the state of an agent session: plan, memory, session search, delegation, questions."""

    def __init__(
        self,
        session_id: str,
        store: SessionStore,
        *,
        memory: Memory | None = None,
        delegate: Delegate | None = None,
        asker: Asker | None = None,
    ) -> None:
        self._session_id, self._store = session_id, store
        self._memory, self._delegate = memory, delegate
        self._questions = UserQuestions(session_id, asker, timeout_s=ANSWER_TIMEOUT_S)
        self.todos = TodoList()

    @property
    def offers(self) -> frozenset[str]:
        """Return the names of the tools that `run` supports in this session, such as `todo` and `memory`."""
        offered = {"todo", "session_search"}
        offered |= {"memory"} if self._memory is not None else set()
        offered |= {"delegate_task"} if self._delegate is not None else set()
        offered |= {"clarify"} if self._questions.can_ask else set()
        return frozenset(offered)

    def run(self, name: str, args: Json) -> Any:
        """Run `todo`, `memory`, `session_search`, `delegate_task` or `clarify`, and return its result."""
        if name not in self.offers:
            raise NeedsAgent(name)
        match name:
            case "clarify":
                return self._questions.run(args)
            case "todo":
                return self.todos.run(args)
            case "session_search":
                return self._search_sessions(args)
            case "memory" if self._memory is not None:
                return self._memory.run(args)
            case "delegate_task" if self._delegate is not None:
                return self._delegate(args)
        raise NeedsAgent(name)

    def _search_sessions(self, args: Json) -> Json:
        found = self._store.search_messages(
            args["query"], limit=args.get("limit") or 5, without_session=self._session_id
        )
        return {
            "matches": [
                {
                    "session": match.session_id,
                    "title": match.title,
                    "date": f"{datetime.datetime.fromtimestamp(match.created).astimezone():%Y-%m-%d %H:%M}",
                    "role": match.role,
                    "text": match.snippet,
                }
                for match in found
            ]
        }


class LocalAgent:
    """Replacement for an agent in sessions without a model (`toolfold call`); runs only the tool `todo`."""

    def __init__(self) -> None:
        self.todos = TodoList()

    @property
    def offers(self) -> frozenset[str]:
        """Return the names of the tools that `run` supports without a model: `todo` only."""
        return frozenset({"todo"})

    def run(self, name: str, args: Json) -> Any:
        """Run the tool `todo`. Raises NeedsAgent for other tools, which need an agent with a model."""
        if name not in self.offers:
            raise NeedsAgent(name)
        return self.todos.run(args)
