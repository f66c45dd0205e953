"""Web search services behind one interface: SearXNG, Brave, Tavily and DuckDuckGo.

Each backend builds a request and parses the response. The URL of a service comes from the user's settings or
is fixed here, never from a model, so it may be on a private address. Redirects are not followed, because a
request may carry an API key.
"""

from __future__ import annotations

import html.parser
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from toolfold.config.web_settings import SearchSettings
from toolfold.core.errors import CallError, shorten
from toolfold.core.types import Json, read_json
from toolfold.tools.internet.address_policy import check_url

if TYPE_CHECKING:
    from toolfold.tools.internet.fetching import FetchedDocument, Fetcher

__all__ = [
    "SearchBackend",
    "SearchHit",
    "SearchUnavailable",
    "build_search_backend",
    "require_search_backend",
]

MAX_ANSWER_BYTES = 4_000_000
MAX_TITLE_CHARS = 300
MAX_SNIPPET_CHARS = 1_000
MAX_HIT_URL_CHARS = 2_000
BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"
TAVILY_URL = "https://api.tavily.com/search"
DUCKDUCKGO_URL = "https://html.duckduckgo.com/html/"
_SERVICE_URLS = {"brave": BRAVE_URL, "tavily": TAVILY_URL, "duckduckgo": DUCKDUCKGO_URL}
_KEY_VARIABLES = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}


class SearchUnavailable(CallError):
    """Raised when a search service is not fully configured, refuses a search or sends an invalid response."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result of a web search."""

    title: str
    url: str
    snippet: str = ""


class SearchBackend(Protocol):
    """A web search service."""

    @property
    def name(self) -> str:
        """Name of the search service in the setting `web.search.backend`."""

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        """Return at most `limit` results, best first. Raises CallError if the search fails."""


@dataclass(frozen=True, slots=True)
class _ChosenBackend:
    """Name, URL and API key of the search service that the settings select."""

    name: str
    url: str
    key: str = field(default="", repr=False)


def build_search_backend(settings: SearchSettings, environment: Mapping[str, str]) -> SearchBackend:
    """Return the configured search service. Raises SearchUnavailable if its URL or key is missing.

    The setting `auto` selects SearXNG if its URL is set, else a service whose key is in the environment, else
    DuckDuckGo, which needs neither.
    """
    from toolfold.tools.internet.fetching import Fetcher, FetchLimits

    chosen = _choose_backend(settings, environment)
    fetcher = Fetcher(_UserChosen(), FetchLimits(settings.timeout_seconds, MAX_ANSWER_BYTES, max_redirects=0))
    if chosen.name == "searxng":
        return SearxngBackend(fetcher, chosen.url)
    if chosen.name == "duckduckgo":
        return DuckDuckGoBackend(fetcher, chosen.url)
    if chosen.name == "brave":
        return BraveBackend(fetcher, chosen.url, chosen.key)
    return TavilyBackend(fetcher, chosen.url, chosen.key)


def require_search_backend(settings: SearchSettings, environment: Mapping[str, str]) -> None:
    """Raise SearchUnavailable if the URL or API key of the configured search service is missing."""
    _choose_backend(settings, environment)


def _choose_backend(settings: SearchSettings, environment: Mapping[str, str]) -> _ChosenBackend:
    name = settings.backend if settings.backend != "auto" else _find_backend(settings, environment)
    if name == "searxng" and not settings.url:
        raise SearchUnavailable("The backend searxng needs the URL of a SearXNG server in web.search.url.")
    url = settings.url or _SERVICE_URLS[name]
    return _ChosenBackend(name, url, _find_key(name, settings, environment))


def _find_backend(settings: SearchSettings, environment: Mapping[str, str]) -> str:
    if settings.url:
        return "searxng"
    return next((name for name, key in _KEY_VARIABLES.items() if environment.get(key)), "duckduckgo")


def _find_key(name: str, settings: SearchSettings, environment: Mapping[str, str]) -> str:
    """Return a search service's API key; empty if it needs none. Raises SearchUnavailable if missing."""
    if name not in _KEY_VARIABLES:
        return ""
    variable = settings.key_env or _KEY_VARIABLES[name]
    key = environment.get(variable, "").strip()
    if not key:
        raise SearchUnavailable(f"The backend {name} needs a key in the environment variable {variable}.")
    if not (key.isascii() and key.isprintable()):
        raise SearchUnavailable(f"The key in {variable} contains characters that are not allowed in a key.")
    return key


@dataclass(frozen=True, slots=True)
class SearxngBackend:
    """A SearXNG server, whose settings must enable the JSON format."""

    fetcher: Fetcher
    url: str
    name: str = "searxng"

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        base = check_url(self.url).rstrip("/")
        path = base if base.endswith("/search") else f"{base}/search"
        document = await self.fetcher.fetch(f"{path}?{urlencode({'q': query, 'format': 'json'})}")
        if document.status == 403:
            raise SearchUnavailable(
                "The SearXNG server refuses the JSON format. Add json to search.formats in its settings.yml."
            )
        answer = _read_answer(document, self.name)
        return _collect_hits(answer.get("results"), limit, title="title", url="url", snippet="content")


