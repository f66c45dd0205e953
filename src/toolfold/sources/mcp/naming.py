"""Names of server tools, `mcp_<server>_<tool>`, independent of the order in which servers start.

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
    """Names of tools among a set of servers."""

    def __init__(
        self, servers: Iterable[str], *, prefixes: Mapping[str, str] | None = None, taken: Iterable[str] = ()
    ) -> None:
        """`prefixes` replace `mcp_<server>_`; `taken` are names that no server tool may have."""
        self._prefixes = {each: f"mcp_{each}_" for each in servers} | dict(prefixes or {})
        self._taken = frozenset(taken)
        self._settings_names = ToolNames(self._prefixes) if prefixes or self._taken else self

    def names_of(self, server: str, tool: str) -> tuple[str, str]:
        """Return the name that providers see, and the alias `mcp__<server>__<tool>`."""
        plain = f"{self._prefixes.get(server, f'mcp_{server}_')}{tool}"
        is_free = is_accepted(plain) and plain not in self._taken and not is_reserved(plain)
        is_its_own = is_free and self._is_owner(server, plain)
        return plain if is_its_own else _digest_name(server, tool), mcp_original_name(server, tool)

    def name_in_settings(self, server: str, tool: str) -> str:
        """Return the name with the default prefix, which settings use."""
        return self._settings_names.names_of(server, tool)[0]

    def _is_owner(self, server: str, plain: str) -> bool:
        """Return True if no other server has a longer prefix, or an earlier name with the same prefix."""
        own = self._prefixes.get(server, "")
        others = ((each, prefix) for each, prefix in self._prefixes.items() if each != server)
        return not any(
            plain.startswith(prefix) and (len(prefix), server) > (len(own), each) for each, prefix in others
        )


def _digest_name(server: str, tool: str) -> str:
    """Return a name with a digest of server and tool, since `mcp__a__b__c` can mean two different pairs.

    The longer digest is used: to collide with another server's tool takes 2**60 attempts.
    """
    return next(islice(short_names(f"mcp_{server}\0{tool}"), 1, None))
