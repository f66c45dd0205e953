"""Check the Host and Origin headers of HTTP requests. Standard library only."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_accepted_host(host: str, hosts: Collection[str]) -> bool:
    """Return True if the `Host` header names this machine, or one of `hosts`; any port is accepted."""
    name = _parse_hostname(host)
    return name in _LOOPBACK_NAMES or name in hosts


def is_accepted_origin(origin: str, origins: Collection[str]) -> bool:
    """Return True if a web page of this origin may use the gateway: from this machine or in `origins`."""
    if origin in origins:
        return True
    scheme, _, rest = origin.partition("://")
    return scheme in ("http", "https") and _parse_hostname(rest) in _LOOPBACK_NAMES


def _parse_hostname(value: str) -> str:
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""
