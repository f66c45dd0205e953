"""Text from servers, looked through for what is meant for the model and not for its user.

Pure functions over what a server says of its tools and what its tools answer. Flags and marks; never drops
anything silently, and is no proof that a text is harmless. Knows no lock, no policy and no connection. The
words and weights behind it are read when it is first asked, for most who import it ask late or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolfold.sources.mcp.offers import Offer
from toolfold.sources.mcp.scan.findings import Finding

__all__ = ["Finding", "legible", "neutralised", "scan_offer", "scan_offers", "scan_text"]


def scan_offer(offer: Offer, server: str, others: Mapping[str, Sequence[Offer]]) -> tuple[Finding, ...]:
    """Why a tool should be looked at before a model sees it.

    `others` are the tools of the other servers; under the server's own name, those of the server itself.
    """
    from toolfold.sources.mcp.scan import look

    return look.scan_offers([offer], server, others)[0]


def scan_offers(
    offers: Iterable[Offer], server: str, others: Mapping[str, Sequence[Offer]]
) -> list[tuple[Finding, ...]]:
    """The same for many tools of one server: what stands around them is read once."""
    from toolfold.sources.mcp.scan import look

    return look.scan_offers(offers, server, others)


def scan_text(text: str, *, where: str = "result") -> tuple[Finding, ...]:
    """Why a text should be taken for data alone."""
    from toolfold.sources.mcp.scan import look

    return look.scan_text(text, where=where)


def neutralised(text: str, findings: Iterable[Finding]) -> str:
    """The text with what was found in it made harmless: nothing is dropped but what nobody sees."""
    from toolfold.sources.mcp.scan import look

    return look.neutralised(text, findings)


def legible(text: str) -> str:
    """Text that can be shown: what nobody sees is written out, and no cursor moves."""
    from toolfold.sources.mcp.scan import hidden

    return hidden.legible(text)