@dataclass(frozen=True, slots=True)
class BraveBackend:
    """The Brave Search API."""

    fetcher: Fetcher
    url: str
    key: str
    name: str = "brave"

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        headers = {"X-Subscription-Token": self.key, "Accept": "application/json"}
        parameters = urlencode({"q": query, "count": min(limit, 20), "text_decorations": "false"})
        document = await self.fetcher.fetch(f"{self.url}?{parameters}", headers=headers)
        found = _read_answer(document, self.name).get("web")
        results = found.get("results") if isinstance(found, Mapping) else None
        return _collect_hits(results, limit, title="title", url="url", snippet="description")


@dataclass(frozen=True, slots=True)
class TavilyBackend:
    """The Tavily search API."""

    fetcher: Fetcher
    url: str
    key: str
    name: str = "tavily"

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        document = await self.fetcher.fetch(
            self.url,
            method="POST",
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            body=json.dumps({"query": query, "max_results": min(limit, 20)}).encode(),
        )
        answer = _read_answer(document, self.name)
        return _collect_hits(answer.get("results"), limit, title="title", url="url", snippet="content")


@dataclass(frozen=True, slots=True)
class DuckDuckGoBackend:
    """DuckDuckGo's result page for browsers without JavaScript; needs no API key."""

    fetcher: Fetcher
    url: str
    name: str = "duckduckgo"

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        document = await self.fetcher.fetch(f"{self.url}?{urlencode({'q': query})}")
        if document.status == 202 or b"anomaly-modal" in document.data:
            raise SearchUnavailable(
                "DuckDuckGo asks for a proof that a person is searching. Wait a few minutes, or let the user"
                " configure another search backend in web.search."
            )
        document.require_success()
        page = _DuckDuckGoPage()
        page.feed(document.data.decode("utf-8", "replace"))
        page.close()
        return _collect_hits(page.results, limit, title="title", url="url", snippet="snippet")


class _DuckDuckGoPage(html.parser.HTMLParser):
    """Parser for DuckDuckGo's result page: titles have the class result__a, texts result__snippet."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Json] = []
        self._field = self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        classes = (found.get("class") or "").split()
        if "result__a" in classes:
            self.results.append({"title": "", "url": _unwrap_link(found.get("href") or ""), "snippet": ""})
            self._field, self._tag = "title", tag
        elif "result__snippet" in classes and self.results:
            self._field, self._tag = "snippet", tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._tag:
            self._field = self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._field:
            self.results[-1][self._field] += data


def _unwrap_link(link: str) -> str:
    """Return the target URL of a link on DuckDuckGo's result page; empty for an advertisement."""
    parts = urlsplit(urljoin(DUCKDUCKGO_URL, link))
    if not (parts.hostname or "").endswith("duckduckgo.com"):
        return link
    return next(iter(parse_qs(parts.query).get("uddg", ())), "") if parts.path.startswith("/l/") else ""


def _read_answer(document: FetchedDocument, service: str) -> Json:
    """Return the JSON object in a search service's response. Raises SearchUnavailable for errors."""
    if document.status in (401, 403):
        raise SearchUnavailable(f"{service} rejects the key (status {document.status}).")
    if document.status == 429:
        raise SearchUnavailable(f"{service} allows no more searches for now (status 429). Try again later.")
    try:
        answer = read_json(document.require_success().data.decode())
    except (ValueError, RecursionError):
        raise SearchUnavailable(f"{service} did not answer with valid JSON.") from None
    if not isinstance(answer, dict):
        raise SearchUnavailable(f"{service} did not answer with a JSON object.")
    return answer


def _collect_hits(results: Any, limit: int, **names: str) -> list[SearchHit]:
    """Return the search results with valid URLs, without duplicates.

    `names` maps the fields of `SearchHit` to the names that the service uses.
    """
    hits: dict[str, SearchHit] = {}
    for result in results if isinstance(results, list) else ():
        if isinstance(result, Mapping) and (hit := _read_hit(result, names)) is not None:
            hits.setdefault(hit.url, hit)
    return list(hits.values())[:limit]


def _read_hit(result: Mapping[str, Any], names: Mapping[str, str]) -> SearchHit | None:
    url = result.get(names["url"])
    if not isinstance(url, str) or len(url) > MAX_HIT_URL_CHARS:
        return None
    try:
        check_url(url)
    except CallError:
        return None
    title, snippet = (_single_line(result.get(names[name])) for name in ("title", "snippet"))
    return SearchHit(shorten(title, MAX_TITLE_CHARS), url, shorten(snippet, MAX_SNIPPET_CHARS))


def _single_line(value: Any) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


class _UserChosen:
    """Resolver that allows every host, because the user configured the URLs of search services."""

    async def resolve(self, host: str, _port: int) -> list[str]:
        return [host]
