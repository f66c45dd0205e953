"""Our own gateway among servers: behind itself it would start itself for ever. Starts and reaches nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from toolfold.sources.mcp.importing.types import ImportResult, RejectedEntry

SERVE_ARGUMENTS = ("mcp", "serve")
"""What is said to our program to make it a gateway for whoever starts it."""
GATEWAY_PATH = "/mcp"
"""Where a gateway that runs has its door."""
REJECTION_REASON = "it is Toolfold's own gateway"

# A shell is given a whole command line as one word.
_WORD = re.compile(r"[^\s\"';&|()]+")
_PORTS = {"http": 80, "https": 443}


def is_gateway(settings: Mapping[str, Any], addresses: Collection[str]) -> bool:
    """Whether a server is a gateway of ours. `addresses` are where those are that run."""
    doors = {door for each in addresses if (door := _parse_endpoint(each))}
    if settings.get("url"):
        return _parse_endpoint(str(settings["url"])) in doors
    said = [str(settings.get("command", "")), *map(str, settings.get("args", ()))]
    return _starts_gateway([word for each in said for word in _WORD.findall(each)]) or any(
        _parse_endpoint(each) in doors for each in said
    )


def reject_gateways(answer: ImportResult, addresses: Collection[str]) -> ImportResult:
    """The answer with our gateways among what cannot be used."""
    ours = [each for each in answer.servers if is_gateway(each.settings, addresses)]
    return replace(
        answer,
        servers=tuple(each for each in answer.servers if each not in ours),
        rejected=(
            *answer.rejected,
            *(RejectedEntry(each.name, each.source, REJECTION_REASON) for each in ours),
        ),
    )


def _starts_gateway(words: list[str]) -> bool:
    places = (place for place in range(len(words)) if tuple(words[place : place + 2]) == SERVE_ARGUMENTS)
    return any(_is_toolfold(each) for place in places for each in words[:place])


def _is_toolfold(word: str) -> bool:
    return "toolfold" in PurePath(word.replace("\\", "/")).name.lower()


def _parse_endpoint(url: str) -> tuple[str, int, str] | None:
    """Host, port and path, the same for every name this machine has for itself; None for no address."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    return (
        "localhost" if _is_local_host(parts.hostname) else parts.hostname,
        port,
        parts.path.rstrip("/") or GATEWAY_PATH,
    )


def _is_local_host(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
