"""Measure a gateway client's tool list, and the tokens saved by not listing every tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolfold.core.types import BRIDGE_NAMES, MCP_SOURCE, Tool
from toolfold.runtime.session import Session
from toolfold.selection.turn.tokens import TokenCounter, compact
from toolfold.serving.gateway.client_sessions import RESOURCE_AND_PROMPT_TOOLS

_BYTES_PER_TOKEN = 4.3
"""Average of the sample catalog's 277 definitions, in o200k tokens."""

Count = Callable[[Sequence[Tool]], int]


@dataclass(frozen=True, slots=True)
class ListingSize:
    """Number of tools in a client's tool list, number of omitted tools, and token counts."""

    shown: int
    deferred: int
    tokens: int
    """Tokens of the listed tools, including the bridge tools."""
    tokens_in_full: int
    """Tokens that a list of all tools would have."""
    is_exact: bool

    def __str__(self) -> str:
        about = "" if self.is_exact else "about "
        if not self.deferred:
            listed = "the only tool is" if self.shown == 1 else f"all {self.shown:,} tools are"
            return f"{listed} listed ({about}{self.tokens:,} tokens)"
        saved = self.tokens_in_full - self.tokens
        part = f"{about}{saved:,} of {self.tokens_in_full:,} tokens saved"
        if saved < 0:  # a few small tools take less than the bridge tools
            part = f"{about}{-saved:,} tokens more than listing them all"
        listed = "1 tool is" if self.shown == 1 else f"{self.shown:,} tools are"
        return f"{listed} listed, {self.deferred:,} are behind tool_search ({part})"


def measure_listing(session: Session, *, exact: bool = False) -> ListingSize:
    """Measure the tool list of a session; with `exact`, use the tokenizer, which is slow to load."""
    turn = session.assemble()
    count = _count_tokens if exact else _estimate_tokens
    offered = [tool for tool in turn.offered if not _is_stand_in(tool)]
    listed = [tool for tool in turn.tools if not _is_stand_in(tool)]
    own = [tool for tool in listed if tool.name not in BRIDGE_NAMES]
    return ListingSize(len(own), len(offered) - len(own), count(listed), count(offered), exact)


def _is_stand_in(tool: Tool) -> bool:
    """Return True if a tool was generated for resources or prompts that clients can request directly."""
    return tool.source.kind == MCP_SOURCE and tool.own_name in RESOURCE_AND_PROMPT_TOOLS


def _estimate_tokens(tools: Sequence[Tool]) -> int:
    return round(sum(len(_render_definition(tool)) for tool in tools) / _BYTES_PER_TOKEN)


def _count_tokens(tools: Sequence[Tool]) -> int:
    counter = TokenCounter()
    return sum(counter.text(_render_definition(tool)) for tool in tools)


def _render_definition(tool: Tool) -> str:
    return compact(tool.definition()["function"])
