"""Toolfold: a tool runtime that gives an agent every tool and loads only the ones it needs.

The public names. Each is imported on first use, so that `import toolfold` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellverdict.judging import (
        detect_dangerous_command,
    )
    from shellverdict.verdict import (
        Verdict,
    )
    from toolfold.agent import (
        Agent,
        AgentLimits,
        LocalAgent,
        TurnResult,
    )
    from toolfold.approval.queue import (
        ApprovalQueue,
        StaleQuestion,
    )
    from toolfold.authoring import (
        ToolFunction,
        build_tool,
        tool,
    )
    from toolfold.availability import (
        Status,
    )
    from toolfold.config import (
        Config,
        load_config,
    )
    from toolfold.errors import (
        BridgeMisuse,
        CallError,
        ConfigError,
        EnvironmentFailed,
        InvalidArguments,
        InvalidTool,
        NameTaken,
        NeedsAgent,
        OutOfScope,
        Refused,
        RegistryError,
        ReservedName,
        SourceError,
        ToolFailed,
        ToolfoldError,
        UnknownToolset,
    )
    from toolfold.model import (
        Adapt,
        AgentServices,
        Answer,
        ApprovalRequest,
        Approver,
        Asker,
        CallContext,
        Content,
        Effect,
        Meaning,
        Media,
        PostToolCall,
        PreToolCall,
        Source,
        Tool,
        ToolCall,
        ToolResult,
        UserQuestion,
    )
    from toolfold.registry import (
        Registry,
        Snapshot,
    )
    from toolfold.runtime import (
        Runtime,
        RuntimeRegistry,
        open_runtime,
    )
    from toolfold.scope import (
        Scope,
        Toolsets,
    )
    from toolfold.session import (
        Session,
    )
    from toolfold.sources.catalog import load_catalog, sample_catalog
    from toolfold.sources.plugins import Plugin
    from toolfold.sources.source_report import SourceReport
    from toolfold.toolset_names import Toolset
    from toolfold.turn import (
        Turn,
        count_tokens,
    )
    from toolfold.turn.placement import (
        Request,
    )

__version__ = "0.1.0"

__all__ = [
    "Adapt",
    "Agent",
    "AgentLimits",
    "AgentServices",
    "Answer",
    "ApprovalQueue",
    "ApprovalRequest",
    "Approver",
    "Asker",
    "BridgeMisuse",
    "CallContext",
    "CallError",
    "Config",
    "ConfigError",
    "Content",
    "Effect",
    "EnvironmentFailed",
    "InvalidArguments",
    "InvalidTool",
    "LocalAgent",
    "Meaning",
    "Media",
    "NameTaken",
    "NeedsAgent",
    "OutOfScope",
    "Plugin",
    "PostToolCall",
    "PreToolCall",
    "Refused",
    "Registry",
    "RegistryError",
    "Request",
    "ReservedName",
    "Runtime",
    "RuntimeRegistry",
    "Scope",
    "Session",
    "Snapshot",
    "Source",
    "SourceError",
    "SourceReport",
    "StaleQuestion",
    "Status",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "ToolFunction",
    "ToolResult",
    "ToolfoldError",
    "Toolset",
    "Toolsets",
    "Turn",
    "TurnResult",
    "UnknownToolset",
    "UserQuestion",
    "Verdict",
    "build_tool",
    "count_tokens",
    "detect_dangerous_command",
    "load_catalog",
    "load_config",
    "open_runtime",
    "sample_catalog",
    "tool",
]

_HOMES = {
    "toolfold.agent": (
        "Agent",
        "AgentLimits",
        "LocalAgent",
        "TurnResult",
    ),
    "shellverdict.judging": ("detect_dangerous_command",),
    "toolfold.approval.queue": (
        "ApprovalQueue",
        "StaleQuestion",
    ),
    "shellverdict.verdict": ("Verdict",),
    "toolfold.authoring": (
        "ToolFunction",
        "build_tool",
        "tool",
    ),
    "toolfold.availability": ("Status",),
    "toolfold.config": (
        "Config",
        "load_config",
    ),
    "toolfold.model": (
        "Adapt",
        "AgentServices",
        "Answer",
        "ApprovalRequest",
        "Approver",
        "Asker",
        "CallContext",
        "Content",
        "Effect",
        "Meaning",
        "Media",
        "PostToolCall",
        "PreToolCall",
        "Source",
        "Tool",
        "ToolCall",
        "ToolResult",
        "UserQuestion",
    ),
    "toolfold.registry": (
        "Registry",
        "Snapshot",
    ),
    "toolfold.runtime": (
        "Runtime",
        "RuntimeRegistry",
        "open_runtime",
    ),
    "toolfold.scope": (
        "Scope",
        "Toolsets",
    ),
    "toolfold.session": ("Session",),
    "toolfold.sources.catalog": (
        "load_catalog",
        "sample_catalog",
    ),
    "toolfold.sources.plugins": ("Plugin",),
    "toolfold.sources.source_report": ("SourceReport",),
    "toolfold.toolset_names": ("Toolset",),
    "toolfold.turn": (
        "Turn",
        "count_tokens",
    ),
    "toolfold.turn.placement": ("Request",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'toolfold' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "toolfold.errors")
    module = importlib.import_module(home)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
