"""Recognise Toolfold gateways among MCP servers, because a gateway must not start itself.

Starts nothing and connects to nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from toolfold.mcp.importing.import_types import ImportResult, RejectedEntry

SERVE_ARGUMENTS = ("mcp", "serve")
"""Arguments that start Toolfold as a gateway on stdio."""
GATEWAY_PATH = "/mcp"
"""URL path of a running gateway."""
REJECTION_REASON = "it is Toolfold's own gateway"

# Split arguments: a shell gets a whole command line as one argument.
_WORD = re.compile(r"[^\s\"';&|()]+")
_PORTS = {"http": 80, "https": 443}


def is_gateway(settings: Mapping[str, Any], addresses: Collection[str]) -> bool:
    """Return True if a server is a Toolfold gateway; `addresses` are the URLs of running gateways."""
    running = {endpoint for url in addresses if (endpoint := _parse_endpoint(url))}
    if settings.get("url"):
        return _parse_endpoint(str(settings["url"])) in running
    arguments = [str(settings.get("command", "")), *map(str, settings.get("args", ()))]
    return _starts_gateway([word for argument in arguments for word in _WORD.findall(argument)]) or any(
        _parse_endpoint(argument) in running for argument in arguments
    )


def reject_gateways(result: ImportResult, addresses: Collection[str]) -> ImportResult:
    """Return the import result with Toolfold's own gateways moved to the rejected entries."""
    gateways = [each for each in result.servers if is_gateway(each.settings, addresses)]
    return replace(
        result,
        servers=tuple(each for each in result.servers if each not in gateways),
        rejected=(
            *result.rejected,
            *(RejectedEntry(each.name, each.source, REJECTION_REASON) for each in gateways),
        ),
    )


def _starts_gateway(words: list[str]) -> bool:
    positions = (index for index in range(len(words)) if tuple(words[index : index + 2]) == SERVE_ARGUMENTS)
    return any(_is_toolfold(word) for position in positions for word in words[:position])


def _is_toolfold(word: str) -> bool:
    return "toolfold" in PurePath(word.replace("\\", "/")).name.lower()


def _parse_endpoint(url: str) -> tuple[str, int, str] | None:
    """Return host, port and path of a URL, with `localhost` for local host names; None if it is not a URL."""
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
