"""Check the Host and Origin headers of HTTP requests, using only the standard library."""

from __future__ import annotations

import re
from collections.abc import Collection

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST_AND_PORT = re.compile(r"([^\s/?#@\\\[\]:,]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
"""A host with an optional port, and nothing else of a URL: programs disagree about which part is the host."""


def is_accepted_host(host: str, hosts: Collection[str]) -> bool:
    """Return True if the `Host` header names this machine or one of `hosts`, with any port."""
    name = _parse_hostname(host)
    return name in _LOOPBACK_NAMES or name in hosts


def is_accepted_origin(origin: str, origins: Collection[str]) -> bool:
    """Return True if web pages of this origin may use the gateway: a local origin, or one in `origins`."""
    if origin in origins:
        return True
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and _parse_hostname(rest) in _LOOPBACK_NAMES


def _parse_hostname(value: str) -> str:
    found = _HOST_AND_PORT.fullmatch(value)
    return found[1].strip("[]").lower() if found else ""
