"""What an agent brings to a session: the state of the tools it runs itself."""

from __future__ import annotations

from typing import Any

from toolfold.agent.todo import Todo, TodoList
from toolfold.errors import NeedsAgent
from toolfold.model import Json

__all__ = ["LocalAgent", "Todo", "TodoList"]


class LocalAgent:
    """Agent services for one conversation in this process: a plan."""

    def __init__(self) -> None:
        self.todos = TodoList()

    @property
    def offers(self) -> frozenset[str]:
        return frozenset({"todo"})

    def run(self, name: str, args: Json) -> Any:
        """Run one of the tools offered."""
        if name not in self.offers:
            raise NeedsAgent(name)
        return self.todos.run(args)
