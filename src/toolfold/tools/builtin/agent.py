"""Schemas of the tools that use an agent's state: plan, memory, session search, delegation …

Without an agent that offers them, a call is answered with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolfold.core.errors import CallError, NeedsAgent
from toolfold.core.types import AgentServices, CallContext, Effect, Handler, Json, Source, Tool
from toolfold.tools.builtin import Services
from toolfold.tools.builtin._builtin import build_builtin_tool

_TODO: Json = {
    "description": (
        "Keep the plan for a task of several steps. Call without `todos` to read it; give `todos` to write"
        " it. Keep one item in progress and mark items completed as soon as they are."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "maxItems": 200,
                "description": "Items to write, in order of priority.",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "minLength": 1, "maxLength": 64},
                        "content": {"type": "string", "minLength": 1, "maxLength": 2000},
                        "status": {"enum": ["pending", "in_progress", "completed", "cancelled"]},
                    },
                    "required": ["id", "content", "status"],
                    "additionalProperties": False,
                },
            },
            "merge": {
                "type": "boolean",
                "default": False,
                "description": "Change and add the given items by id, instead of replacing the whole list.",
            },
        },
        "additionalProperties": False,
    },
}
_MEMORY: Json = {
    "description": "Remember a lasting fact about the user or the work, or change or forget one.",
    "parameters": {
        "type": "object",
        "properties": {
            "action": {"enum": ["add", "replace", "remove"]},
            "content": {"type": "string", "description": "The fact, for add and replace."},
            "old": {"type": "string", "description": "Words of the fact to replace or remove."},
        },
        "required": ["action"],
        "additionalProperties": False,
    },
}
_SESSION_SEARCH: Json = {
    "description": "Search what was said and done in earlier sessions.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "limit": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
}
_DELEGATE_TASK: Json = {
    "description": "Hand a self-contained task to a sub-agent that has its own context and reports back.",
    "parameters": {
        "type": "object",
        "properties": {
            "goal": {"type": "string", "minLength": 1, "description": "All the sub-agent needs to know."},
            "toolsets": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Toolsets it may use, out of yours. Default: all of yours.",
            },
        },
        "required": ["goal"],
        "additionalProperties": False,
    },
}
_CLARIFY: Json = {
    "description": (
        "Ask the user a question and wait for the answer. Use it when the request can be understood in ways"
        " that lead to different results, or when a decision belongs to the user; not for permission to run"
        " a tool, which is asked for automatically."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 4000},
            "choices": {
                "type": "array",
                "minItems": 2,
                "maxItems": 8,
                "uniqueItems": True,
                "items": {"type": "string", "minLength": 1, "maxLength": 300},
                "description": "Suggested answers; the user may also answer freely.",
            },
        },
        "required": ["question"],
        "additionalProperties": False,
    },
}


ANSWER_TIMEOUT_S = 1_800.0
"""How long the user may take to answer a question."""
ANSWER_OVERHEAD_S = 30.0
NO_ANSWER_ADVICE = "Continue with the most likely meaning and tell the user what you assumed."
NOBODY_CAN_ANSWER = f"Nobody can answer questions in this session. {NO_ANSWER_ADVICE}"
MAX_DELEGATION_S = 7_200.0
"""The agent's own limits on a turn end a sub-agent earlier."""


def tools(services: Services) -> list[Tool]:  # noqa: ARG001  (all tool modules have this signature)
    """Return the tools that use an agent's state, such as `todo`, `memory` and `delegate_task`."""
    return [
        _build_agent_tool("todo", "todo", _TODO, "📝"),
        _build_agent_tool("memory", "memory", _MEMORY, "🧠", effects=(Effect.WRITE,)),
        _build_agent_tool("session_search", "session_search", _SESSION_SEARCH, "🔎", effects=(Effect.READ,)),
        replace(
            _build_agent_tool("delegate_task", "delegation", _DELEGATE_TASK, "🤝", effects=(Effect.EXECUTE,)),
            timeout=MAX_DELEGATION_S,
            parallel=True,
            standalone=True,  # sub-agents in a loop of some code would multiply
        ),
        replace(
            _build_agent_tool("clarify", "clarify", _CLARIFY, "❓"),
            timeout=ANSWER_TIMEOUT_S + ANSWER_OVERHEAD_S,
        ),
    ]


def _build_agent_tool(
    name: str, toolset: str, schema: Json, emoji: str, *, effects: tuple[Effect, ...] = ()
) -> Tool:
    return build_builtin_tool(
        name=name,
        toolset=toolset,
        schema=schema,
        handler=_make_handler(name),
        precheck=_make_precheck(name),
        emoji=emoji,
        effects=effects,
        agent_level=True,
        source=Source("builtin", "agent"),
    )


def _make_precheck(name: str) -> Callable[[Json, CallContext], AgentServices]:
    def find_agent(_: Json, context: CallContext) -> AgentServices:
        if context.agent is None or name not in context.agent.offers:
            raise CallError(NOBODY_CAN_ANSWER) if name == "clarify" else NeedsAgent(name)
        return context.agent

    return find_agent


def _make_handler(name: str) -> Handler:
    find_agent = _make_precheck(name)

    def run(args: Json, context: CallContext) -> Any:
        return find_agent(args, context).run(name, args)

    return run
