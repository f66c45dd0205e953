"""Name the tools of MCP servers `mcp_<server>_<tool>`, whatever the order in which servers start.

Two servers can produce the same name: `a` with `b_c`, and `a_b` with `c`. The plain name belongs to the
server with the longest matching prefix; every other tool gets a digest in its name. This depends only on the
names of the configured servers, not on which of them are running. Knows no registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from toolfold.model import mcp_original_name
from toolfold.naming import is_accepted, is_reserved, short_names

__all__ = ["ToolNames"]


class ToolNames:
    """Names of the tools of a set of MCP servers."""

    def __init__(
        self, servers: Iterable[str], *, prefixes: Mapping[str, str] | None = None, taken: Iterable[str] = ()
    ) -> None:
        """Create names; `prefixes` replace `mcp_<server>_`, and `taken` are names of other tools."""
        self._prefixes = {each: f"mcp_{each}_" for each in servers} | dict(prefixes or {})
        self._taken = frozenset(taken)
        self._settings_names = ToolNames(self._prefixes) if prefixes or self._taken else self

    def names_of(self, server: str, tool: str) -> tuple[str, str]:
        """Return the tool's name for models, and its alias `mcp__<server>__<tool>`."""
        plain = f"{self._prefixes.get(server, f'mcp_{server}_')}{tool}"
        is_free = is_accepted(plain) and plain not in self._taken and not is_reserved(plain)
        is_its_own = is_free and self._is_owner(server, plain)
        return plain if is_its_own else _digest_name(server, tool), mcp_original_name(server, tool)

    def name_in_settings(self, server: str, tool: str) -> str:
        """Return the tool's name with the default prefix, as written in settings."""
        return self._settings_names.names_of(server, tool)[0]

    def _is_owner(self, server: str, plain: str) -> bool:
        """Return True if this server, of several that could have the name, is the one that gets it."""
        own = self._prefixes.get(server, "")
        others = ((each, prefix) for each, prefix in self._prefixes.items() if each != server)
        return not any(
            plain.startswith(prefix) and (len(prefix), server) > (len(own), each) for each, prefix in others
        )


def _digest_name(server: str, tool: str) -> str:
    """Return a tool name that ends in a digest of server and tool, for names that would be ambiguous.

    The longer digest is used: to collide with another server's tool takes 2**60 attempts.
    """
    return next(islice(short_names(f"mcp_{server}\0{tool}"), 1, None))
