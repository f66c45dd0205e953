"""Names of the tools of MCP servers, independent of the order in which servers start.

A tool has a client name, `<server>_<tool>`, which clients of the gateway and the command line show, and an
agent name, `mcp_<server>_<tool>`, which sessions of a runtime without a gateway use. Either is accepted
wherever the other is shown.

Two servers can produce the same name: `a` with `b_c`, and `a_b` with `c`. The plain name belongs to the
server with the longest matching prefix; every other tool gets a digest in its name. This depends only on the
names of the configured servers, not on which of them are running. A client name never begins with `mcp_`, so
that it cannot be the agent name of another tool: the setting `approval.allowed_tools` accepts both. Knows no
registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from toolfold.core.naming import is_accepted, is_reserved, short_names
from toolfold.core.types import mcp_original_name

__all__ = ["McpToolName", "ToolNames"]

_AGENT_LABEL = "mcp_"


@dataclass(frozen=True, slots=True)
class McpToolName:
    """Names of one MCP tool: for gateway clients, for agents, and in the form `mcp__<server>__<tool>`."""

    client: str
    agent: str
    original: str
    """The name `mcp__<server>__<tool>`, which is valid whatever the other names are."""

    @property
    def all(self) -> tuple[str, ...]:
        return self.client, self.agent, self.original


class ToolNames:
    """Names of the tools of a set of MCP servers."""

    def __init__(
        self,
        servers: Iterable[str],
        *,
        prefixes: Mapping[str, str] | None = None,
        taken: Iterable[str] = (),
        for_clients: bool = False,
    ) -> None:
        """Compute unique names for the tools of all MCP servers.

        `prefixes` replace the prefix `<server>_`; `taken` are the names of tools without a server.
        With `for_clients`, tools are registered under their client names, otherwise under their agent
        names.
        """
        known = list(servers)
        self.for_clients = for_clients
        self._clients = _Namespace("", {each: f"{each}_" for each in known} | dict(prefixes or {}), taken)
        self._agents = _Namespace(_AGENT_LABEL, {each: f"{_AGENT_LABEL}{each}_" for each in known}, ())

    def names_of(self, server: str, tool: str) -> McpToolName:
        """Return all names of a tool; `tool` is the name that the server uses."""
        return McpToolName(
            self._clients.name_of(server, tool),
            self._agents.name_of(server, tool),
            mcp_original_name(server, tool),
        )

    def registered_name(self, server: str, tool: str) -> str:
        """Return the name under which the tool is registered."""
        names = self.names_of(server, tool)
        return names.client if self.for_clients else names.agent

    def may_name(self, server: str, name: str) -> bool:
        """Return True if a tool of the server could have this name, whatever tools the server lists."""
        prefixes = (
            self._clients.prefix_of(server),
            self._agents.prefix_of(server),
            mcp_original_name(server, ""),
        )
        return name.startswith(prefixes)

    def find_own_name(self, server: str, name: str, listed: Iterable[str]) -> str | None:
        """Return the server's name for a tool, given any name of the tool; None if it is not listed."""
        own = list(listed)
        if name in own:
            return name
        return next((each for each in own if name in self.names_of(server, each).all), None)


class _Namespace:
    """Namespace of unique tool names, each made of a server's prefix and the server's name for a tool."""

    def __init__(self, label: str, prefixes: Mapping[str, str], taken: Iterable[str]) -> None:
        """Create a namespace; `label` is the prefix of names that need a hash to be unique or valid."""
        self._label, self._prefixes, self._taken = label, dict(prefixes), frozenset(taken)

    def name_of(self, server: str, tool: str) -> str:
        plain = f"{self.prefix_of(server)}{tool}"
        is_free = is_accepted(plain) and plain not in self._taken and not is_reserved(plain)
        if is_free and self._is_owner(server, plain) and not self._is_foreign(plain):
            return plain
        name = _digest_name(f"{self._label}{server}", tool)
        return _digest_name(f"from_{server}", tool) if self._is_foreign(name) else name

    def _is_foreign(self, name: str) -> bool:
        """Return True if a name for gateway clients starts with `mcp_`, the prefix of names for agents."""
        return not self._label and name.casefold().startswith(_AGENT_LABEL)

    def prefix_of(self, server: str) -> str:
        """Return the prefix of a server's tool names."""
        return self._prefixes.get(server, f"{self._label}{server}_")

    def _is_owner(self, server: str, plain: str) -> bool:
        """Return True if no other server's prefix matches the name `plain` better than this server's."""
        own = self.prefix_of(server)
        others = ((each, prefix) for each, prefix in self._prefixes.items() if each != server)
        return not any(
            plain.startswith(prefix) and (len(prefix), server) > (len(own), each) for each, prefix in others
        )


def _digest_name(label: str, tool: str) -> str:
    """Return a name that contains a hash, for a tool whose plain name could also refer to another tool.

    `mcp__a__b__c` can mean tool `c` of server `a__b` or tool `b__c` of `a`. The longer digest is used: to
    collide with another server's tool takes 2**60 attempts.
    """
    return next(islice(short_names(f"{label}\0{tool}"), 1, None))
