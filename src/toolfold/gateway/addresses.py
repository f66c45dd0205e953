"""Resources and prompts of many servers under one roof: whose is whose, from the name alone.

A resource's address gets its server's name before its scheme, `files+file:///a`; a prompt's name gets it
before the name. Both can be undone without a table, so that an address that was never listed, such as one
made from a template, still leads to the right server and to no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_ODD = re.compile(r"[^a-z0-9.-]+")


class Addresses:
    """The names of servers as they stand in addresses and prompts."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """Server → what stands before its prompts; where that is nothing, its addresses stay as they are."""
        self._prompts = dict(sorted(prefixes.items()))
        self._schemes: dict[str, str] = {}
        for name, prefix in self._prompts.items():
            self._schemes[name] = _free(_slug(name), self._schemes.values()) if prefix else ""

    def resource(self, server: str, uri: str) -> str:
        """An address as clients know it."""
        return self._schemes[server] + uri

    def own_resource(self, uri: str) -> list[tuple[str, str]]:
        """The servers that may have it, likeliest first, each with its own address for it."""
        return _stripped(uri, self._schemes)

    def prompt(self, server: str, name: str) -> str:
        """A prompt's name as clients know it."""
        return self._prompts[server] + name

    def own_prompt(self, name: str) -> list[tuple[str, str]]:
        """The servers that may have it, likeliest first, each with its own name for it."""
        return _stripped(name, self._prompts)


def _stripped(name: str, prefixes: Mapping[str, str]) -> list[tuple[str, str]]:
    """Longest prefix first: `a_b_c` of server `a_b` is not `b_c` of server `a`."""
    found = [(server, prefix) for server, prefix in prefixes.items() if name.startswith(prefix)]
    found.sort(key=lambda each: -len(each[1]))
    return [(server, name.removeprefix(prefix)) for server, prefix in found]


def _slug(name: str) -> str:
    slug = _ODD.sub("-", name.lower()).strip("-.")
    return slug if slug[:1].isalpha() else f"s{slug}"


def _free(slug: str, taken: Iterable[str]) -> str:
    used, number, chosen = set(taken), 1, slug
    while f"{chosen}+" in used:
        number += 1
        chosen = f"{slug}-{number}"
    return f"{chosen}+"
