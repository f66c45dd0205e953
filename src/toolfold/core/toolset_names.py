"""Toolset names for compatibility: presets for common clients, and names from other runtimes.

The only place that lists them. Pure data; `scope` resolves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FOREIGN_PREFIX", "LEGACY_NAMES", "PRESETS", "Toolset"]


@dataclass(frozen=True, slots=True)
class Toolset:
    """A named bundle of tools and other toolsets."""

    name: str
    description: str = ""
    tools: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


_COMMON_TOOLSETS = (
    "file",
    "terminal",
    "web",
    "browser",
    "todo",
    "memory",
    "session_search",
    "clarify",
    "vision",
)

PRESETS = (
    Toolset(
        "toolfold-cli",
        "Everything a person expects at a terminal.",
        includes=(*_COMMON_TOOLSETS, "code_execution", "delegation", "skills", "image_gen", "tts", "cronjob"),
    ),
    Toolset(
        "toolfold-gateway",
        "For clients that bring their own files and shell: no local file or terminal tools.",
        includes=("web", "browser", "todo", "memory", "session_search", "vision"),
    ),
    Toolset(
        "toolfold-messaging",
        "For chat platforms: the everyday tools and sending messages.",
        includes=(*_COMMON_TOOLSETS, "messaging", "cronjob", "tts"),
    ),
    Toolset(
        "toolfold-editor",
        "For code editors: files, shell and code, nothing that talks to people.",
        includes=("file", "terminal", "code_execution", "web", "todo", "delegation", "memory"),
    ),
)

FOREIGN_PREFIX = "hermes-"
"""Start of the presets of another runtime, which work with a hint."""

LEGACY_NAMES: Mapping[str, str] = {
    "web_tools": "web",
    "terminal_tools": "terminal",
    "file_tools": "file",
    "vision_tools": "vision",
    "moa_tools": "moa",
    "image_tools": "image_gen",
    "skills_tools": "skills",
    "browser_tools": "browser",
    "cronjob_tools": "cronjob",
    "rl_tools": "rl",
    "tts_tools": "tts",
    "hermes-cli": "toolfold-cli",
    "hermes-acp": "toolfold-editor",
    "hermes-gateway": "toolfold-messaging",
    **dict.fromkeys(
        (
            "hermes-telegram",
            "hermes-discord",
            "hermes-whatsapp",
            "hermes-slack",
            "hermes-signal",
            "hermes-email",
            "hermes-homeassistant",
        ),
        "toolfold-messaging",
    ),
}
"""Old toolset name → current name."""
