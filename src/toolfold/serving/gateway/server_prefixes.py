"""Prefixes of URIs and names that distinguish the resources and prompts of different servers.

A resource URI gets its server's name before its scheme, `files+file:///a`; a prompt's name gets the server's
prefix. Both are reversible without a table, so that a URI that was never listed, such as one made from a
template, still resolves to the right server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_INVALID_IN_SCHEME = re.compile(r"[^a-z0-9.-]+")


class ServerPrefixes:
    """Prefixes of all servers for resource URIs and prompt names."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """Create the prefixes; `prefixes` maps each server to its prefix for prompts, which may be empty."""
        self._prompts: dict[str, str] = {}
        self._schemes: dict[str, str] = {}
        self._former_schemes: dict[str, str] = {}
        """Schemes of removed servers, whose last results may still arrive."""
        self.update(prefixes)

    def update(self, prefixes: Mapping[str, str]) -> None:
        """Replace the prefixes after servers have changed; remaining servers keep their URI schemes."""
        schemes = {
            name: scheme
            for name, scheme in self._schemes.items()
            if name in prefixes and bool(scheme) == bool(prefixes[name])
        }
        for name, prefix in sorted(prefixes.items()):
            if name not in schemes:
                schemes[name] = _unique_scheme(_slugify(name), schemes.values()) if prefix else ""
        self._former_schemes |= self._schemes
        self._prompts, self._schemes = dict(sorted(prefixes.items())), schemes

    def prefix_uri(self, server: str, uri: str) -> str:
        """Return the URI that clients use for a server's resource."""
        scheme = self._schemes.get(server)
        return (self._former_schemes.get(server, "") if scheme is None else scheme) + uri

    def resolve_uri(self, uri: str) -> list[tuple[str, str]]:
        """Return the (server, URI) pairs that a prefixed resource URI may refer to, most likely first."""
        return _strip_prefixes(uri, self._schemes)

    def prefix_prompt(self, server: str, name: str) -> str:
        """Return the name that clients use for a server's prompt."""
        return self._prompts.get(server, "") + name

    def resolve_prompt(self, name: str) -> list[tuple[str, str]]:
        """Return the (server, prompt) pairs that a prefixed prompt name may refer to, most likely first."""
        return _strip_prefixes(name, self._prompts)


def _strip_prefixes(name: str, prefixes: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the servers with whose prefix a name starts, and the rest of the name; longest prefix first.

    `a_b_c` is `c` of server `a_b` rather than `b_c` of server `a`.
    """
    matches = [(server, prefix) for server, prefix in prefixes.items() if name.startswith(prefix)]
    matches.sort(key=lambda each: -len(each[1]))
    return [(server, name.removeprefix(prefix)) for server, prefix in matches]


def _slugify(name: str) -> str:
    slug = _INVALID_IN_SCHEME.sub("-", name.lower()).strip("-.")
    return slug if slug[:1].isalpha() else f"s{slug}"


def _unique_scheme(slug: str, taken: Iterable[str]) -> str:
    used, number, chosen = set(taken), 1, slug
    while f"{chosen}+" in used:
        number += 1
        chosen = f"{slug}-{number}"
    return f"{chosen}+"
