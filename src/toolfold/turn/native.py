"""Which requests may use a provider's own form for tools that come late.

Judged by the form of the request and by the model's name. Knows nothing of how such a request is written.
"""

from __future__ import annotations

import logging
import re

from toolfold.errors import shorten
from toolfold.turn.forms import Form

log = logging.getLogger(__name__)

_MOST_TOLD = 100
_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?![\d])")
_REASONING = re.compile(r"\bo[1-9]\b")
_CLAUDE_FROM, _GPT_FROM = (4, 5), (5, 4)


class Natives:
    """Decides for all sessions of a runtime, and tells once of each model that has no such form."""

    def __init__(self) -> None:
        self._told: set[tuple[Form, str]] = set()

    def settle(self, asked: bool | None, configured: bool, *, form: Form, model: str) -> bool:
        """Whether to use it. Whoever asks for what does not exist is refused; a setting only gives way."""
        if asked is not None:
            if asked and (problem := lacks_native(form, model)):
                raise ValueError(f"native: {problem}")
            return asked
        if not configured:
            return False
        problem = lacks_native(form, model) or _is_unknown(form, model)
        if problem and (form, model) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((form, model))
            log.warning("tools.rag_native: %s; its requests are written without", problem)
        return not problem


def lacks_native(form: Form, model: str) -> str:
    """Why there is no such form, where that is known; nothing where there is one, or nobody knows."""
    name = model.lower()
    if form == "openai":
        return "OpenAI chat has no form of its own for tools that come late"
    if form == "anthropic" and "claude" in name and _is_older(name, "claude", _CLAUDE_FROM):
        return f"{shorten(model)!r} cannot load tools late; Claude can from 4.5 on"
    if form == "responses" and (
        _REASONING.search(name) or "gpt-oss" in name or _is_older(name, "gpt", _GPT_FROM)
    ):
        return f"{shorten(model)!r} cannot load tools late; OpenAI's models can from gpt-5.4 on"
    return ""


def _is_unknown(form: Form, model: str) -> str:
    """Other models speak these forms too, and some of them know deferred tools: only their users can say."""
    family = "claude" if form == "anthropic" else "gpt"
    if not model or family in model.lower():
        return ""
    return f"nobody knows whether {shorten(model)!r} can load tools late (native=True says so)"


def _is_older(name: str, family: str, first: tuple[int, int]) -> bool:
    """Whether a name of the family has a version, and that is older. A name without one is the newest."""
    _, found, rest = name.partition(family)
    version = _VERSION.search(rest) if found else None
    return version is not None and (int(version[1]), int(version[2] or 0)) < first
