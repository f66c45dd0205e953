"""The requests of a login, and where they may go.

A server names where its logins are done, so the addresses are foreign: only encrypted ones are asked, beside
the server's own origin; this machine is asked for servers on this machine alone. Answers are bounded, and an
answer that tells of a failure goes no further: what it says may hold secrets. Knows no order of requests.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

import httpx2
from mcp.shared.auth import OAuthToken
from pydantic import ValidationError

from toolfold.errors import shorten
from toolfold.model import Json, read_json
from toolfold.redaction import Redaction
from toolfold.visible import visible

SECONDS = 20.0
MOST_REQUESTS = 30
_LARGEST = 1_000_000
_HOW_CODED = ("content-encoding", "content-length", "transfer-encoding")


class Refusal(Exception):
    """An issuer's no. `code` is its word for the reason, if it gave one."""

    def __init__(self, what: str, code: str = "", *, status: int = 0) -> None:
        super().__init__(what)
        self.code, self.status = code, status


class Traffic:
    """Sends the requests of one login or renewal."""

    def __init__(self, server_url: str, secrets: Collection[str] = ()) -> None:
        self._server_url = server_url
        self._redact = Redaction(secrets, longest=500)
        self._client = httpx2.AsyncClient(timeout=SECONDS, follow_redirects=False)
        self._sent = 0

    async def __aenter__(self) -> Traffic:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def send(self, request: httpx2.Request, *, expects: str | None = None) -> httpx2.Response:
        """The answer, read to its end. Raises Refusal where it lacks what must stand in it.

        That is by itself a token for a form that is posted, and a client for a document.
        """
        self._sent += 1
        if self._sent > MOST_REQUESTS:
            raise Refusal("it leads from one address to the next without end")
        require_allowed(str(request.url), self._server_url)
        try:
            answer = await self._client.send(request, stream=True)
            try:
                response = await _whole(answer)
            finally:
                await answer.aclose()
        except httpx2.HTTPError as error:
            raise Refusal(f"{request.url.host} cannot be reached: {type(error).__name__}") from None
        if request.method == "POST" and not response.is_redirect:
            is_form = "urlencoded" in request.headers.get("content-type", "")
            usual = "access_token" if is_form else "client_id"
            self._require(usual if expects is None else expects, request, response)
        return response

    def _require(self, wanted: str, request: httpx2.Request, response: httpx2.Response) -> None:
        said = said_by(response)
        has_it = not wanted or (isinstance(said.get(wanted), str) and said[wanted])
        if response.status_code in (200, 201) and has_it and (wanted != "access_token" or _is_usable(said)):
            return
        what = {"access_token": "gives no token", "client_id": "registers no client"}.get(wanted, "says no")
        code = said["error"] if isinstance(said.get("error"), str) else ""
        why = said["error_description"] if isinstance(said.get("error_description"), str) else ""
        words = shorten(visible(": ".join(each for each in (code, why) if each)), 300)
        told = self._redact(f" ({words})") if words else ""
        raise Refusal(
            f"{request.url.host} {what}: HTTP {response.status_code}{told}",
            visible(code)[:60],
            status=response.status_code,
        )


def _is_usable(token: Json) -> bool:
    try:
        OAuthToken.model_validate(token)
    except ValidationError:
        return False
    return True


def said_by(response: httpx2.Response) -> Json:
    """The JSON object of an answer, or an empty one."""
    try:
        said = read_json(response.text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def require_allowed(address: str, server_url: str) -> None:
    """Raises Refusal where a login has no business."""
    if same_origin(address, server_url):
        return
    parts, server = _parts(address), _parts(server_url)
    if _is_here(parts[1]) and not _is_here(server[1]):
        raise Refusal(f"it sends logins to {shorten(parts[1], 80)}, which is this machine")
    if parts[0] != "https" and not (parts[0] == "http" and _is_here(parts[1])):
        raise Refusal(f"it sends logins to {shorten(parts[1], 80)} by a way that is not encrypted")


def origin(address: str) -> str:
    """Scheme and authority of an address."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


def same_origin(one: str, other: str) -> bool:
    """Whether two addresses are at the same scheme, host and port."""
    return _parts(one) == _parts(other)


def _parts(address: str) -> tuple[str, str, int | None]:
    try:
        split = urlsplit(address)
        port = split.port or {"http": 80, "https": 443}.get(split.scheme)
        return split.scheme, (split.hostname or "").rstrip("."), port
    except ValueError:
        raise Refusal("it names an address that is none") from None


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _whole(answer: httpx2.Response) -> httpx2.Response:
    content = bytearray()
    async for piece in answer.aiter_bytes():
        content += piece
        if len(content) > _LARGEST:
            raise Refusal(f"{answer.request.url.host} answers with more than is taken")
    headers = [
        (name, value) for name, value in answer.headers.multi_items() if name.lower() not in _HOW_CODED
    ]
    response = httpx2.Response(
        answer.status_code, headers=headers, content=bytes(content), request=answer.request
    )
    response.next_request = answer.next_request
    return response
