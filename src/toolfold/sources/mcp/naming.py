"""What the tools of servers are called: `mcp_<server>_<tool>`, the same whoever arrives first.

Two servers can spell one name: `a` with `b_c`, and `a_b` with `c`. The plain form belongs to the server with
the longest name that begins it; every other tool has a digest in its name. Only the names of the servers
count for that, never which of them is up. Knows no registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from toolfold.model import mcp_original
from toolfold.naming import is_accepted, is_reserved, short_forms

__all__ = ["Names"]


class Names:
    """Names tools among a set of servers."""

    def __init__(
        self, servers: Iterable[str], *, prefixes: Mapping[str, str] | None = None, taken: Iterable[str] = ()
    ) -> None:
        """`prefixes` stand in place of `mcp_<server>_`; `taken` are names that no server may have."""
        self._prefixes = {each: f"mcp_{each}_" for each in servers} | dict(prefixes or {})
        self._taken = frozenset(taken)
        self._listing = Names(self._prefixes) if prefixes or self._taken else self

    def name(self, server: str, tool: str) -> tuple[str, str]:
        """The name that providers see, and `mcp__<server>__<tool>`, which means the tool as well."""
        plain = f"{self._prefixes.get(server, f'mcp_{server}_')}{tool}"
        is_free = is_accepted(plain) and plain not in self._taken and not is_reserved(plain)
        is_its_own = is_free and self._is_owner(server, plain)
        return plain if is_its_own else _digested(server, tool), mcp_original(server, tool)

    def listed(self, server: str, tool: str) -> str:
        """The name that settings have for it, whatever stands in place of `mcp_<server>_` here."""
        return self._listing.name(server, tool)[0]

    def _is_owner(self, server: str, plain: str) -> bool:
        """Whether no other server has a better claim: a longer prefix, or the same and a name before this."""
        own = self._prefixes.get(server, "")
        others = ((each, prefix) for each, prefix in self._prefixes.items() if each != server)
        return not any(
            plain.startswith(prefix) and (len(prefix), server) > (len(own), each) for each, prefix in others
        )


def _digested(server: str, tool: str) -> str:
    """Of the pair, since `mcp__a__b__c` can be two of them.

    The longer digest: whoever wants the name of another's tool would have to try 2**60 of their own.
    """
    return next(islice(short_forms(f"mcp_{server}\0{tool}"), 1, None))
