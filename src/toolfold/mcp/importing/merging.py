"""Recognise the same server in the settings of several programs, and merge its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from toolfold.config.servers_settings import McpServerSettings
from toolfold.core.types import Json
from toolfold.mcp.importing.secret_settings import redact_settings

_DEFAULT_PORTS = {"http": 80, "https": 443}
_IGNORED_ARGUMENTS = frozenset({"-y", "--yes"})  # they do not change which server runs
_TARGET_KEYS = ("command", "args", "url", "transport")


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that two entries for the same server do not have in common, without secret values."""

    key: str
    """Key of the setting, such as `cwd` or `env.TOKEN`."""
    first: str
    """The value in the first entry; empty if it has none."""
    second: str
    is_conflict: bool
    """True if both entries have a value."""


def server_target(server: McpServerSettings) -> tuple[str, ...]:
    """Return a server's command or URL in normalised form, for comparison with other servers."""
    if not server.url:
        return (server.command, *(each for each in server.args if each not in _IGNORED_ARGUMENTS))
    try:
        parts = urlsplit(server.url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return (server.url,)
    return (parts.hostname or "", str(port), parts.path.rstrip("/"), parts.query)


def compare_servers(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[SettingDifference]:
    """Return the differing settings of two entries for the same server, except command and URL."""
    mine, other = dict(_flatten(first)), dict(_flatten(second))
    shown, other_shown = dict(_flatten(redact_settings(first))), dict(_flatten(redact_settings(second)))
    return [
        SettingDifference(
            key, str(shown.get(key, "")), str(other_shown.get(key, "")), key in mine and key in other
        )
        for key in dict.fromkeys((*mine, *other))
        if mine.get(key) != other.get(key)
    ]


def merge_settings(first: Mapping[str, Any], second: Mapping[str, Any]) -> Json:
    """Return the settings of the first entry, with the values that only the second one has."""
    merged = {**second, **first}
    for key in first.keys() & second.keys():
        if isinstance(first[key], Mapping):
            merged[key] = {**second[key], **first[key]}
    return merged


def _flatten(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if key in _TARGET_KEYS:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", each) for name, each in value.items())
        else:
            yield key, value
