"""Compute the user's toolsets, and the scope (allowed tools) that the configuration sets for sessions.

Checks the names of tools and toolsets in the settings against those that exist. Knows no session.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from toolfold.config import Config
from toolfold.core.errors import ConfigError, UnknownToolset, closest_names, did_you_mean
from toolfold.core.scope import Scope, Toolsets
from toolfold.core.toolset_names import Toolset

log = logging.getLogger(__name__)

__all__ = ["SynonymCheck", "build_scope", "declare_toolsets"]


def declare_toolsets(config: Config, toolsets: Toolsets, known: Collection[str] = ()) -> list[Toolset]:
    """Return the toolsets that the user has configured. Raises ConfigError if a name is already in use.

    `known` are toolsets of the user that were declared before.
    """
    for name in config.toolsets:
        if name not in known and toolsets.is_taken(name):
            raise _config_error(config, f"toolsets.{name}", "this name is already in use")
    return [
        Toolset(name, each.description, each.tools, each.includes) for name, each in config.toolsets.items()
    ]


def build_scope(config: Config, toolsets: Toolsets, *, all_loaded: bool) -> Scope:
    """Return the scope (allowed tools) of the configuration. Raises ConfigError for unknown toolsets.

    That is only a warning unless `all_loaded`: the toolset may belong to a source that failed to load.
    """
    settings = config.tools
    for key, names in (
        ("tools.enabled_toolsets", settings.enabled_toolsets or ()),
        ("tools.disabled_toolsets", settings.disabled_toolsets),
        *((f"toolsets.{name}", each.includes) for name, each in config.toolsets.items()),
    ):
        try:
            toolsets.require(names)
        except UnknownToolset as error:
            if all_loaded:
                raise _config_error(config, key, str(error)) from None
            log.warning("%s: %s", key, error)
    _warn_misspelled(settings.disabled, toolsets)
    return Scope(settings.enabled_toolsets, settings.disabled_toolsets, settings.disabled)


def _warn_misspelled(disabled: Iterable[str], toolsets: Toolsets) -> None:
    """Warn about names of disabled tools that do not exist but are similar to a tool or toolset.

    An unknown name is valid, since its tool may be registered later, but a typo would leave another tool
    enabled.
    """
    snapshot = toolsets.snapshot
    for name in disabled:
        known = toolsets.knows(name) or snapshot.find(name)
        near = () if known else closest_names(name, {*snapshot, *toolsets.listing()})
        if near:
            log.warning("tools.disabled: there is no tool or toolset %r.%s", name, did_you_mean(near))


class SynonymCheck:
    """Warns once about each name in `tools.synonyms` that is probably misspelled.

    Names without a tool are valid, since the tool may be registered later.
    """

    def __init__(self, synonyms: Iterable[str]) -> None:
        self._pending = dict.fromkeys(synonyms)
        self._known: frozenset[str] = frozenset()

    def check(self, toolsets: Toolsets) -> None:
        """Warn about names in `tools.synonyms` that look misspelled or that mean a group of toolsets."""
        if not self._pending:
            return
        snapshot, bundles = toolsets.snapshot, toolsets.listing()
        servers = (tool.source.name for tool in snapshot.values())
        known = frozenset({*snapshot, *snapshot.toolsets, *servers} - {""})
        new, self._known = known - self._known, known
        for name in list(self._pending):
            if name in known or snapshot.find(name):
                continue
            if name in bundles:
                self._pending.pop(name, None)
                log.warning(
                    "tools.synonyms: %r is a bundle of other tools and toolsets; add the "
                    "synonyms to those tools or toolsets",
                    name,
                )
            elif near := closest_names(name, new):
                self._pending.pop(name, None)
                message = "tools.synonyms: there is no tool, toolset or server %r.%s"
                log.warning(message, name, did_you_mean(near))


def _config_error(config: Config, key: str, problem: str) -> ConfigError:
    return ConfigError(f"{key}: {problem}", key=key, file=config.origins.get(key, ""))
