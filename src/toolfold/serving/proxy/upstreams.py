"""Find the provider for a model, its URLs and the API key for requests of the proxy.

A client's key is sent only to the provider it belongs to: the default one of the API that the client uses,
or one whose setting says so. Other providers get their own configured key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote, urlsplit

from toolfold.config import Config
from toolfold.config.agent_settings import ProviderSettings
from toolfold.core.errors import ConfigError, closest_names, did_you_mean
from toolfold.core.naming import matches_pattern
from toolfold.models.model_names import find_key, known_providers
from toolfold.serving.proxy.proxy_access import TOKEN_HEADER
from toolfold.serving.proxy.shared_keys import select_known_headers, select_known_parameters

Family = Literal["openai", "anthropic"]
"""The APIs that a provider offers: OpenAI's, or Anthropic's."""
Headers = list[tuple[bytes, bytes]]

_DEFAULT_URLS: Mapping[Family, str] = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
_OFFICIAL_HOSTS = frozenset(urlsplit(url).hostname for url in _DEFAULT_URLS.values())
_PATH_CHARS = "/~:@!$&'()*+,;="
HOP_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that concern one connection only."""
METHOD_OVERRIDES = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Headers by which a provider may treat a request that was checked as GET as another one."""
_OWN_REQUEST_HEADERS = frozenset(
    {
        *HOP_HEADERS,
        *METHOD_OVERRIDES,
        *("host", "expect", "content-length", TOKEN_HEADER, "cookie", "origin", "referer"),
    }
)
_TOKEN_IN_VALUE = re.compile(rb"(?:^|[\s=;,:])tf_")


@dataclass(frozen=True, slots=True)
class Upstream:
    """A model provider to which the proxy sends requests."""

    provider: str
    family: Family
    base_url: str
    timeout_s: float
    uses_client_key: bool
    own_key: str = ""
    """The key of the proxy; empty if the provider needs none or gets the client's."""
    is_fallback: bool = False
    """True if `proxy.upstreams` is set, and this provider gets the requests for which it names none."""

    def __repr__(self) -> str:
        return f"Upstream({self.provider!r}, {self.base_url!r})"  # without the key

    @property
    def is_official(self) -> bool:
        """Return True if this provider is OpenAI or Anthropic rather than a compatible server."""
        return urlsplit(self.base_url).hostname in _OFFICIAL_HOSTS

    def build_url(self, path: str, query: bytes, *, is_limited: bool = False) -> str:
        """Return this provider's URL for a path below /v1, with the client's query string.

        With the proxy's own key, and if rules limit the client's models, only known parameters are sent.
        """
        base = self.base_url.rstrip("/")
        if self.family == "anthropic" and not base.endswith("/v1"):
            base += "/v1"
        sent = query.decode("latin-1").split("&") if query else []
        if is_limited or not self.uses_client_key:
            sent = select_known_parameters(sent)
        # The path was decoded: quoting it keeps an encoded slash or question mark from changing the URL.
        return f"{base}/{quote(path, safe=_PATH_CHARS)}" + (f"?{'&'.join(sent)}" if sent else "")

    def build_headers(
        self, sent: Iterable[tuple[bytes, bytes]], token_headers: frozenset[str], *, is_limited: bool = False
    ) -> Headers:
        """Return the headers of a request to this provider, derived from the client's headers.

        With the proxy's own key, and if rules limit the client's models, only known headers are sent.
        """
        if is_limited or not self.uses_client_key:
            sent = select_known_headers(sent, uses_client_key=self.uses_client_key)
        dropped = _OWN_REQUEST_HEADERS | token_headers
        kept = [
            (name, value)
            for name, value in sent
            if name.decode("latin-1").lower() not in dropped and not _TOKEN_IN_VALUE.search(value)
        ]
        if not self.own_key:
            return kept
        if self.family == "anthropic":
            return [*kept, (b"x-api-key", self.own_key.encode())]
        return [*kept, (b"authorization", f"Bearer {self.own_key}".encode())]


class Upstreams:
    """Chooses the provider for each model according to the settings."""

    def __init__(self, config: Config) -> None:
        """Read the proxy's settings. Raises ConfigError for an unknown provider or a missing API key."""
        self._by_pattern = {
            pattern: _configured_upstream(pattern, each.provider, each.key == "client", config)
            for pattern, each in config.proxy.upstreams.items()
        }
        self._defaults: dict[Family, Upstream] = {
            family: _default_upstream(family, config) for family in _DEFAULT_URLS
        }

    @property
    def depend_on_model(self) -> bool:
        """Return True if the provider of a request depends on the name of its model."""
        return bool(self._by_pattern)

    @property
    def receive_client_keys(self) -> bool:
        """Return True if client keys may be sent to providers other than the default providers."""
        defaults = {each.base_url for each in self._defaults.values()}
        return any(
            each.uses_client_key and each.base_url not in defaults for each in self._by_pattern.values()
        )

    def find(self, model: str, family: Family) -> Upstream:
        """Return the provider configured for a model, or else the default provider of the client's API."""
        for pattern, upstream in self._by_pattern.items():
            if matches_pattern(model, pattern):
                return upstream
        return self._defaults[family]

    def require_other_address(self, host: str, port: int) -> None:
        """Raise ConfigError if a provider's URL is the address of this proxy."""
        for each in {*self._by_pattern.values(), *self._defaults.values()}:
            url = urlsplit(each.base_url)
            if url.port == port and url.hostname in {host, "localhost", "127.0.0.1", "::1"}:
                raise ConfigError(
                    f"the URL of the provider {each.provider!r} is the address of the proxy itself",
                    key=f"providers.{each.provider}.base_url",
                    hint="Set the URL of the provider to that of the provider's own API.",
                )


def _default_upstream(family: Family, config: Config) -> Upstream:
    """Return the default provider of an API, OpenAI or Anthropic, which receives the client's key.

    The user's settings of this provider, such as its URL, apply. The environment's base URL is not used:
    clients on this machine may have it set to the proxy.
    """
    settings = known_providers(config)[family]
    upstream = _build_upstream(family, settings, uses_client_key=True, own_key="")
    return replace(upstream, is_fallback=bool(config.proxy.upstreams))


def _configured_upstream(pattern: str, provider: str, uses_client_key: bool, config: Config) -> Upstream:
    providers = known_providers(config)
    settings = providers.get(provider)
    if settings is None:
        raise ConfigError(
            f"{provider!r} names no known model provider.{did_you_mean(closest_names(provider, providers))}",
            key=f"proxy.upstreams.{pattern}.provider",
        )
    own_key = "" if uses_client_key else find_key(provider, settings, config)
    return _build_upstream(provider, settings, uses_client_key=uses_client_key, own_key=own_key)


def _build_upstream(
    provider: str, settings: ProviderSettings, *, uses_client_key: bool, own_key: str
) -> Upstream:
    family: Family = "anthropic" if settings.dialect == "anthropic" else "openai"
    base_url = settings.base_url or _DEFAULT_URLS[family]
    return Upstream(provider, family, base_url, settings.timeout_seconds, uses_client_key, own_key)
