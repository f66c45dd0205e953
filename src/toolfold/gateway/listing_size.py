"""How much of the tools a client of the gateway is shown, and what that saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolfold.gateway.seats import EXTRAS
from toolfold.model import BRIDGE_NAMES, MCP_SOURCE, Tool
from toolfold.session import Session
from toolfold.turn.tokens import TokenCounter, compact

_BYTES_PER_TOKEN = 4.3
"""Of the sample catalog's 277 definitions, in o200k tokens."""

Count = Callable[[Sequence[Tool]], int]


@dataclass(frozen=True, slots=True)
class ListingSize:
    """Counts of tools and tokens. Tools that search finds are not counted among those that are shown."""

    shown: int
    deferred: int
    tokens: int
    """Of what is shown, with the bridge tools."""
    tokens_in_full: int
    """Of all tools, if they were shown."""
    is_exact: bool

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        if not self.deferred:
            return f"all {self.shown:,} tools are listed ({about}{self.tokens:,} tokens)"
        saved = self.tokens_in_full - self.tokens
        part = f"{about}{saved:,} of {self.tokens_in_full:,} tokens saved"
        return f"{self.shown:,} tools are listed, {self.deferred:,} are behind tool_search ({part})"


def measure_listing(session: Session, *, exact: bool = False) -> ListingSize:
    """Measure what a client with this session is shown; exactly with the tokenizer, which loads slowly."""
    turn = session.assemble()
    count = _count_tokens if exact else _estimate_tokens
    offered = [tool for tool in turn.offered if not _is_extra(tool)]
    listed = [tool for tool in turn.tools if not _is_extra(tool)]
    own = [tool for tool in listed if tool.name not in BRIDGE_NAMES]
    return ListingSize(len(own), len(offered) - len(own), count(listed), count(offered), exact)


def _is_extra(tool: Tool) -> bool:
    """Return whether it stands for resources or prompts, which clients list by requests of their own."""
    return tool.source.kind == MCP_SOURCE and tool.own_name in EXTRAS


def _estimate_tokens(tools: Sequence[Tool]) -> int:
    return round(sum(len(_definition(tool)) for tool in tools) / _BYTES_PER_TOKEN)


def _count_tokens(tools: Sequence[Tool]) -> int:
    counter = TokenCounter()
    return sum(counter.text(_definition(tool)) for tool in tools)


def _definition(tool: Tool) -> str:
    return compact(tool.definition()["function"])
