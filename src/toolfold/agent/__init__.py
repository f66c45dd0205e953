"""The agent: a loop between a model and its tools, with stored sessions.

`Agent` is the entry point. `LocalAgent` offers the plan tool to sessions without a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolfold.agent.agent import Agent
    from toolfold.agent.agent_limits import AgentLimits
    from toolfold.agent.agent_services import LocalAgent
    from toolfold.agent.conversation import TurnResult
    from toolfold.agent.todo import Todo, TodoList

__all__ = ["Agent", "AgentLimits", "LocalAgent", "Todo", "TodoList", "TurnResult"]

_MODULES = {
    "Agent": "agent",
    "AgentLimits": "agent_limits",
    "LocalAgent": "agent_services",
    "Todo": "todo",
    "TodoList": "todo",
    "TurnResult": "conversation",
}


def __getattr__(name: str) -> Any:
    """Import a public name of this package on first use, because most programs need only a few names."""
    if name not in _MODULES:
        raise AttributeError(f"module 'toolfold.agent' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolfold.agent.{_MODULES[name]}"), name)
