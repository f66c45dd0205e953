"""Search backends against local servers that answer in the format of each service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.internet.web_server import Page, WebServer
from toolfold.config.web_settings import SearchSettings
from toolfold.core.errors import CallError
from toolfold.tools.internet.search_backends import SearchBackend, SearchHit, build_search_backend

HITS = [
    SearchHit("Tides of Porto", "https://example.com/tides", "High water at noon."),
    SearchHit("Harbour", "https://example.org/harbour?x=1", ""),
]


def build_backend(
    url: str = "", environment: Mapping[str, str] | None = None, **settings: Any
) -> SearchBackend:
    return build_search_backend(SearchSettings(url=url, **settings), environment or {})


def json_page(value: object) -> Page:
    return Page(json.dumps(value).encode(), "application/json")


async def test_searxng_results_are_returned_without_duplicate_or_invalid_urls(server: WebServer) -> None:
    server.pages["/search"] = json_page(
        {
            "query": "tides",
            "results": [
                {
                    "title": "Tides  of\nPorto",
                    "url": "https://example.com/tides",
                    "content": "High water at noon.",
                },
                {"title": "again", "url": "https://example.com/tides", "content": "the same page"},
                {"title": "no link", "url": None},
                {"title": "script", "url": "javascript:alert(1)"},
                {"title": "Harbour", "url": "https://example.org/harbour?x=1"},
            ],
        }
    )
    backend = build_backend(server.url)
    assert backend.name == "searxng"
    assert await backend.search("tides & harbour", 10) == HITS
    assert server.requests[0].path == "/search?q=tides+%26+harbour&format=json"
    assert await backend.search("tides", 1) == HITS[:1]


async def test_error_for_a_searxng_403_response_explains_how_to_enable_json_results(
    server: WebServer,
) -> None:
    server.pages["/search"] = Page(b"Forbidden", status=403)
    with pytest.raises(CallError, match=r"search\.formats"):
        await build_backend(server.url).search("tides", 5)


async def test_brave_backend_sends_the_api_key_and_returns_results(server: WebServer) -> None:
    results = [{"title": hit.title, "url": hit.url, "description": hit.snippet} for hit in HITS]
    server.pages["/brave"] = json_page({"web": {"results": results}})
    backend = build_backend(f"{server.url}/brave", {"BRAVE_API_KEY": "key-12345678"}, backend="brave")
    assert await backend.search("tides", 10) == HITS
    assert server.requests[0].headers["x-subscription-token"] == "key-12345678"


async def test_tavily_backend_sends_the_api_key_and_returns_results(server: WebServer) -> None:
    results = [{"title": hit.title, "url": hit.url, "content": hit.snippet, "score": 0.5} for hit in HITS]
    server.pages["/tavily"] = json_page({"query": "tides", "results": results})
    environment = {"MY_KEY": "key-12345678"}
    backend = build_backend(f"{server.url}/tavily", environment, backend="tavily", key_env="MY_KEY")
    assert await backend.search("tides", 10) == HITS
    request = server.requests[0]
    assert (request.method, request.headers["authorization"]) == ("POST", "Bearer key-12345678")
    assert json.loads(request.body) == {"query": "tides", "max_results": 10}


async def test_duckduckgo_backend_returns_results_without_an_api_key(server: WebServer) -> None:
    server.pages["/html/"] = Page(
        b"""<html><body>
        <div class="result result--ad"><h2 class="result__title"><a rel="nofollow" class="result__a"
          href="https://duckduckgo.com/y.js?ad_domain=shop.example">Buy tides</a></h2></div>
        <div class="result results_links web-result"><h2 class="result__title"><a rel="nofollow"
          class="result__a" href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fexample.com%2Ftides&amp;rut=1">Tides
          of <b>Porto</b></a></h2><a class="result__snippet" href="x">High <b>water</b> at noon.</a></div>
        <div class="result"><a class="result__a" href="https://example.org/harbour?x=1">Harbour</a></div>
        </body></html>"""
    )
    backend = build_backend(f"{server.url}/html/", backend="duckduckgo")
    assert await backend.search("tides", 10) == HITS


async def test_duckduckgo_bot_challenge_raises_an_error_that_suggests_another_backend(
    server: WebServer,
) -> None:
    server.pages["/html/"] = Page(b'<div class="anomaly-modal">bots</div>', status=202)
    with pytest.raises(CallError, match="another search backend"):
        await build_backend(f"{server.url}/html/", backend="duckduckgo").search("tides", 5)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (Page(b"{", "application/json"), "valid JSON"),
        (Page(b"[]", "application/json"), "JSON object"),
        (Page(b"no", status=401), "rejects the key"),
        (Page(b"no", status=429), "no more searches"),
        (Page(b"no", status=500), "status 500"),
        (Page(status=302, headers={"Location": "https://example.com/"}), "status 302"),
    ],
)
async def test_error_from_a_search_service_does_not_contain_the_api_key(
    server: WebServer, page: Page, problem: str
) -> None:
    server.pages["/"] = page
    backend = build_backend(f"{server.url}/", {"BRAVE_API_KEY": "key-12345678"}, backend="brave")
    with pytest.raises(CallError, match=problem) as caught:
        await backend.search("tides", 5)
    assert "key-12345678" not in str(caught.value)


def test_search_backend_auto_prefers_searxng_then_services_with_an_api_key_then_duckduckgo() -> None:
    keys = {"BRAVE_API_KEY": "12345678", "TAVILY_API_KEY": "12345678"}
    assert build_backend("https://search.example", keys).name == "searxng"
    assert build_backend("", keys).name == "brave"
    assert build_backend("", {"TAVILY_API_KEY": "12345678"}).name == "tavily"
    assert build_backend().name == "duckduckgo"


def test_error_names_the_missing_api_key_or_url_setting_of_a_search_backend() -> None:
    with pytest.raises(CallError, match="BRAVE_API_KEY"):
        build_backend(backend="brave")
    with pytest.raises(CallError, match=r"web\.search\.url"):
        build_backend(backend="searxng")
    with pytest.raises(CallError, match="not allowed in a key"):
        build_backend("", {"TAVILY_API_KEY": "a\nb"}, backend="tavily")
