"""Identity provider: fetch and cache its metadata and public keys.

The provider's URL is configured by an administrator, so its host may have a private address. The URLs in its
metadata may not, unless they are on the same host. Redirects are not followed, and responses have limits on
time and size. Sends no token anywhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolfold.core.errors import ToolfoldError
from toolfold.core.types import Json
from toolfold.tools.internet.address_policy import AddressPolicy, AddressRefused
from toolfold.tools.internet.fetching import Fetcher, FetchFailed, FetchLimits

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 10.0
MAX_DOCUMENT_BYTES = 262_144
MAX_KEYS = 100
REFRESH_INTERVAL_S = 600.0
"""Age at which keys are fetched again."""
MIN_FETCH_INTERVAL_S = 15.0
"""Shortest time between the end of a request and the next one, however many tokens name an unknown key."""
MAX_REFRESH_WAIT_S = 2.0
"""How long a request with a known key waits for newer keys: that key may have been withdrawn."""
MAX_KEY_AGE_S = 86_400.0
"""Age at which keys are no longer used if they cannot be fetched again: one may have been withdrawn."""
MIN_RSA_BITS = 2_048
_ANY_NETWORK = ("0.0.0.0/0", "::/0")


class IssuerUnavailable(ToolfoldError):
    """The identity provider's metadata or keys are invalid or cannot be fetched."""

    def __init__(self, problem: str, *, status: int = 0) -> None:
        """Create the error; `status` is the provider's HTTP status, or 0 if there was no response."""
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True, slots=True)
class _FetchedKeys:
    """Public keys of an identity provider, and the time of the last fetch."""

    keys: Mapping[str, PyJWK]
    """The signature keys by id; a key without an id is stored under an empty id."""
    fetched: float


