"""Fetch documents over HTTP(S), with limits on time, size and redirects.

Connects only to addresses that the policy allows, also after redirects. Sends no cookies, no credentials
and no referrer. Does not interpret the documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import httpcore2

from toolfold.core.errors import CallError, shorten
from toolfold.core.json_http import redact_url
from toolfold.tools.internet.address_policy import AddressPolicy, AddressRefused, check_url

__all__ = ["FetchFailed", "FetchLimits", "FetchedDocument", "Fetcher"]

MAX_REDIRECTS = 5
MAX_CONTENT_TYPE_CHARS = 1_000
MAX_GZIP_MEMBERS = 1_000
USER_AGENT = "Mozilla/5.0 (compatible; Toolfold)"
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # detects the format
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_URL_CHARACTERS = "%!$&'()*+,;=:@/?~-._[]"
_NETWORK_ERRORS = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)


class FetchFailed(CallError):
    """Raised when a document could not be fetched."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits on time, size and redirects of one fetch."""

    timeout_s: float = 30.0
    max_bytes: int = 10_000_000
    """Maximum size of a response body, before and after decompression. The rest is dropped."""
    max_redirects: int = MAX_REDIRECTS


@dataclass(frozen=True, slots=True)
class FetchedDocument:
    """Document fetched from a web server: final URL, status, body and type."""

    url: str
    """URL of the document after redirects."""
    status: int
    data: bytes = field(repr=False)
    media_type: str = ""
    charset: str = ""
    is_truncated: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of the response by their names in lower case."""

    def require_success(self) -> FetchedDocument:
        """Return this document. Raises FetchFailed if its HTTP status is not 2xx."""
        if 200 <= self.status < 300:
            return self
        raise FetchFailed(f"{redact_url(self.url)} answered with the status {self.status}.")


class Resolver(Protocol):
    """Interface that resolves a host and port to addresses; raises CallError if the host is refused."""

    async def resolve(self, host: str, port: int) -> list[str]: ...


class Fetcher:
    """HTTP(S) client that fetches documents only from addresses that its policy allows."""

    def __init__(self, policy: Resolver | None = None, limits: FetchLimits | None = None) -> None:
        self._policy = policy or AddressPolicy()
        self._limits = limits or FetchLimits()

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        same_origin: bool = False,
    ) -> FetchedDocument:
        """Fetch a document. Raises AddressRefused for a forbidden address, FetchFailed for other failures.

        With `same_origin`, redirects are followed with the headers, and one to another origin is a failure.
        """
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                return await self._follow(check_url(url), method, headers or {}, body, same_origin)
        except TimeoutError:
            raise FetchFailed(
                f"{redact_url(url)} did not answer completely within {self._limits.timeout_s:g} s."
            ) from None
        except _NETWORK_ERRORS as error:
            raise FetchFailed(f"{redact_url(url)} could not be reached: {_describe(error)}.") from None

    async def _follow(
        self, url: str, method: str, headers: Mapping[str, str], body: bytes | None, same_origin: bool
    ) -> FetchedDocument:
        for _ in range(self._limits.max_redirects + 1):
            document, target = await self._request(url, method, headers, body)
            if not target:
                return document
            before, url = url, _resolve_redirect(url, target)
            if same_origin:
                _require_same_origin(before, url)
            else:
                headers = {}  # they may contain a key for the first server only
            method, body = "HEAD" if method == "HEAD" else "GET", None
        raise FetchFailed(
            f"{redact_url(url)} was not fetched: it was reached after {self._limits.max_redirects} redirects,"
            " which is the limit."
        )

    async def _request(
        self, url: str, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[FetchedDocument, str]:
        """Send one HTTP request. Return the response, and the redirect URL or an empty string."""
        sent = {
            "Host": _host_header(url),
            "User-Agent": USER_AGENT,
            "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
            "Accept-Encoding": "gzip, deflate",
            **headers,
        }
        if body is not None:
            sent["Content-Length"] = str(len(body))
        async with httpcore2.AsyncConnectionPool(network_backend=_CheckedNetwork(self._policy)) as pool:
            timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._limits.timeout_s)
            async with pool.stream(
                method,
                _encode_url(url),
                headers=list(sent.items()),
                content=body,
                extensions={"timeout": timeouts},
            ) as response:
                found = _read_headers(response.headers)
                target = found.get("location", "") if response.status in _REDIRECTS else ""
                if target and self._limits.max_redirects:
                    return FetchedDocument(url, response.status, b""), target
                data, is_truncated = await self._read_body(response, found)
        content_type = _parse_content_type(found.get("content-type", ""))
        return FetchedDocument(url, response.status, data, *content_type, is_truncated, found), ""

    async def _read_body(
        self, response: httpcore2.Response, headers: Mapping[str, str]
    ) -> tuple[bytes, bool]:
        """Return the decompressed body, truncated at the size limit, and True if it was truncated."""
        limit = self._limits.max_bytes
        parts, size = list[bytes](), 0
        received = _limit_bytes(response.aiter_stream(), limit)
        async with contextlib.aclosing(_decompress(received, headers, limit)) as chunks:
            async for chunk in chunks:
                parts.append(chunk[: limit - size])
                size += len(chunk)
                if size > limit:
                    break
        return b"".join(parts), size > limit


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Network backend that connects only to addresses that the address policy allows.

    TLS still verifies the certificate for the host name.
    """

    def __init__(self, policy: Resolver) -> None:
        self._policy, self._network = policy, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the signature of the base class)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception | None = None
        for address in await self._policy.resolve(host, port):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.NetworkError, httpcore2.TimeoutException) as error:
                failure = error
        raise failure or httpcore2.ConnectError("no address")


