"""Send the HTTP requests of an OAuth login, and check their target URLs.

The server names its authorization server, so the URLs are untrusted: only HTTPS is allowed besides the
server's own origin, and this machine only for servers on this machine. A host is judged by its addresses too;
one that has others when the connection is made cannot show a certificate for the name. Responses are bounded.
The content of an error response is not passed on, because it may contain secrets. Knows nothing of the order
of requests.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import urllib.request
from collections.abc import Collection
from urllib.parse import urlsplit

import httpx2
from mcp.shared.auth import OAuthToken
from pydantic import ValidationError

from toolfold.core.errors import shorten
from toolfold.core.invisible_characters import remove_invisible
from toolfold.core.types import Json, read_json
from toolfold.safety.redaction import Redaction
from toolfold.tools.internet.address_policy import AddressPolicy

REQUEST_TIMEOUT_S = 20.0
MAX_REQUESTS = 30
_MAX_RESPONSE_BYTES = 1_000_000
_THIS_MACHINE = ("127.0.0.0/8", "::1/128")
_INTERNAL_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
_ENCODING_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class AuthError(Exception):
    """Failed OAuth request; `code` is the issuer's error code, if any."""

    def __init__(self, message: str, code: str = "", *, status: int = 0) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class AuthHttpClient:
    """HTTP client for one OAuth login or token refresh."""

    def __init__(self, server_url: str, secrets: Collection[str] = ()) -> None:
        self._server_url = server_url
        self._redact = Redaction(secrets, max_chars=500)
        self._client = httpx2.AsyncClient(timeout=REQUEST_TIMEOUT_S, follow_redirects=False)
        self._sent = 0

    async def __aenter__(self) -> AuthHttpClient:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def send(self, request: httpx2.Request, *, required_field: str | None = None) -> httpx2.Response:
        """Send a request and read the response. Raises AuthError if the response lacks a required field.

        By default, a posted form must return a token and a posted JSON document a client.
        """
        self._sent += 1
        if self._sent > MAX_REQUESTS:
            raise AuthError(f"the login was stopped because it needs more than {MAX_REQUESTS} requests")
        require_allowed_url(str(request.url), self._server_url)
        await require_allowed_address(str(request.url), self._server_url)
        try:
            streamed = await self._client.send(request, stream=True)
            try:
                response = await _read_response(streamed)
            finally:
                await streamed.aclose()
        except httpx2.HTTPError as error:
            raise AuthError(f"{request.url.host} cannot be reached: {type(error).__name__}") from None
        if request.method == "POST" and not response.is_redirect:
            is_form = "urlencoded" in request.headers.get("content-type", "")
            default_field = "access_token" if is_form else "client_id"
            self._require_field(
                default_field if required_field is None else required_field, request, response
            )
        return response

    def _require_field(self, field: str, request: httpx2.Request, response: httpx2.Response) -> None:
        body = parse_json_object(response)
        has_field = not field or (isinstance(body.get(field), str) and body[field])
        if response.status_code in (200, 201) and has_field and (field != "access_token" or _is_usable(body)):
            return
        failure = {"access_token": "returned no token", "client_id": "registers no client"}.get(
            field, "refused"
        )
        code = body["error"] if isinstance(body.get("error"), str) else ""
        description = body["error_description"] if isinstance(body.get("error_description"), str) else ""
        details = shorten(remove_invisible(": ".join(text for text in (code, description) if text)), 300)
        redacted = self._redact(f" ({details})") if details else ""
        raise AuthError(
            f"{request.url.host} {failure}: HTTP {response.status_code}{redacted}",
            remove_invisible(code)[:60],
            status=response.status_code,
        )


def _is_usable(token: Json) -> bool:
    try:
        OAuthToken.model_validate(token)
    except ValidationError:
        return False
    return True


