"""Check the Host header, origin and cookies of browser requests for the gateway's pages."""

from __future__ import annotations

from collections.abc import Mapping

from toolfold.serving.gateway.http_app import AccessPolicy
from toolfold.serving.gateway.request_bodies import RequestRefused

_SAME_ORIGIN = (None, "same-origin", "none")


def require_own_host(policy: AccessPolicy, headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if a request is for another host, or comes from another website."""
    host = headers.get("host", "")
    if refusal := policy.find_refusal({"host": host}):
        raise RequestRefused(*refusal)
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        raise RequestRefused(403, "Requests from other web pages are refused.")
    if headers.get("sec-fetch-site") not in _SAME_ORIGIN and headers.get("sec-fetch-mode") != "navigate":
        raise RequestRefused(403, "Requests from other web pages are refused.")


def require_own_page(method: str, headers: Mapping[str, str]) -> None:
    """Raise RequestRefused if a state-changing request has no Origin header."""
    if method == "POST" and "origin" not in headers:
        raise RequestRefused(403, "A request that changes something must have the header Origin.")


def read_cookie(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie; empty if the request has none.

    Invalid cookies of other programs on the same host do not matter; the standard library stops at them.
    """
    for part in headers.get("cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