async def _limit_bytes(chunks: AsyncIterable[bytes], limit: int) -> AsyncGenerator[bytes, None]:
    """Yield chunks of data until their total size exceeds the limit, including the exceeding chunk."""
    size = 0
    async for chunk in chunks:
        yield chunk
        size += len(chunk)
        if size > limit:
            return


async def _decompress(
    chunks: AsyncIterable[bytes], headers: Mapping[str, str], limit: int
) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed body in steps of limited size, as a few bytes may expand to gigabytes."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in chunks:
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise FetchFailed(f"The server uses the unsupported compression {shorten(encoding, 40)!r}.")
    decoder = _Decompressor(limit, accepts_raw=encoding == "deflate")
    async for chunk in chunks:
        try:
            yield decoder.decompress(chunk)
        except zlib.error:
            raise FetchFailed("The document could not be decompressed: its data is damaged.") from None


class _Decompressor:
    """Decompressor for gzip with one or more members, and for zlib with or without header."""

    def __init__(self, limit: int, *, accepts_raw: bool) -> None:
        self._limit, self._accepts_raw = limit, accepts_raw
        self._decoder = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
        self._members = 1

    def decompress(self, chunk: bytes) -> bytes:
        """Return the next decompressed data; stop soon after the size limit. Raises zlib.error."""
        parts, size = list[bytes](), 0
        while chunk and size <= self._limit:
            if self._decoder.eof and not self._start_member(chunk):
                break
            parts.append(self._decompress_member(chunk))
            size += len(parts[-1])
            chunk = self._decoder.unused_data
        return b"".join(parts)

    def _start_member(self, chunk: bytes) -> bool:
        """Prepare to decompress the next gzip member; return False if the remaining data is not gzip."""
        if chunk[:2] != _GZIP_MAGIC[: len(chunk)]:
            return False
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise FetchFailed(
                f"The document was not read: its gzip data has more than {MAX_GZIP_MEMBERS:,} members."
            )
        self._decoder = zlib.decompressobj(wbits=_GZIP_OR_ZLIB)
        return True

    def _decompress_member(self, chunk: bytes) -> bytes:
        accepts_raw, self._accepts_raw = self._accepts_raw, False
        try:
            return self._decoder.decompress(chunk, self._limit + 1)
        except zlib.error:
            if not accepts_raw:
                raise
        self._decoder = zlib.decompressobj(wbits=-zlib.MAX_WBITS)  # some servers leave out the zlib header
        return self._decoder.decompress(chunk, self._limit + 1)


def _resolve_redirect(url: str, target: str) -> str:
    """Return the absolute URL of a redirect; errors do not quote the URL, because it is untrusted."""
    try:
        return check_url(urljoin(url, target))
    except ValueError:
        raise FetchFailed(f"{redact_url(url)} redirects to an invalid URL.") from None
    except AddressRefused:
        raise AddressRefused(
            f"{redact_url(url)} redirects to a URL that cannot be opened: it is not a valid http or"
            " https URL, or contains a user name or password."
        ) from None


def _require_same_origin(url: str, target: str) -> None:
    """Raise FetchFailed if scheme, host or port of two URLs differ."""
    if _read_origin(url) != _read_origin(target):
        raise FetchFailed(
            f"{redact_url(url)} redirects to another server, or from http to https. Only redirects within the"
            " same scheme, host and port are followed."
        )


def _read_origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): _decode_header(value) for name, value in headers}


def _decode_header(value: bytes) -> str:
    try:
        return value.decode()  # many servers send URLs in UTF-8
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _parse_content_type(header: str) -> tuple[str, str]:
    """Return media type and character set of a Content-Type header, both in lower case."""
    message = Message()
    message["content-type"] = header[:MAX_CONTENT_TYPE_CHARS]  # slow codecs may be applied to parameters
    charset = message.get_content_charset("")
    return (message.get_content_type() if header else ""), charset


def _encode_url(url: str) -> str:
    """Return a URL in ASCII without its fragment: host encoded with IDNA, other parts percent-encoded."""
    parts = urlsplit(url)
    path, query = (quote(part, safe=_URL_CHARACTERS) for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme, _host_header(url), path, query, ""))


def _host_header(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise FetchFailed(f"{shorten(host)!r} is not a valid host name.") from None
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if parts.port else host


def _describe(error: Exception) -> str:
    return shorten(str(error) or type(error).__name__, 300)