def parse_json_object(response: httpx2.Response) -> Json:
    """Return the JSON object in a response; an empty object if there is none."""
    try:
        body = read_json(response.text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def require_allowed_url(url: str, server_url: str) -> None:
    """Raise AuthError if login requests must not be sent to this URL."""
    if is_same_origin(url, server_url):
        return
    parts, server = _split_origin(url), _split_origin(server_url)
    if _is_loopback(parts[1]) and not _is_loopback(server[1]):
        raise AuthError(f"the server redirects the login to {shorten(parts[1], 80)}, which is this machine")
    if parts[0] != "https" and not (parts[0] == "http" and _is_loopback(parts[1])):
        raise AuthError(f"the server redirects the login to {shorten(parts[1], 80)} without encryption")


async def require_allowed_address(url: str, server_url: str) -> None:
    """Raise AuthError if the host of a URL has an address to which login requests must not be sent.

    A name may have an address in an internal network, as in many companies. An address in place of a name may
    be internal only if that of the server is. A host whose address is not found is refused. Nothing is
    checked if a forward proxy connects to the host.
    """
    scheme, host, port = _split_origin(url)
    if is_same_origin(url, server_url) or _has_forward_proxy(scheme, host):
        return
    own_host = _split_origin(server_url)[1]
    allowed: tuple[str, ...] = _THIS_MACHINE if _is_loopback(own_host) else ()
    if not await _look_up(host, port, is_numeric=True) or await _is_internal(own_host):
        allowed += _INTERNAL_NETWORKS
    policy = AddressPolicy.allowing(allowed)
    addresses = await _look_up(host, port)
    if not addresses:  # the request would look it up again, and could get an address that is not allowed
        raise AuthError(f"{shorten(host, 80)} cannot be reached: its address was not found")
    for address in addresses:
        if not policy.allows(address):
            name = shorten(host, 80)
            raise AuthError(
                f"the server redirects the login to {name}, whose address {address} is not allowed"
            )


async def _is_internal(host: str) -> bool:
    """Return True if a host is not on the public internet."""
    policy = AddressPolicy()
    return any(not policy.allows(address) for address in await _look_up(host, None))


async def _look_up(
    host: str, port: int | None, *, is_numeric: bool = False
) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the IP addresses of a host; empty if the lookup fails. `is_numeric` disables DNS."""
    flags = socket.AI_NUMERICHOST if is_numeric else 0
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=flags
            )
        return [ipaddress.ip_address(str(address[0])) for *_, address in found]
    except (OSError, ValueError):  # also if it takes too long
        return []


def _has_forward_proxy(scheme: str, host: str) -> bool:
    proxies = urllib.request.getproxies()
    return bool({scheme, "all"} & proxies.keys()) and not urllib.request.proxy_bypass(host)


def origin(url: str) -> str:
    """Return scheme and authority of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_same_origin(one: str, other: str) -> bool:
    """Return True if two URLs have the same scheme, host and port."""
    return _split_origin(one) == _split_origin(other)


def _split_origin(url: str) -> tuple[str, str, int | None]:
    try:
        split = urlsplit(url)
        port = split.port or {"http": 80, "https": 443}.get(split.scheme)
        return split.scheme, (split.hostname or "").rstrip("."), port
    except ValueError:
        raise AuthError("it names an invalid URL") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _read_response(streamed: httpx2.Response) -> httpx2.Response:
    content = bytearray()
    async for piece in streamed.aiter_bytes():
        content += piece
        if len(content) > _MAX_RESPONSE_BYTES:
            raise AuthError(
                f"{streamed.request.url.host} sent more than {_MAX_RESPONSE_BYTES} bytes, which is the limit"
            )
    headers = [
        (name, value)
        for name, value in streamed.headers.multi_items()
        if name.lower() not in _ENCODING_HEADERS
    ]
    response = httpx2.Response(
        streamed.status_code, headers=headers, content=bytes(content), request=streamed.request
    )
    response.next_request = streamed.next_request
    return response