class Issuer:
    """Identity provider with its metadata and signing keys. Used in one event loop."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a provider with this issuer URL, without fetching anything."""
        self.url, self._clock = url, clock
        self._fetcher = Fetcher(
            _IssuerAddresses(urlsplit(url).hostname or ""),
            FetchLimits(FETCH_TIMEOUT_S, MAX_DOCUMENT_BYTES, max_redirects=0),
        )
        self._metadata: Json = {}
        self._keys: _FetchedKeys | None = None
        self._last_attempt = float("-inf")
        self._failure = ""
        self._refresh: asyncio.Task[None] | None = None

    async def load_metadata(self) -> Json:
        """Return the provider's metadata document. Raises IssuerUnavailable."""
        if not self._metadata:
            self._metadata = await self._fetch_metadata()
        return self._metadata

    async def load_key(self, key_id: str) -> None:
        """Fetch the provider's keys if they are missing, outdated or lack this key. Raises IssuerUnavailable.

        An unknown key id leads to a request at most every `MIN_FETCH_INTERVAL_S`. Old keys that contain this
        key are fetched in the background: the first caller waits for at most `MAX_REFRESH_WAIT_S`.
        """
        if self._is_current(key_id):
            return
        is_known, is_running = self.find_key(key_id) is not None, self._is_refreshing()
        refresh = self._start_refresh()
        if refresh is not None and not (is_known and is_running):
            done, _ = await asyncio.wait([refresh], timeout=MAX_REFRESH_WAIT_S if is_known else None)
            for each in done:
                each.result()
        if self._usable_keys() is None:
            raise IssuerUnavailable(self._failure or f"the keys of {self.url} are not known")

    def _is_refreshing(self) -> bool:
        return self._refresh is not None and not self._refresh.done()

    def _start_refresh(self) -> asyncio.Task[None] | None:
        """Start fetching the keys and return the task; None if the last attempt was too recent."""
        if self._is_refreshing():
            return self._refresh
        if self._clock() - self._last_attempt < MIN_FETCH_INTERVAL_S:
            return None
        self._refresh = asyncio.create_task(self._fetch_keys())
        return self._refresh

    def find_key(self, key_id: str) -> PyJWK | None:
        """Return a fetched key by its id, or the only key if the id is empty; None if there is none."""
        keys = self._usable_keys()
        if not keys:
            return None
        return keys.get(key_id) if key_id or len(keys) != 1 else next(iter(keys.values()))

    def _usable_keys(self) -> Mapping[str, PyJWK] | None:
        if self._keys is None or self._clock() - self._keys.fetched > MAX_KEY_AGE_S:
            return None
        return self._keys.keys

    def _is_current(self, key_id: str) -> bool:
        is_fresh = self._keys is not None and self._clock() - self._keys.fetched < REFRESH_INTERVAL_S
        return is_fresh and self.find_key(key_id) is not None

    async def _fetch_keys(self) -> None:
        """Fetch and cache the keys again; on failure, log the error and keep the known keys."""
        try:
            metadata = await self.load_metadata()
            document = await self.fetch_document(str(metadata.get("jwks_uri") or ""))
            self._keys = _FetchedKeys(_parse_keys(document), self._clock())
            self._failure = ""
        except IssuerUnavailable as error:
            self._failure = str(error)
            self._metadata = {}  # the address of the keys may have changed
            log.warning("the keys of the identity provider cannot be fetched: %s", error)
        finally:
            self._last_attempt = self._clock()  # at the end: an attempt can take longer than the pause

    async def _fetch_metadata(self) -> Json:
        failure: IssuerUnavailable | None = None
        for url in _list_metadata_urls(self.url):
            try:
                document = await self.fetch_document(url)
            except IssuerUnavailable as error:
                failure = failure or error
                continue
            if document.get("issuer") != self.url:
                raise IssuerUnavailable(
                    f"{url} describes another issuer than {self.url}: use exactly the value of `issuer` there"
                )
            return document
        raise failure or IssuerUnavailable(f"{self.url} has no metadata")

    async def fetch_document(
        self, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        """Fetch a JSON object from the provider, by POST if there is a body. Raises IssuerUnavailable."""
        require_secure_url(url, self.url)
        sent = {"Accept": "application/json", **(headers or {})}
        try:
            found = await self._fetcher.fetch(
                url, method="GET" if body is None else "POST", headers=sent, body=body
            )
        except (AddressRefused, FetchFailed) as error:
            raise IssuerUnavailable(str(error).rstrip(".")) from None
        if found.status != 200:
            raise IssuerUnavailable(f"{url} answered with the status {found.status}", status=found.status)
        if found.is_truncated:
            raise IssuerUnavailable(f"{url} sent more than {MAX_DOCUMENT_BYTES:,} bytes")
        try:
            document = json.loads(found.data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise IssuerUnavailable(f"{url} did not answer with a JSON object")
        return document


def require_secure_url(url: str, issuer: str) -> None:
    """Raise IssuerUnavailable for a URL without https, unless its host is the issuer's on this machine."""
    try:
        parts, own = urlsplit(url), urlsplit(issuer)
    except ValueError:
        raise IssuerUnavailable("the identity provider names an invalid URL") from None
    is_local = parts.hostname == own.hostname and is_loopback_name(parts.hostname or "")
    if not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
        raise IssuerUnavailable(
            f"the identity provider {issuer} names a URL without encryption or an invalid one"
        )


def is_loopback_name(host: str) -> bool:
    """Return True if a host name or address refers to this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _IssuerAddresses:
    """Address policy that allows any IP address for the issuer's host, and public ones for other hosts."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._own, self._others = AddressPolicy.allowing(_ANY_NETWORK), AddressPolicy()

    async def resolve(self, host: str, port: int) -> list[str]:
        return await (self._own if host == self._host else self._others).resolve(host, port)


def _list_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the possible URLs of the metadata: OpenID Connect Discovery first, then RFC 8414."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    return (
        f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )


def _parse_keys(document: Json) -> dict[str, PyJWK]:
    """Return the asymmetric signing keys of a JWKS document, without invalid or unsupported keys."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise IssuerUnavailable("the identity provider's keys have no list `keys`")
    keys: dict[str, PyJWK] = {}
    for each in listed[:MAX_KEYS]:
        key = _parse_key(each) if isinstance(each, dict) else None
        if key is not None:
            keys[str(each.get("kid") or "")] = key
    return keys


def _parse_key(data: Json) -> PyJWK | None:
    from jwt import PyJWK, PyJWTError

    if data.get("use", "sig") != "sig" or data.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        key = PyJWK(data)
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    is_weak = data["kty"] == "RSA" and key.key.key_size < MIN_RSA_BITS
    return None if is_weak else key


__all__ = ["Issuer", "IssuerUnavailable", "is_loopback_name", "require_secure_url"]
