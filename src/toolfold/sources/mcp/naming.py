"""What the tools of servers are called: `mcp_<server>_<tool>`, the same whoever arrives first.

Two servers can spell one name: `a` with `b_c`, and `a_b` with `c`. The plain form belongs to the server with
the longest name that begins it; every other tool has a digest in its name. Only the names of the servers
count for that, never which of them is up. Knows no registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from toolfold.model import mcp_original
from toolfold.naming import is_accepted, short_forms

__all__ = ["Names"]


class Names:
    """Names tools among a set of servers."""

    def __init__(self, servers: Iterable[str]) -> None:
        self._servers = frozenset(servers)

    def name(self, server: str, tool: str) -> tuple[str, str]:
        """The name that providers see, and `mcp__<server>__<tool>`, which means the tool as well."""
        plain = f"mcp_{server}_{tool}"
        named = plain if is_accepted(plain) and self._is_owner(server, plain) else _digested(server, tool)
        return named, mcp_original(server, tool)

    def _is_owner(self, server: str, plain: str) -> bool:
        longer = (each for each in self._servers if len(each) > len(server))
        return not any(plain.startswith(f"mcp_{each}_") for each in longer)


def _digested(server: str, tool: str) -> str:
    """Of the pair, since `mcp__a__b__c` can be two of them.

    The longer digest: whoever wants the name of another's tool would have to try 2**60 of their own.
    """
    return next(islice(short_forms(f"mcp_{server}\0{tool}"), 1, None))
