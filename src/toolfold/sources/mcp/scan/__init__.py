"""Text from servers, looked through for what is meant for the model and not for its user.

Pure functions over what a server says of its tools and what its tools answer. Flags and marks; never drops
anything silently, and is no proof that a text is harmless. Knows no lock, no policy and no connection.
"""

from toolfold.sources.mcp.scan.findings import Finding
from toolfold.sources.mcp.scan.hidden import legible
from toolfold.sources.mcp.scan.look import neutralised, scan_offer, scan_offers, scan_text

__all__ = ["Finding", "legible", "neutralised", "scan_offer", "scan_offers", "scan_text"]
