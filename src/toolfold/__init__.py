"""Toolfold: a tool runtime that gives an agent every tool and loads only the ones it needs.

The names for daily use. Each is imported on first use, so that `import toolfold` is fast. Other public names
are in the modules `agent`, `errors`, `events`, `model`, `authoring` and `integrations`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellverdict.judging import detect_dangerous_command
    from toolfold.agent import Agent
    from toolfold.config import load_config
    from toolfold.core.authoring import build_tool, tool
    from toolfold.core.errors import CallError, ConfigError, Refused, ToolfoldError
    from toolfold.core.registry import Registry
    from toolfold.core.scope import Scope
    from toolfold.core.types import (
        Answer,
        ApprovalRequest,
        CallContext,
        Content,
        Media,
        Tool,
        ToolCall,
        ToolResult,
    )
    from toolfold.runtime.runtime import Runtime, open_runtime
    from toolfold.runtime.session import Session
    from toolfold.safety.approval.queue import ApprovalQueue
    from toolfold.selection.turn import count_tokens
    from toolfold.tools.catalog import sample_catalog

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Answer",
    "ApprovalQueue",
    "ApprovalRequest",
    "CallContext",
    "CallError",
    "ConfigError",
    "Content",
    "Media",
    "Refused",
    "Registry",
    "Runtime",
    "Scope",
    "Session",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolfoldError",
    "build_tool",
    "count_tokens",
    "detect_dangerous_command",
    "load_config",
    "open_runtime",
    "sample_catalog",
    "tool",
]

_HOMES = {
    "shellverdict.judging": ("detect_dangerous_command",),
    "toolfold.agent": ("Agent",),
    "toolfold.safety.approval.queue": ("ApprovalQueue",),
    "toolfold.core.authoring": (
        "build_tool",
        "tool",
    ),
    "toolfold.config": ("load_config",),
    "toolfold.core.errors": (
        "CallError",
        "ConfigError",
        "Refused",
        "ToolfoldError",
    ),
    "toolfold.core.types": (
        "Answer",
        "ApprovalRequest",
        "CallContext",
        "Content",
        "Media",
        "Tool",
        "ToolCall",
        "ToolResult",
    ),
    "toolfold.core.registry": ("Registry",),
    "toolfold.runtime.runtime": (
        "Runtime",
        "open_runtime",
    ),
    "toolfold.core.scope": ("Scope",),
    "toolfold.runtime.session": ("Session",),
    "toolfold.tools.catalog": ("sample_catalog",),
    "toolfold.selection.turn": ("count_tokens",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'toolfold' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
