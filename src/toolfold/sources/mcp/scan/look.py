"""The scanner's three questions: what of a tool, what of a text, and the text made harmless.

Puts together what the other modules of this folder find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolfold.sources.mcp.offers import Offer
from toolfold.sources.mcp.scan.findings import Finding
from toolfold.sources.mcp.scan.hidden import bare, hidden_runs, legible


def scan_offer(offer: Offer, server: str, others: Mapping[str, Sequence[Offer]]) -> tuple[Finding, ...]:
    """Why a tool should be looked at before a model sees it. `others` are the tools of the other servers."""
    del server, others
    return scan_text(offer.description, where="description")


def scan_text(text: str, *, where: str = "result") -> tuple[Finding, ...]:
    """Why a text should be taken for data alone."""
    return tuple(
        Finding("hidden", where, legible(text[max(0, run.start - 20) : run.end + 20]), f"it holds {run.what}")
        for run in hidden_runs(text)
    )


def neutralised(text: str, findings: Iterable[Finding]) -> str:
    """The text with what was found in it made harmless."""
    return bare(text) if any(findings) else text
