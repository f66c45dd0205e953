"""Scan text from MCP servers for prompt injection and disguised content.

Pure functions over tool definitions and tool results. The scanner reports and marks; it never drops text
silently, and a clean result does not prove that a text is harmless. Knows nothing of lock files, policies or
connections. Phrases and weights are loaded on first use, because many programs import but never scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolfold.mcp.scan.findings import ScanFinding
from toolfold.mcp.tool_listing import ListedTool

__all__ = [
    "ScanFinding",
    "escape_hidden",
    "find_injections",
    "mark_page",
    "neutralise_text",
    "scan_text",
    "scan_tool",
    "scan_tools",
]


def scan_tool(
    tool: ListedTool, server: str, others: Mapping[str, Sequence[ListedTool]]
) -> tuple[ScanFinding, ...]:
    """Return the reasons why a person should review a tool before a model sees it.

    `others` maps each server to its tools; the server's own name maps to its own tools.
    """
    from toolfold.mcp.scan import scanner

    return scanner.scan_tools([tool], server, others)[0]


def scan_tools(
    tools: Iterable[ListedTool], server: str, others: Mapping[str, Sequence[ListedTool]]
) -> list[tuple[ScanFinding, ...]]:
    """Return the scan findings for each tool of one server; faster than calling `scan_tool` for each."""
    from toolfold.mcp.scan import scanner

    return scanner.scan_tools(tools, server, others)


def scan_text(text: str, *, where: str = "result") -> tuple[ScanFinding, ...]:
    """Return the scan findings for the text of a tool's result."""
    from toolfold.mcp.scan import scanner

    return scanner.scan_text(text, where=where)


def find_injections(text: str) -> list[tuple[int, int]]:
    """Return the positions of passages in a file that certainly address a model or are hidden from people.

    Stricter than `scan_text`: documents and programs are full of orders to people and of sentences about
    models, which are left out.
    """
    from toolfold.mcp.scan import scanner

    return scanner.find_injections(text)


def mark_page(text: str) -> str:
    """Return the text of a web page, with markers around passages that most likely address a model.

    Less strict than `find_injections`, but stricter than `scan_text`, which suits the results of tools.
    """
    from toolfold.mcp.scan import scanner

    return scanner.mark_page(text)


def neutralise_text(text: str, findings: Iterable[ScanFinding]) -> str:
    """Return the text without hidden characters, and with markers around injected instructions."""
    from toolfold.mcp.scan import scanner

    return scanner.neutralise_text(text, findings)


def escape_hidden(text: str) -> str:
    """Return printable text in which hidden and control characters are replaced by their code points."""
    from toolfold.mcp.scan import hidden_characters

    return hidden_characters.escape_hidden(text)
