"""The playground page: shows which tools are selected for a message, with settings the user can vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json
from toolfold.runtime.explanation import MODES, explain_selection
from toolfold.serving.dashboard.texts import show_json
from toolfold.serving.gateway.request_bodies import RequestRefused

if TYPE_CHECKING:
    from toolfold.config.settings import ToolsSettings
    from toolfold.runtime.runtime import Runtime

MAX_MESSAGE_CHARS = 20_000
MAX_TOP_K = 50
MAX_ROWS = 200
"""Tools in an answer; the best are first."""


def explain_message(runtime: Runtime, body: Mapping[str, Any]) -> Json:
    """Explain which tools a model is sent for a message, as `toolfold explain` does.

    The body may have a `mode`, `top_k`, `toolsets` and a `model`. Raises RequestRefused.
    """
    message = body.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > MAX_MESSAGE_CHARS:
        raise RequestRefused(400, f"Enter a message of at most {MAX_MESSAGE_CHARS:,} characters.")
    settings = _choose_settings(runtime.config.tools, body)
    toolsets = body.get("toolsets") or None
    if toolsets is not None and not _is_text_list(toolsets):
        raise RequestRefused(400, "toolsets must be a list of names.")
    try:
        session = runtime.preview_session(settings, toolsets)
    except ToolfoldError as error:
        raise RequestRefused(400, str(error)) from None
    report = explain_selection(
        session,
        runtime.retriever,
        [{"role": "user", "content": message}],
        str(body.get("model") or runtime.config.agent.model)[:200],
    )
    total = len(report["tools"])
    shown: Json = show_json({**report, "tools": report["tools"][:MAX_ROWS]})
    return {**shown, "total": total, "settings": {"mode": find_mode(settings), "top_k": settings.rag_top_k}}


def describe_choices(runtime: Runtime) -> Json:
    """Return the choices that the page offers: search modes, toolsets and the configured settings."""
    from toolfold.selection.turn.pricing import PRICES

    settings = runtime.config.tools
    return {
        "modes": list(MODES),
        "mode": find_mode(settings),
        "top_k": settings.rag_top_k,
        "toolsets": sorted(runtime.toolsets().listing())[:1_000],
        "models": [each.name for each in PRICES][:200],
        "model": runtime.config.agent.model,
    }


def find_mode(settings: ToolsSettings) -> str:
    """Return the name of the search mode that the settings correspond to; empty if there is none."""
    current = settings.selection, settings.tool_search.enabled
    return next((name for name, values in MODES.items() if values == current), "")


def _choose_settings(settings: ToolsSettings, body: Mapping[str, Any]) -> ToolsSettings:
    changes: dict[str, Any] = {}
    mode, top_k = body.get("mode"), body.get("top_k")
    if mode:
        if mode not in MODES:
            raise RequestRefused(400, f"mode must be one of {', '.join(MODES)}.")
        changes["selection"], search = MODES[mode]
        changes["tool_search"] = settings.tool_search.model_copy(update={"enabled": search})
    if top_k is not None:
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= MAX_TOP_K:
            raise RequestRefused(400, f"top_k must be a number from 1 to {MAX_TOP_K}.")
        changes["rag_top_k"] = changes["rag_max_k"] = top_k
    return settings.model_copy(update=changes)


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 200 and all(isinstance(each, str) for each in value)
